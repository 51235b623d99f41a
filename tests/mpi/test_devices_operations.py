"""Every operation on device memory, in all forms, with host memory on some ranks or on one side."""

import zlib

import numpy as np
import pytest
from calls import collectives
from common import same, typed, uneven, walk
from mpi4py import MPI

import compcoll

N = 600
FORMS = ["{}", "I{}", "{}_init"]


def operations(rank: int, size: int) -> dict:
    """Table of operations: send buffer, receive buffer, and a function that makes the arguments of both."""

    def walked(call):
        return *(None if n is None else walk(rank, n) for n in (call.n_sent, call.n_received)), call.arguments

    rows = {name: walked(call) for name, call in collectives(rank, size, N, counts=uneven(size, N)).items()}
    part, whole, sum_ = rows["Allgather"][0], rows["Alltoall"][0], np.zeros(N * size, "f4")
    here = rank == size - 1
    both = lambda s, r: (s, r)  # noqa: E731
    return rows | {
        "Scan": (whole, sum_, both),
        "Exscan": (whole, sum_, both),
        "Scan in place": (None, whole, lambda s, r: (MPI.IN_PLACE, r)),
        "Exscan in place": (None, whole, lambda s, r: (MPI.IN_PLACE, r)),
        "Reduce MAX": (whole, sum_ if here else None, lambda s, r: (s, r, MPI.MAX, size - 1)),
        "Neighbor_alltoall": (walk(rank, 2 * N), np.zeros(2 * N, "f4"), both),
        "Neighbor_allgather": (part, np.zeros(2 * N, "f4"), both),
    }


def on(device, array):
    """Device array whose values arrive later; None for None."""
    if array is None:
        return None
    result = device.array(np.full_like(array, 7))
    device.fill_later(result, array)
    return result


def call(c, form: str, name: str, arguments) -> None:
    name = name.partition(" ")[0]
    request = getattr(c, form.format(name.lower() if form[0] == "I" else name))(*arguments)
    for _ in range(0 if form == "{}" else 1 if form == "I{}" else 2):
        if form == "{}_init":
            request.Start()
        request.Wait()
    if form == "{}_init":
        request.Free()


CODECS = ["zfp:rate=8", "szp:abs=1e-3", "lossless", "none"]
#: Fewest bytes that are compressed: all messages, some of those with uneven counts, and none.
LEAST = [0, 1000, 1 << 30]
#: Each operation in each form, with half of the codecs; from one operation to the next, the first form and
#: limit change.
CALLS = [
    (name, FORMS[(i + j) % 3], CODECS[(i + j + k) % 4], LEAST[(i // 3 + j + k // 2) % 3])
    for i, name in enumerate(operations(0, 1))
    for j in range(3)
    for k in (0, 2)
]


@pytest.mark.parametrize(("name", "form", "spec", "least"), CALLS)
def test_values_are_those_of_host_memory(comm, agree, device, name, form, spec, least):
    if form == "{}_init" and MPI.Get_version() < (4, 0):
        pytest.skip("MPI 3 has no persistent collectives")
    c = compcoll.Comm(comm, codec=spec, min_nbytes=least)
    c = c.Create_cart([comm.size], [True]) if name.startswith("Neighbor") else c
    send, recv, of = operations(comm.rank, comm.size)[name]
    host = None if recv is None else recv.copy()
    call(c, form, name, of(send, host))
    rng = np.random.default_rng([zlib.crc32(f"{name} {form} {spec}".encode()), comm.rank])
    for _ in range(3):
        mine, ours = (
            on(device, one) if rng.random() < 0.7 else one if one is None else one.copy()
            for one in (send, recv)
        )
        call(c, form, name, of(mine, ours))
        assert agree(host is None or (name.startswith("Exscan") and comm.rank == 0) or same(ours, host))


@pytest.mark.parametrize("spec", ["zfp:rate=16", "int8", "fp8", "szp:abs=1e-3", "lossless"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("name", ["Alltoall", "Allgather", "Allreduce"])
def test_other_types_and_codecs(comm, agree, device, name, dtype, spec):
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    send = walk(comm.rank, 1037 * comm.size, dtype)
    recv = np.full(1037 * comm.size ** (1 + (name == "Allgather")), 7, dtype)
    ours = device.array(recv)
    getattr(c, name)(typed(send), typed(recv))
    getattr(c, name)(typed(device.array(send)), typed(ours))
    assert agree(same(ours, recv))
    assert comm.size == 1 or c.report.accelerated


@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("persistent", [False, True])
def test_requests_under_way_together(comm, agree, device, persistent, some):
    """Requests that are pending together give MPI's values, with GPUs on all ranks or every other."""
    if persistent and MPI.Get_version() < (4, 0):
        pytest.skip("MPI 3 has no persistent collectives")
    c, requests, cases = compcoll.Comm(comm, codec="lossless", min_nbytes=0), [], []
    place = np.copy if some and comm.rank % 2 else device.array
    for name, n in (("Alltoall", 3000 * comm.size), ("Allgather", 3000), ("Allreduce", 3000)):
        mine = walk(comm.rank, n).round()  # sums of these are exact
        host = np.zeros(n * comm.size if name == "Allgather" else n, "f4")
        getattr(comm, name)(mine, host)
        cases.append((place(mine), place(np.zeros_like(host)), host))
        form = f"{name}_init" if persistent else f"I{name.lower()}"
        requests.append(getattr(c, form)(*cases[-1][:2]))
    for _ in range(1 + persistent):
        if persistent:
            MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert agree(all(same(ours, host) for _, ours, host in cases))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "lossless", "none"])
@pytest.mark.parametrize("name", ["Send", "Ssend", "Bsend", "Rsend"])
@pytest.mark.parametrize("form", FORMS)
def test_messages_between_host_and_device(comm, agree, device, name, form, spec):
    c, n = compcoll.Comm(comm, codec=spec, min_nbytes=0), 7000
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    host = walk(left, n)  # MPI carries ``Bsend`` and ``Rsend``, which change no values
    if name in ("Send", "Ssend"):
        c.Sendrecv(walk(comm.rank, n), right, 1, host, left, 1)
    MPI.Attach_buffer(bytearray(4 * (2 * n + MPI.BSEND_OVERHEAD)))
    for case in range(4):
        mine, into = walk(comm.rank, n), np.zeros(n, "f4")
        mine = on(device, mine) if (case + comm.rank) & 1 else mine
        into = on(device, into) if (case + comm.rank) & 2 else into
        if form == "{}_init":  # ``call`` starts it twice
            receives = [c.Irecv(into, left, 3), c.Irecv(on(device, host), left, 3)]
        else:
            receives = [c.Irecv(into, left, 3)]
        comm.Barrier()
        call(c, form, name, (mine, right, 3))
        MPI.Request.Waitall(receives)
        assert agree(same(into, host))
    MPI.Detach_buffer()


@pytest.mark.parametrize("spec", ["zfp:rate=8", "bfp:bits=7"])
@pytest.mark.parametrize("values", ["large", "special"])
@pytest.mark.parametrize("name", ["Allreduce", "Reduce_scatter_block"])
def test_sums_of_float16_overflow_as_on_the_host(comm, agree, device, name, values, spec):
    rng, n = np.random.default_rng(comm.rank), 8192
    send = (rng.uniform(16375, 32750, n * comm.size) * 2 / max(comm.size, 2)).astype("f2")
    if values == "special":
        send[::3] *= np.float16(2**-14 / 1e4)  # subnormal numbers
        send[rng.integers(send.size, size=5)] = np.nan, np.inf, -np.inf, -0.0, 65504
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    m = send.size if name == "Allreduce" else n
    host, ours = np.zeros(m, "f2"), on(device, np.zeros(m, "f2"))
    getattr(c, name)(typed(send), typed(host))
    getattr(c, name)(typed(on(device, send)), typed(ours))
    assert agree(same(ours, host))
    assert agree(values == "special" or np.isfinite(host).all())


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [("zfp:rate=8", 0), ("lossless", 0), ("none", 0), ("lossless", 1 << 20), ("none", 16 << 20)],
)
@pytest.mark.exhaustive(but=1)
def test_pinned_memory_that_the_driver_does_not_have(comm, agree, device, spec, nbytes):
    """Results are right if the driver has little pinned memory; idle memory of earlier calls counts too."""
    c, n = compcoll.Comm(comm, codec=spec, min_nbytes=0), 50_000
    send = np.resize(walk(comm.rank, 5000), n * comm.size)
    c.Alltoall(send, host := np.zeros_like(send))
    device.lib.standin_budget(1, nbytes)
    try:
        for form in FORMS[: 2 if MPI.Get_version() < (4, 0) else 3]:
            mine, ours = on(device, send), on(device, np.zeros_like(send))
            call(c, form, "Alltoall", (mine, ours))
            assert agree(same(ours, host))
    finally:
        device.lib.standin_budget(1, -1)


@pytest.mark.parametrize("spec", ["zfp:rate=8", "lossless", "none"])
def test_memory_that_a_device_does_not_have(comm, agree, device, spec):
    """If a device has no memory left, the host codes in its place.

    This includes chunks that are too large for kernels to write to pinned memory.
    """
    rule = {"codec": spec, "chunk_nbytes": 2 << 20}
    c, n = compcoll.Comm(comm, policy={"min_nbytes": 0, "rule": [rule]}), 300_000
    send = np.resize(walk(comm.rank, 5000), n * comm.size)
    c.Alltoall(send, host := np.zeros_like(send))
    mine, ours = on(device, send), on(device, np.zeros_like(send))
    device.lib.standin_budget(0, 0)
    device.reset()
    try:
        c.Alltoall(mine, ours)
    finally:
        device.lib.standin_budget(0, -1)
    assert agree(same(ours, host))
    assert agree(spec == "none" or comm.size == 1 or device.counts["cuMemAlloc_v2"] > 0)  # none is left

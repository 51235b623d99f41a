"""Blocks that ranks send to themselves in calls that MPI carries stay on the GPU if they are large."""

import numpy as np
import pytest
from calls import collectives
from common import FORMS, bits, complete, data, few_or_many, walk
from mpi4py import MPI
from standin import Device, Stream

import compcoll
from compcoll.operations import OPERATIONS

N = 66_001
#: Operations in which a rank has a block for itself.
NAMES = ("Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Gather", "Gatherv", "Scatter")
NAMES += ("Scatterv",)


def sent_bytes(name: str, rank: int, size: int, counts: list[int]) -> list[int]:
    """Bytes that a rank sends to each rank: equal blocks of N, or ``counts``."""
    root = size - 1
    if name.startswith("Alltoall"):
        n = [N] * size if name == "Alltoall" else [counts[(rank + 2 * j) % size] for j in range(size)]
    elif name.startswith("Scatter"):
        n = [(N if name == "Scatter" else count) * (rank == root) for count in counts]
    else:
        mine = counts[rank] if name.endswith("v") else N
        n = [mine * (j == root or name.startswith("Allgather")) for j in range(size)]
    return [4 * one for one in n]


@pytest.mark.parametrize("spec", ["none", "lossless"])
@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_no_byte_of_it_crosses_the_bus(comm, agree, device, name, form, spec):
    """A rank's own block is copied inside the GPU, and crosses the bus only if other ranks get it too.

    This holds for small messages beside compressed ones as well.
    """
    # In calls that each pair decides, MPI carries a rank's own block; the engine carries other calls
    # entirely.
    if spec != "none" and (name.startswith("Allgather") or comm.size == 1):
        pytest.skip("the engine carries the call")
    rank, size = comm.rank, comm.size
    counts = [N + 5 * i for i in range(size)]
    c = compcoll.Comm(comm, codec=spec, min_nbytes=1 << 30 if spec == "none" else 0)
    call = collectives(rank, size, N, counts=counts)[name]
    sent, got = (None if n is None else walk(rank, n) for n in (call.n_sent, call.n_received))
    want = None if got is None else got.copy()
    getattr(comm, call.name)(*call.arguments(sent, want))
    mine, ours = (None if one is None else device.array(one) for one in (sent, got))
    device.reset()
    complete(c, OPERATIONS[call.name].forms[form], call.arguments(mine, ours))
    down, up, across = device.nbytes
    assert agree(want is None or bits(ours.get()) == bits(want))
    table = [sent_bytes(name, r, size, counts) for r in range(size)]
    out = [n for j, n in enumerate(table[rank]) if j != rank]
    into = [row[rank] for r, row in enumerate(table) if r != rank]
    assert agree(across == table[rank][rank])
    if spec == "none":
        assert agree(down == (table[rank][rank] if name.startswith("Allgather") else sum(out)))
        assert agree(up == sum(into))


@pytest.mark.parametrize(("n", "stays"), [(65_535, False), (65_536, True)])
def test_small_blocks_go_through_the_host(comm, agree, device, n, stays):
    """Own blocks of less than 256 KiB are copied through the host, larger ones inside the GPU."""
    c, n = compcoll.Comm(comm, codec="none"), n * comm.size
    mine, ours = device.array(walk(comm.rank, n)), device.array(np.zeros(n, "f4"))
    comm.Alltoall(walk(comm.rank, n), host := np.zeros(n, "f4"))
    device.reset()
    c.Alltoall(mine, ours)
    assert agree((device.nbytes[2] > 0) is stays)
    assert agree(bits(ours.get()) == bits(host))


@few_or_many(30, 600)
def test_results_are_those_of_plain_mpi(comm, agree, device, count):
    """Results are plain MPI's, with each side of each rank on the host or on one of two GPUs.

    Blocks may be empty, or have gaps between them.
    """
    devices = [device, Device(1)]
    comms = [compcoll.Comm(comm, codec="none"), compcoll.Comm(comm, codec="lossless", min_nbytes=500)]
    for seed in range(count):
        both, own = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
        counts = both.choice([0, 1, 1000, N], comm.size)
        gap, root, n = (
            int(both.integers(0, 5)),
            int(both.integers(comm.size)),
            int(both.choice([0, 1, 999, N])),
        )
        table = collectives(comm.rank, comm.size, n, root, counts.tolist(), gap=gap)
        name = str(both.choice([name for name in table if name.partition(" ")[0] in NAMES]))
        dtype, form, c = both.choice(["f4", "f8", "i2"]), int(both.integers(len(FORMS))), comms[seed % 4 == 3]
        call = table[name]
        sent, got = call.memory(dtype, seed, comm.rank)
        want = None if got is None else got.copy()
        getattr(comm, call.name)(*call.arguments(sent, want))
        arrays = []
        for one in (sent, got):
            place = int(own.choice([0, 0, 1, 2]))
            arrays.append(one if one is None or place == 2 else devices[place].array(np.full_like(one, 7)))
            if arrays[-1] is not one:
                devices[place].fill_later(arrays[-1], one)
        complete(c, OPERATIONS[call.name].forms[form], call.arguments(*arrays))
        for one in devices:  # an empty block waits for nothing
            one.synchronize()
        right = want is None or bits(np.asarray(arrays[1])) == bits(want)
        assert agree(right), (seed, name, FORMS[form])


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
def test_blocks_with_gaps_go_through_the_host(comm, agree, device, form):
    """Own blocks with gaps on one side or on both, such as columns of a matrix, go through the host."""
    c, p = compcoll.Comm(comm, codec="none"), comm.size + 1
    column = MPI.FLOAT.Create_vector(N, 1, p).Create_resized(0, 4).Commit()
    for gaps in ((True, False), (False, True), (True, True)):
        send, recv = data(N * p, "f4", comm.rank), np.zeros(N * p, "f4")
        pairs = [[array, N, MPI.FLOAT] for array in (send, recv)]
        pairs = [[one[0], 1, column] if gap else one for one, gap in zip(pairs, gaps, strict=True)]
        comm.Alltoall(*pairs)
        mine, ours = device.array(send), device.array(np.zeros_like(recv))
        device.reset()
        on_gpu = [[array, *one[1:]] for array, one in zip((mine, ours), pairs, strict=True)]
        complete(c, OPERATIONS["Alltoall"].forms[form], on_gpu)
        assert agree(device.nbytes[2] == 0)
        assert agree(bits(ours.get()) == bits(recv))
    column.Free()


def test_the_root_waits_for_its_own_block(comm, agree, device):
    """The root's request completes after the caller's earlier work and after the copy of its own block."""
    c, n, root = compcoll.Comm(comm, codec="none"), N, comm.size - 1
    mine, got = device.array(np.zeros(n, "f4")), device.array(np.zeros(n * comm.size, "f4"))
    arguments = (mine, got if comm.rank == root else None, root)
    c.Gather(*arguments)  # a driver waits when it allocates memory
    with Stream(device) as stream:
        stream.hold()
        device.fill_later(got, np.full(n * comm.size, 9, "f4"))
        device.fill_later(mine, np.full(n, comm.rank, "f4"))
        if comm.rank != root:
            stream.release()
        request = c.Igather(*arguments)
        assert agree(comm.rank != root or not request.Test())
        stream.release()
        request.Wait()
    want = np.repeat(np.arange(comm.size, dtype="f4"), n)
    assert agree(comm.rank != root or bits(got.layout) == bits(want))
    device.drain()


def test_a_persistent_call_copies_it_at_each_start(comm, agree, device):
    if "persistent" not in FORMS:
        pytest.skip("MPI 3 has no persistent collectives")
    c, n = compcoll.Comm(comm, codec="none"), N * comm.size
    mine, got = device.array(np.zeros(n, "f4")), device.array(np.zeros(n, "f4"))
    counts = [N] * comm.size
    requests = [c.Alltoall_init(mine, got), c.Alltoallv_init([mine, counts], [got, counts])]
    for k in range(6):
        mine.set(walk(comm.rank + 10 * k, n))
        comm.Alltoall(mine.get(), host := np.zeros(n, "f4"))
        device.reset()
        requests[k % 2].Start()
        requests[k % 2].Wait()
        assert agree(device.nbytes[2] == 4 * N)
        assert agree(bits(got.get()) == bits(host))
    for request in requests:
        request.Free()


def test_a_call_that_mpi_refuses_is_an_error(comm, agree, device):
    """An own block of unequal or negative counts, or a negative count to another rank, is an error.

    An invalid own block writes no values.
    """
    c, p, n = compcoll.Comm(comm, codec="none"), comm.size, N
    mine, got = device.array(np.zeros(n * p, "f4")), device.array(np.full(n * p, 5, "f4"))
    places, other = [n * i for i in range(p)], (comm.rank + 1) % p
    for own_out, own_in, others in ((n, n - 1, 0), (-1, -1, 0), (n, n, -1)):
        out, into = [0] * p, [0] * p
        out[other] = into[other] = others
        out[comm.rank], into[comm.rank] = own_out, own_in
        if p == 1 and others:
            continue
        with pytest.raises(MPI.Exception):
            c.Alltoallv([mine, (out, places), MPI.FLOAT], [got, (into, places), MPI.FLOAT])
        if not others:
            assert agree(np.all(got.get() == 5))

"""Every form of mpi4py's buffer arguments, and what is wrong with some of them."""

import array

import numpy as np
import pytest
from common import bits, data, offsets, uneven
from mpi4py import MPI

import compcoll

N = 3001
FORMS = {
    "array": lambda a: a,
    "type": lambda a: [a, MPI.FLOAT],
    "code": lambda a: [a, "f"],
    "count": lambda a: [a, N],
    "count, type": lambda a: [a, N, MPI.FLOAT],
    "count and displacement": lambda a: [a, (N, 0), MPI.FLOAT],
    "count, displacement": lambda a: [a, N, 0, "f"],
    "tuple": lambda a: (a, N, MPI.FLOAT),
    "list pair": lambda a: (a, [N, 0]),
    "bytes": lambda a: [a.view(np.uint8), N, MPI.FLOAT],
    "bytearray view": lambda a: [memoryview(a).cast("B"), MPI.FLOAT],
    "memoryview": memoryview,
    "Fortran": lambda a: a.reshape(1, 3001, order="F").T,
}
VECTOR_FORMS = {
    "pair": lambda a, n, d: [a, (n, d)],
    "pair, type": lambda a, n, d: [a, (n, d), MPI.FLOAT],
    "four": lambda a, n, d: [a, n, d, MPI.FLOAT],
    "arrays": lambda a, n, d: (a, (np.array(n), np.array(d)), "f"),
    "no displacements": lambda a, n, d: [a, n, MPI.FLOAT],
    "list of counts": lambda a, n, d: [a, list(n)],
}


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms(comm, ours, agree, form):
    got = data(N, "f4", comm.rank)
    ours.Bcast(form(got), comm.size - 1)
    assert agree(bits(got) == bits(data(N, "f4", comm.size - 1)))
    assert ours.report.accelerated == (comm.size > 1)
    parts, total = [data(N, "f4", r) for r in range(comm.size)], np.zeros(N, "f4")
    ours.Allreduce(form(parts[comm.rank]), form(total))
    assert agree(np.allclose(total, sum(parts), rtol=1e-5, atol=1e-5))
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    ours.Sendrecv(form(parts[comm.rank]), behind, 5, form(got), before, 5)
    assert agree(bits(got) == bits(parts[before]))


@pytest.mark.parametrize("form", VECTOR_FORMS.values(), ids=VECTOR_FORMS)
def test_vector_forms(comm, ours, agree, form):
    counts = uneven(comm.size, N)
    got, want = np.zeros((2, sum(counts)), "f4")
    mine = data(counts[comm.rank], "f4", comm.rank)
    ours.Allgatherv(mine, form(got, counts, offsets(counts)))
    comm.Allgatherv(mine, [want, counts])
    assert agree(bits(got) == bits(want))


def test_in_place(comm, ours, agree):
    size, rank = comm.size, comm.rank
    own = slice(rank * N, (rank + 1) * N)
    for name in (
        "Allgather",
        "Gather",
        "Scatter",
        "Alltoall",
        "Allreduce",
        "Reduce",
        "Reduce_scatter_block",
        "Allgatherv",
        "Alltoallv",
        "Gatherv",
        "Scatterv",
        "Reduce_scatter",
    ):
        got, want = (data(size * N, "i4", rank) for _ in range(2))
        for used, buf in ((ours, got), (comm, want)):
            spec = [buf, [N] * size] if name.endswith("v") and name != "Scatterv" else buf
            if name in ("Gather", "Gatherv", "Reduce") and rank:
                getattr(used, name)(buf[own] if name != "Reduce" else buf, None)
            elif name in ("Scatter", "Scatterv"):
                getattr(used, name)(buf if rank == 0 else None, MPI.IN_PLACE if rank == 0 else buf[own])
            elif name == "Reduce_scatter":
                used.Reduce_scatter(MPI.IN_PLACE, buf, [N] * size)
            else:
                getattr(used, name)(MPI.IN_PLACE, spec)
        n = N if name.startswith("Reduce_scatter") else size * N  # what lies behind the result is undefined
        assert agree(bits(got[:n]) == bits(want[:n])), name


def test_other_memory(comm, ours, agree):
    want = data(N, "f4", 0)
    for mine in (
        array.array("f", data(N, "f4", comm.rank).tobytes()),
        bytearray(bits(data(N, "f4", comm.rank))),
    ):
        ours.Bcast(mine, 0)
        assert agree(bytes(mine) == bits(want))
    root = comm.rank == 0
    ours.Bcast(bits(want) if root else mine, 0)  # read-only where it is only read
    assert agree(bytes(mine) == bits(want))
    sent, got = data(N, "f4", comm.rank), np.zeros((comm.size, N), "f4")
    sent.flags.writeable = False
    ours.Allgather(sent, got)
    assert agree(bits(got[0]) == bits(want))


def test_read_only_receive_buffer(comm, ours):
    got = np.zeros(N * comm.size, "f4")
    got.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match=r"read-only|not writable"):
        ours.Allgather(data(N, "f4", 0), got)


def test_torch(comm, ours, agree):
    torch = pytest.importorskip("torch")
    got = torch.from_numpy(data(N, "f4", comm.rank))
    ours.Bcast(got, 0)
    assert agree(bits(got.numpy()) == bits(data(N, "f4", 0)))


TYPES = {
    "vector": lambda: MPI.FLOAT.Create_vector(N, 1, 2),
    "contiguous": lambda: MPI.FLOAT.Create_contiguous(N),
    "resized": lambda: MPI.FLOAT.Create_resized(0, 8).Create_contiguous(N),
    "subarray": lambda: MPI.FLOAT.Create_subarray([N, 3], [N, 1], [0, 1]),
    "indexed": lambda: MPI.FLOAT.Create_indexed([N - 1, 1], [1, N + 3]),
    "struct": lambda: MPI.Datatype.Create_struct([1, N - 1], [4, 12], [MPI.FLOAT, MPI.FLOAT]),
    "downwards": lambda: MPI.FLOAT.Create_hvector(N, 1, -4).Create_hindexed([1], [4 * N]),
}


@pytest.mark.parametrize("make", TYPES.values(), ids=TYPES)
def test_derived_types(comm, ours, agree, make):
    """Also against a basic type on the other ranks, and with the bytes in the gaps untouched."""
    datatype = make().Commit()
    derived = comm.rank % 2 == 0
    got, want = (data(3 * N, "f4", comm.rank) for _ in range(2))
    for used, buf in ((ours, got), (comm, want)):
        used.Bcast([buf, 1, datatype] if derived else [buf, N, MPI.FLOAT], comm.size - 1)
    assert agree(bits(got) == bits(want))
    assert ours.report.accelerated == (comm.size > 1)
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for used, buf in ((ours, got), (comm, want)):
        source = data(3 * N, "f4", comm.rank + 7)
        used.Sendrecv([source, N, MPI.FLOAT], behind, 0, [buf, 1, datatype], before, 0)
        counts = [int(p == 0) for p in range(comm.size)]
        flat = np.zeros(N, "f4")
        used.Scatterv(
            [buf, counts, [0] * comm.size, datatype] if comm.rank == 0 else None, flat[: N * (comm.rank == 0)]
        )
        buf[:N] += flat
    assert agree(bits(got) == bits(want))
    datatype.Free()


def test_what_mpi_has_to_do(comm, ours, agree):
    """Types of several basic ones, and absolute addresses; against a plain array on other ranks."""
    pair = np.dtype([("a", "i4"), ("b", "f8")], align=True)
    mixed = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Create_resized(0, 16).Commit()
    records = np.zeros(N, pair)
    records["a"], records["b"] = comm.rank, np.arange(N)
    ours.Bcast([records.view(np.uint8), N, mixed], 0)
    assert agree((records["a"] == 0).all())
    assert not ours.report.accelerated
    got = data(N, "f4", comm.rank)
    absolute = MPI.FLOAT.Create_hindexed([N], [MPI.Get_address(got)]).Commit()
    ours.Bcast([MPI.BOTTOM, 1, absolute] if comm.rank == 0 else got, 0)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    ours.Bcast([MPI.BOTTOM, 1, absolute] if comm.rank else got + 1, 0)
    assert agree(comm.rank == 0 or bits(got) == bits(data(N, "f4", 0) + 1))
    ours.Bcast([None, 0, MPI.FLOAT] if comm.rank else np.empty(0, "f4"), 0)
    absolute.Free()
    mixed.Free()


BAD = {
    "negative": (lambda c, a: c.Bcast([a, -1, MPI.FLOAT]), ValueError, "-1"),
    "mismatch": (lambda c, a: c.Allreduce(a, np.zeros(N - 1, "f4")), ValueError, f"{N}.*{N - 1}"),
    "blocks": (lambda c, a: c.Alltoall(a[: 2 * c.size], np.zeros(c.size, "f4")), MPI.Exception, "bytes"),
    "recvcounts": (lambda c, a: c.Reduce_scatter(a, a.copy(), [N + 1] * c.size), ValueError, f"{N}"),
    "no buffer": (lambda c, a: c.Bcast(5), TypeError, "buffer"),
    "strided": (lambda c, a: c.Bcast(a[::2]), (BufferError, ValueError), "contiguous"),
    "type": (lambda c, a: c.Bcast(np.full(N, None)), (KeyError, ValueError, BufferError), None),
    "root": (lambda c, a: c.Bcast(a, c.size), MPI.Exception, None),
}


@pytest.mark.parametrize(("call", "kind", "message"), BAD.values(), ids=BAD)
def test_wrong_arguments(comm, ours, call, kind, message):
    if comm.size == 1:
        pytest.skip("a single rank's calls are MPI's own")
    with pytest.raises(kind, match=message):
        call(ours, data(N, "f4", comm.rank))
    comm.Barrier()
    got = data(N, "f4", comm.rank)
    ours.Bcast(got, 0)
    assert bits(got) == bits(data(N, "f4", 0))

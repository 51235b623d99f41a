"""Unusual arguments are accepted as by mpi4py, and ranks with different kinds make the same decision."""

import array

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll

N = 3001
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank's calls are MPI's own")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


def read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


#: Functions that make rank 0's memory of values, and its counts.
KINDS = {
    "masked": (np.ma.masked_array, list),
    "subclass": (lambda a: a.view(type("Mine", (np.ndarray,), {})), lambda counts: np.array(counts, "i8")),
    "array": (lambda a: array.array("f", bits(a)), lambda counts: array.array("i", counts)),
    "read-only": (read_only, lambda counts: memoryview(array.array("l", counts))),
    "bytes": (lambda a: [bits(a), MPI.FLOAT], lambda counts: np.array(counts, "u2")),
}


@pytest.mark.parametrize(("memory", "counts_of"), KINDS.values(), ids=KINDS)
def test_one_rank_gives_arguments_of_another_kind(comm, ours, agree, memory, counts_of):
    values, counts = data(N + comm.rank, "f4", comm.rank), [N + r for r in range(comm.size)]
    got, want = np.zeros((2, sum(counts)), "f4")
    comm.Allgatherv(values, [want, counts])
    if comm.rank == 0:
        values, counts = memory(values), counts_of(counts)
    ours.Allgatherv(values, [got, counts])
    assert agree(ours.report.accelerated and bits(got) == bits(want))
    got[:] = 0
    ours.Gatherv(values, [got, counts] if comm.rank == 0 else None)
    assert agree(ours.report.accelerated and (comm.rank > 0 or bits(got) == bits(want)))


ALIASED = {
    "Allgather": lambda c, a: c.Allgather(a[c.rank * N : (c.rank + 1) * N], a),
    "Alltoall": lambda c, a: c.Alltoall(a, a),
    "Allreduce": lambda c, a: c.Allreduce(a, a),
    "Reduce_scatter_block": lambda c, a: c.Reduce_scatter_block(a, a[:N]),
    "Reduce_scatter": lambda c, a: c.Reduce_scatter(a, a[:N], [N] * c.size),
}


@pytest.mark.parametrize("call", ALIASED.values(), ids=ALIASED)
def test_one_memory_for_what_is_sent_and_received(ours, call):
    with pytest.raises(MPI.Exception) as caught:
        call(ours, np.zeros(N * ours.size, "f4"))
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER


#: Elements of a small message, and of a large one.
SIDES = [50, 50_000]
TENSORS = {
    "bare": (lambda t: t, 1),
    "count": (lambda t: [t, len(t)], 0.5),  # mpi4py takes them for bytes
    "typed": (compcoll.typed, 1),
    "typed count": (lambda t: [compcoll.typed(t)[0], len(t) // 2, compcoll.BFLOAT16], 0.5),
}


@pytest.mark.parametrize("n", SIDES)
@pytest.mark.parametrize(("given", "share"), TENSORS.values(), ids=TENSORS)
@pytest.mark.exhaustive  # torch takes seconds to import
def test_counts_of_bfloat16_mean_the_same_in_small_and_large_calls(comm, agree, given, share, n):
    torch = pytest.importorskip("torch")
    for one in comm, compcoll.Comm(comm, "lossless", min_nbytes=1000):
        tensor = torch.full((n,), float(comm.rank == 0), dtype=torch.bfloat16)
        one.Bcast(given(tensor))
        assert agree(int(tensor.sum(dtype=torch.int32)) == (n if comm.rank == 0 else n * share))


def test_what_mpi_has_to_do(comm, ours, agree):
    """MPI carries types of several basic types; absolute addresses match plain arrays of other ranks."""
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


def test_blocks_that_do_not_fit(comm, ours, agree):
    """Blocks that do not fit are an error on all ranks, and the next call is right."""
    with pytest.raises(MPI.Exception, match="bytes"):
        ours.Alltoall(np.zeros(2 * comm.size, "f4"), np.zeros(comm.size, "f4"))
    got = data(N, "f4", comm.rank)
    ours.Bcast(got)
    assert agree(bits(got) == bits(data(N, "f4", 0)))

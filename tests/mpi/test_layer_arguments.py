"""Arguments of unusual kinds are taken as mpi4py takes them, and wrong ones leave nothing behind."""

import array
import mmap

import numpy as np
import pytest
from common import bits, data, offsets
from mpi4py import MPI

import compcoll

N = 3001
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank's calls are MPI's own")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=0)


KINDS = {
    "list": list,
    "array": lambda counts: array.array("i", counts),
    "memoryview": lambda counts: memoryview(array.array("l", counts)),
    "int64": lambda counts: np.array(counts, "i8"),
    "uint16": lambda counts: np.array(counts, "u2"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_counts_of_any_kind(comm, ours, agree, kind):
    """Rank 0 gives them in this form, the others in a list: all accelerate alike."""
    size, rank = comm.size, comm.rank
    counts = [N + r for r in range(size)]
    mine = kind if rank == 0 else list
    whole, got = data(sum(counts), "f4", 1), np.zeros(sum(counts), "f4")
    part = data(counts[rank], "f4", rank)
    want = np.concatenate([data(n, "f4", r) for r, n in enumerate(counts)])
    ours.Gatherv(part, [got, mine(counts)] if rank == 0 else None)
    assert agree(ours.report.accelerated and (rank > 0 or bits(got) == bits(want)))
    ours.Allgatherv(part, [got, mine(counts), mine(offsets(counts)), MPI.FLOAT])
    assert agree(ours.report.accelerated and bits(got) == bits(want))
    ours.Scatterv([whole, mine(counts)] if rank == 0 else None, part)
    start = offsets(counts)[rank]
    assert agree(ours.report.accelerated and bits(part) == bits(whole[start : start + counts[rank]]))
    sent, same = data(size * N, "f4", rank), [N] * size
    got, want = np.zeros((2, size * N), "f4")
    ours.Alltoallv([sent, mine(same)], [got, mine(same)])
    comm.Alltoallv([sent, same], [want, same])
    assert agree(ours.report.accelerated and bits(got) == bits(want))


MALFORMED = {
    "number": 5,
    "text": "abc",
    "mapping": {},
    "nothing": [],
    "buffer alone": [np.zeros(4, "f4")],
    "too much": (1, 2, 3, 4, 5),
    "counts of no kind": [np.zeros(4, "f4"), object()],
    "too few counts": [np.zeros(4, "f4"), [1]],
    "fractions": [np.zeros(4 * 4, "f4"), [0.5] * MPI.COMM_WORLD.size],
    "no such type": [np.zeros(4, "f4"), "zz"],
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED)
def test_malformed_specifications(comm, ours, bad):
    """mpi4py's own exception, on the rank that gave it."""
    good = [np.zeros(comm.size, "f4"), [1] * comm.size]
    for arguments in ((bad, good), (good, bad)):
        with pytest.raises(Exception) as expected:  # noqa: PT011
            comm.Alltoallv(*arguments)
        with pytest.raises(type(expected.value)):
            ours.Alltoallv(*arguments)


ARRAYS = {
    "masked": np.ma.masked_array,
    "subclass": lambda a: a.view(type("Mine", (np.ndarray,), {})),
}


@pytest.mark.parametrize("kind", ARRAYS.values(), ids=ARRAYS)
def test_subclasses_of_arrays(comm, ours, agree, kind):
    size, rank = comm.size, comm.rank
    before, behind = (rank - 1) % size, (rank + 1) % size
    mine = kind(data(N, "f4", rank).reshape(1, N))
    got = kind(np.zeros((size, N), "f4"))
    ours.Allgather(mine, got)
    assert agree(bits(np.asarray(got)) == b"".join(bits(data(N, "f4", r)) for r in range(size)))
    ours.Sendrecv(mine, behind, 0, got, before, 0)
    assert agree(bits(np.asarray(got)[0]) == bits(data(N, "f4", before)))
    plain = data(N, "f4", rank)
    ours.Bcast(mine if rank == 0 else plain)  # the others have arrays of the usual kind
    assert agree(ours.report.accelerated and bits(np.asarray(plain)) == bits(data(N, "f4", 0)))


def test_memory_map(comm, ours, agree, tmp_path):
    mapped = np.memmap(tmp_path / "values", "f4", "w+", shape=N)
    mapped[:] = data(N, "f4", comm.rank)
    ours.Bcast(mapped)
    mapped.flush()
    assert agree(bits(np.fromfile(tmp_path / "values", "f4")) == bits(data(N, "f4", 0)))


def test_memory_without_a_type(comm, ours, agree):
    """A map of memory as the one block of a call with counts."""
    nbytes = 8 * N
    memory = mmap.mmap(-1, nbytes)
    memory[:] = bits(data(N, "f8", comm.rank))
    counts, whole = [N] * comm.size, np.zeros(comm.size * N)
    ours.Gatherv([memory, N, MPI.DOUBLE], [whole, counts] if comm.rank == 0 else None)
    want = b"".join(bits(data(N, "f8", rank)) for rank in range(comm.size))
    assert agree(comm.rank > 0 or bits(whole) == want)
    ours.Scatterv([2 * whole, counts] if comm.rank == 0 else None, [memory, N, MPI.DOUBLE])
    assert agree(bytes(memory) == bits(2 * data(N, "f8", comm.rank)))
    assert agree(ours.report.accelerated)


def read_only() -> np.ndarray:
    got = np.zeros(N, "f4")
    got.flags.writeable = False
    return got


BAD_BUFFERS = {"read-only": read_only(), "text": "abc", "number": 5, "strided": np.zeros(2 * N, "f4")[::2]}


@pytest.mark.parametrize("bad", BAD_BUFFERS.values(), ids=BAD_BUFFERS)
def test_nothing_is_sent_or_taken_before_all_is_known_to_be_good(comm, ours, agree, bad):
    size, rank = comm.size, comm.rank
    before, behind = (rank - 1) % size, (rank + 1) % size
    for _ in range(2):
        with pytest.raises((BufferError, TypeError, ValueError)):
            ours.Sendrecv(np.full(N, np.nan, "f4"), behind, 1, bad, before, 1)
    got = np.zeros(N, "f4")
    ours.Sendrecv(data(N, "f4", rank), behind, 1, got, before, 1)
    assert agree(bits(got) == bits(data(N, "f4", before)))
    sent = ours.Isend(data(N, "f4", rank), behind, 2)
    for receive in (ours.Recv, ours.Irecv):
        with pytest.raises((BufferError, TypeError, ValueError)):
            receive(bad, before, 2)
    ours.Recv(got, before, 2)
    sent.Wait()
    assert agree(bits(got) == bits(data(N, "f4", before)))


@pytest.mark.parametrize("how", ["rank", "tag"])
def test_wrong_ends_of_messages(comm, ours, agree, how):
    """MPI's exceptions, at once: nobody would ever answer."""
    size, rank = comm.size, comm.rank
    before, behind = (rank - 1) % size, (rank + 1) % size
    sent, got = data(N, "f4", rank), np.zeros(N, "f4")
    end = (size + 3, 0) if how == "rank" else (before, -7)
    for call in (
        lambda: ours.Send(sent, *end),
        lambda: ours.Recv(got, *end),
        lambda: ours.Sendrecv(sent, behind, 1, got, *end),
        lambda: ours.Sendrecv(sent, *end, got, before, 1),
    ):
        with pytest.raises(MPI.Exception):
            call()
    ours.Sendrecv(sent, behind, 1, got, before, 1)
    assert agree(bits(got) == bits(data(N, "f4", before)))


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


def test_tensors_that_have_no_buffer(comm, ours):
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.zeros(N, requires_grad=True),
        torch.zeros(N, dtype=torch.complex64).conj(),
        torch.zeros(N, dtype=torch.complex64).conj().imag,
    ):
        with pytest.raises(BufferError):
            ours.Bcast(tensor)


#: Values of a message that is small, and of one that is not.
SIDES = [50, 50_000]
TENSORS = {
    "bare": (lambda t: t, 1),
    "count": (lambda t: [t, len(t)], 0.5),  # to mpi4py they are bytes
    "typed": (compcoll.typed, 1),
    "typed count": (lambda t: [compcoll.typed(t)[0], len(t) // 2, compcoll.BFLOAT16], 0.5),
}


@pytest.mark.parametrize("n", SIDES)
@pytest.mark.parametrize(("given", "share"), TENSORS.values(), ids=TENSORS)
def test_counts_of_bfloat16_mean_the_same_in_small_and_large_calls(comm, agree, given, share, n):
    torch = pytest.importorskip("torch")
    for one in comm, compcoll.Comm(comm, "lossless", min_nbytes=1000):
        tensor = torch.full((n,), float(comm.rank == 0), dtype=torch.bfloat16)
        one.Bcast(given(tensor))
        assert agree(int(tensor.sum(dtype=torch.int32)) == (n if comm.rank == 0 else n * share))


ROOTS = {
    "float": lambda size: size / 2,
    "float64": lambda size: np.float64(1),
    "array": lambda size: np.array(1),
    "int64": lambda size: np.int64(1),
    "bool": lambda size: True,
    "text": lambda size: "1",
}
ROOTED = {
    "Bcast": lambda c, a, b, root: c.Bcast(b, root),
    "Ibcast": lambda c, a, b, root: c.Ibcast(b, root=root).Wait(),
    "Gather": lambda c, a, b, root: c.Gather(a, b, root),
    "Scatter": lambda c, a, b, root: c.Scatter(b, a, root),
    "Reduce": lambda c, a, b, root: c.Reduce(b.copy(), b, root=root),
}


@pytest.mark.parametrize("n", SIDES)
@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
def test_roots_of_any_type_mean_the_same_in_small_and_large_calls(comm, agree, root, n):
    def outcome(one, call):
        mine, all_ = data(n, "i4", comm.rank), data(n * comm.size, "i4", comm.rank + 5)
        try:
            call(one, mine, all_, root(comm.size))
        except TypeError:
            return TypeError
        return bits(mine), bits(all_)

    ours = compcoll.Comm(comm, "lossless", min_nbytes=1000)
    for call in ROOTED.values():
        assert agree(outcome(ours, call) == outcome(comm, call))

"""Lower-case calls give plain mpi4py's results, with arrays compressed on the way."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from common import BF16, bits, data
from mpi4py import MPI

import compcoll

WORLD = MPI.COMM_WORLD
N = 4011
needs_two = pytest.mark.skipif(WORLD.size < 2, reason="one rank has nobody to send to")


class Table:
    """Object that pickles its columns out of band, like those of pandas and pyarrow."""

    def __init__(self, name, *columns):
        self.name, self.columns = name, columns

    def __reduce_ex__(self, protocol):
        return _table, (self.name, *map(pickle.PickleBuffer, self.columns))


def _table(name, *columns):
    return Table(name, *columns)


@dataclass
class State:
    step: int
    field: np.ndarray


def structured(seed: int) -> np.ndarray:
    array = np.zeros(N, [("x", "f4"), ("y", "f4"), ("id", "i8")])
    array["x"], array["id"] = data(N, "f4", seed), seed
    return array


def frozen(seed: int) -> np.ndarray:
    array = data(N, "f8", seed)
    array.flags.writeable = False
    return array


OBJECTS = {
    "array": lambda s: data(N, "f4", s),
    "nested": lambda s: {"a": data(N, "f8", s), "b": [data(N, "i4", s), (s, None)], s: [data(N, "c8", s)]},
    "several": lambda s: [data(N + 7 * i, "f4", s) for i in range(40)],
    "uneven": lambda s: [data(N // (1 + s), "f8", s)] * (s % 2) + [s],
    "types": lambda s: data(N, "f8" if s % 2 else "f4", s),
    "fortran": lambda s: np.asfortranarray(data(N - N % 7, "f8", s).reshape(7, -1)),
    "strided": lambda s: data(2 * N, "f8", s)[::2],
    "read-only": frozen,
    "structured": structured,
    "odd types": lambda s: [
        data(N, "f8", s).astype(">f8"),
        data(N, "f4", s) > 0,
        data(N, "f4", s).astype("U7"),
        data(N, "f8", s).astype("M8[s]"),
        data(N, BF16, s),
        data(N, "f2", s),
        np.zeros(N, "g"),  # sums of these have padding with undefined bits
    ],
    "empty": lambda s: [np.empty(0), np.empty((3, 0), "f4"), {}],
    "object array": lambda s: np.array([data(N, "f4", s), None, "x"], object),
    "masked": lambda s: np.ma.masked_array(data(N, "f8", s), data(N, "f8", s) < 0),
    "bytes": lambda s: [b"x" * N, bytearray(b"y" * N), "z" * N],
    "class": lambda s: State(s, data(N, "f4", s)),
    "table": lambda s: Table(
        "t", data(N, "f8", s), bytearray(b"abc" * N), b"abc" * N, memoryview(data(N, "i8", s))
    ),
    "same twice": lambda s: [array := data(N, "f4", s), array],
    "small": lambda s: {"rank": s, "x": [1.5] * 20},
    "nothing": lambda s: None,
    "random": lambda s: np.random.default_rng(s).integers(0, 256, N, "u1"),
}


def alike(got, want) -> bool:
    """True if two objects are equal to the bit, and equally writable."""
    if type(got) is not type(want):
        return False
    if isinstance(want, np.ma.MaskedArray):
        return alike(got.data, want.data) and alike(got.mask, want.mask)
    if isinstance(want, np.ndarray):
        same = (got.dtype, got.shape, got.flags.f_contiguous, got.flags.writeable) == (
            want.dtype,
            want.shape,
            want.flags.f_contiguous,
            want.flags.writeable,
        )
        if want.dtype == object:
            return same and all(map(alike, got.flat, want.flat))
        return same and bits(got) == bits(want)
    if isinstance(want, dict):
        return list(got) == list(want) and all(alike(got[key], want[key]) for key in want)
    if isinstance(want, (list, tuple)):
        shared = [[a is b for b in x] for x in (got, want) for a in x]
        return (
            len(got) == len(want) and shared[: len(got)] == shared[len(got) :] and all(map(alike, got, want))
        )
    if isinstance(want, (Table, State)):
        return alike(vars(got), vars(want))
    return got == want


def copied(obj):
    """The copy that mpi4py makes of an object in a message."""
    return MPI.pickle.loads(MPI.pickle.dumps(obj))


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=1000)  # objects do not use this codec


@pytest.mark.parametrize("name", OBJECTS)
def test_collectives_give_what_mpi4py_gives(comm, ours, agree, name):
    make, rank, size = OBJECTS[name], comm.rank, comm.size
    plain = MPI.Intracomm(comm)
    for root in {0, size - 1}:
        here = rank == root
        assert agree(alike(ours.bcast(make(3) if here else None, root), plain.bcast(make(3), root)))
        assert agree(alike(ours.gather(make(rank), root), plain.gather(make(rank), root)))
        items = [make(r) for r in range(size)] if here else None
        assert agree(alike(ours.scatter(items, root=root), plain.scatter(items, root=root)))
    assert agree(alike(ours.allgather(make(rank)), plain.allgather(make(rank))))
    items = [make(rank * size + r) for r in range(size)]
    assert agree(alike(ours.alltoall(iter(items)), plain.alltoall(items)))


@needs_two
@pytest.mark.parametrize("name", OBJECTS)
def test_messages_give_what_mpi4py_gives(comm, ours, agree, name):
    make, rank, size = OBJECTS[name], comm.rank, comm.size
    plain = MPI.Intracomm(comm)
    right, left = (rank + 1) % size, (rank - 1) % size
    want = plain.sendrecv(make(rank), right, 1, None, left, 1)
    assert agree(alike(ours.sendrecv(make(rank), right, 1, None, left, 1), want))
    original = make(rank)
    sent = ours.isend(original, dest=right, tag=2)
    if isinstance(original, np.ndarray) and original.flags.writeable and original.dtype != object:
        original[...] = np.zeros((), original.dtype)  # it has been pickled
    status = MPI.Status()
    got = ours.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
    assert sent.wait() is None
    assert agree(alike(got, want))
    assert agree((status.source, status.tag) == (left, 2))
    if rank % 2 == 0 and rank + 1 < size:
        ours.send(make(rank), rank + 1, 3)
    elif rank % 2:
        assert alike(ours.recv(None, rank - 1, 3), want)


@needs_two
def test_messages_of_many_kinds_keep_their_order(comm, ours, agree):
    kinds = [OBJECTS[name] for name in ("array", "small", "nested", "class", "nothing", "table")]
    if comm.rank == 0:
        requests = [ours.isend(make(i), 1, i % 2) for i, make in enumerate(kinds)]
        ours.Send(data(N, "f4", 0), 1, 0)
        MPI.Request.waitall(requests)
    ok = True
    if comm.rank == 1:
        odd = [ours.recv(tag=1) for _ in kinds[1::2]]
        even = [ours.recv(tag=0) for _ in kinds[::2]]
        got = [one for pair in zip(even, odd, strict=True) for one in pair]
        ok = all(alike(one, copied(kinds[i](i))) for i, one in enumerate(got))
        last = np.empty(N, "f4")
        ours.Recv(last, 0, 0)
    assert agree(ok)


SENDERS = {  # calls with a compressed array, and whether a rank is part of the compressed call
    "bcast": lambda ours, x: (ours.bcast(x if ours.rank == 1 else None, 1), True),
    "allgather": lambda ours, x: (ours.allgather(x)[1], True),
    "gather": lambda ours, x: ((ours.gather(x if ours.rank == 1 else 5) or [0, x])[1], ours.rank < 2),
    "scatter": lambda ours, x: (
        ours.scatter([ours.size, x, *range(2, ours.size)] if ours.rank == 0 else None),
        ours.rank < 2,
    ),
}


@needs_two
@pytest.mark.parametrize("name", SENDERS)
def test_large_arrays_are_compressed_and_exact(comm, ours, agree, name):
    x, before = np.cumsum(np.ones(1 << 18)).reshape(2, -1), ours.calls_accelerated
    got, takes_part = SENDERS[name](ours, x)
    assert agree(alike(got, x) or (name == "scatter" and ours.rank != 1))
    assert agree(ours.calls_accelerated == before + takes_part)
    report = ours.report
    assert agree(not takes_part or (report.op == name and report.error_bound == 0))
    sends = takes_part and {"bcast": ours.rank == 1, "gather": ours.rank == 1}.get(name, ours.rank == 0)
    assert agree(not sends or (report.codec == "lossless" and report.ratio > 3))


@needs_two
def test_the_error_of_a_sum_of_objects_is_not_known(comm, ours, agree):
    ours.allreduce(np.cumsum(np.full(1 << 18, 0.1)))
    assert agree(ours.report.op == "allreduce" and ours.report.error_bound is None)


@needs_two
def test_other_objects_are_bytes_which_lose_nothing(comm, ours, agree):
    x = np.cumsum(np.ones(1 << 18))
    for one in ({"x": x}, [x, x], x[:10], x[::2], x.astype(">f8"), x.astype("M8[s]")):
        assert agree(alike(ours.bcast(one), one if isinstance(one, (dict, list)) else copied(one)))
        ours.allgather(one)
        ours.gather(one)
        ours.scatter([one] * ours.size)
    assert agree(all(alike(got, {"x": x}) for got in ours.alltoall([{"x": x}] * ours.size)))
    assert agree(bits(ours.allreduce(x)) == bits(MPI.Intracomm(comm).allreduce(x)))


OPS = {
    "sum": MPI.SUM,
    "not commutative": lambda a, b: 0.7 * a + 0.3 * b,
    "in place": lambda a, b: np.add(a, b, out=a),
    "larger": lambda a, b: np.maximum(a, b),
    "to a number": lambda a, b: float(np.sum(a) - np.sum(b)),
}


@pytest.mark.parametrize("op", OPS)
def test_allreduce_has_the_order_of_mpi4py(comm, ours, agree, op):
    plain, mine = MPI.Intracomm(comm), data(N, "f4", comm.rank)
    kept = mine.copy()
    assert agree(alike(ours.allreduce(mine, OPS[op]), plain.allreduce(mine, OPS[op])))
    assert agree(bits(mine) == bits(kept))
    if op != "in place":  # objects need not all be large
        mixed = mine if comm.rank % 2 == 0 else float(comm.rank)
        assert agree(alike(ours.allreduce(mixed, OPS[op]), plain.allreduce(mixed, OPS[op])))
    assert agree(ours.allreduce(comm.rank + 1, op=MPI.MAX) == comm.size)


def test_reduce_scan_and_exscan_are_those_of_mpi4py(comm, ours, agree):
    plain, mine = MPI.Intracomm(comm), data(N, "f4", comm.rank)
    for name in ("reduce", "scan", "exscan"):
        assert agree(alike(getattr(ours, name)(mine), getattr(plain, name)(mine)))


@needs_two
def test_who_pickles_otherwise_does_so(comm, ours, agree):
    dumps, loads, protocol = pickle.dumps, pickle.loads, MPI.pickle.PROTOCOL
    array, before = data(N, "f4", 0), ours.calls_accelerated
    seen = []

    def mine(obj):
        seen.append(obj)
        return b"mine" + dumps(obj)

    try:
        MPI.pickle.__init__(mine, lambda raw: loads(bytes(raw)[4:]))
        assert agree(alike(ours.bcast(array), array))
        assert agree(any(one is array for one in seen) == (comm.rank == 0))
        # On one rank only; the others can still read its pickles.
        MPI.pickle.__init__((lambda obj: dumps(obj, 2)) if comm.rank == 0 else None)
        assert agree(alike(ours.allgather(array), [copied(array) for _ in range(comm.size)]))
        gathered = ours.gather(array)
        assert agree(gathered is None or alike(gathered, [copied(array) for _ in range(comm.size)]))
    finally:
        MPI.pickle.__init__(protocol=protocol)
    ours.allgather(array)
    assert agree(ours.calls_accelerated > before)


@needs_two
def test_errors_are_those_of_mpi4py(comm, ours, agree):
    array = data(N, "f4", 0)
    for wrong in (lambda: ours.bcast(array, comm.size), lambda: ours.send(array, comm.size)):
        with pytest.raises(MPI.Exception):
            wrong()
    with pytest.raises(ValueError, match="items"):
        ours.alltoall([array])
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        ours.allgather([array, lambda: None])
    ours.send([array], MPI.PROC_NULL)
    assert agree(alike(ours.bcast(array), array))


@needs_two
def test_communicators_made_from_others(comm, ours, agree):
    array = data(N, "f4", comm.rank)
    for made in (ours.Dup(), ours.Split(0, -comm.rank)):
        worlds = made.allgather(comm.rank)
        assert agree(alike(made.allgather(array), [data(N, "f4", rank) for rank in worlds]))
        peer, back = (made.rank + 1) % made.size, (made.rank - 1) % made.size
        assert agree(alike(made.sendrecv([array], peer, source=back), [data(N, "f4", worlds[back])]))
        made.Free()


@needs_two
@pytest.mark.parametrize("name", ["allreduce", "reduce", "scan", "exscan"])
def test_the_first_reduction_while_a_message_is_on_its_way(comm, agree, name):
    """A first reduction completes while a message is in flight.

    mpi4py duplicates the communicator with the GIL held, which the rest of the message needs.
    """
    c = compcoll.Comm(comm.Dup(), "lossless", min_nbytes=1000)
    sent, received = np.arange(400_000.0), np.zeros(400_000)
    request = c.Irecv(received, 1, 5) if c.rank == 0 else None
    if c.rank == 1:
        c.Send(sent, 0, 5)
    getattr(c, name)(1)
    if request is not None:
        request.Wait()
    c.Free()
    assert agree(comm.rank != 0 or (received == sent).all())


def _completed(request, how, status):
    """Object that a receive returns, in one of mpi4py's ways."""
    if how == "wait":
        return request.wait(status)
    if how == "test":
        while not (found := request.test(status))[0]:
            pass
        return found[1]
    if how == "waitall":
        return MPI.Request.waitall([request], [status])[0]
    return MPI.Request.waitany([request], status)[1]


@needs_two
@pytest.mark.parametrize("how", ["wait", "test", "waitall", "waitany"])
@pytest.mark.parametrize("posted", ["irecv", "mprobe"])
@pytest.mark.parametrize("name", ["send", "isend"])
def test_a_send_ends_once_a_receive_is_posted(comm, ours, agree, name, posted, how):
    """Like MPI's, a send completes once its receive is posted, whatever the receiver does before ``wait``."""
    sent, right = OBJECTS["several"](0), True
    if comm.rank == 0:
        request = getattr(ours, name)(sent, 1, 3)
        if request is not None:
            request.wait()
        sent[0][:] = 0
        ours.Send(data(N, "i8", 1), 1, 4)
    elif comm.rank == 1:
        got, status = np.empty(N, "i8"), MPI.Status()
        request = ours.irecv(1 << 23, 0, 3) if posted == "irecv" else ours.mprobe(0, 3).irecv()
        ours.Recv(got, 0, 4)
        right = bits(got) == bits(data(N, "i8", 1))
        right &= alike(_completed(request, how, status), OBJECTS["several"](0))
        right &= (status.source, status.tag) == (0, 3)
    assert agree(right)


@needs_two
def test_receives_of_objects_that_are_given_up(comm, ours, agree):
    """A cancelled receive of an object takes no message, and a freed one still receives."""
    status, ok = MPI.Status(), True
    if comm.rank == 1:
        request = ours.irecv(1 << 23, 0, 3)
        request.Cancel()
        request.Wait(status)
        ok = status.Is_cancelled()
        ours.irecv(freed := bytearray(1 << 23), 0, 3).Free()
    comm.Barrier()
    if comm.rank == 0:
        for number in range(2):
            ours.send(data(N, "f4", number), 1, 3)
    elif comm.rank == 1:
        ok &= alike(ours.irecv(1 << 23, 0, 3).wait(), data(N, "f4", 1))
        ok &= alike(pickle.loads(freed), data(N, "f4", 0))
    assert agree(ok)


@needs_two
@pytest.mark.parametrize("late", [False, True])
def test_a_communicator_is_freed_before_its_objects_are_unpickled(comm, ours, agree, late):
    """A received object can be unpickled after its communicator is freed, before or after it arrived."""
    sent, made = OBJECTS["several"](0), compcoll.Comm(comm.Dup(), "lossless", min_nbytes=1000)
    request = made.irecv(1 << 23, 0, 3) if comm.rank == 1 else None
    if comm.rank == 0 and not late:
        made.send(sent, 1, 3)
    if comm.rank == 1 and late:
        made.Free()
        comm.Send(np.zeros(1), 0, 5)  # through another communicator
    if comm.rank == 0 and late:
        comm.Recv(np.zeros(1), 1, 5)
        request = made.isend(sent, 1, 3)
    if made:
        made.Free()
    compcoll.Comm(comm.Dup()).Free()  # frees communicators that were left
    got = request.wait() if request is not None else None
    assert agree(comm.rank != 1 or alike(got, OBJECTS["several"](0)))


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")
def test_arrays_beside_other_objects_are_one_call(comm, agree):
    """An array beside other objects is one compressed call; the other objects go with mpi4py's."""
    fresh = comm.Dup()
    ours, x = compcoll.Comm(fresh, "lossless", min_nbytes=1000), np.cumsum(np.ones(200_000))
    got = ours.allgather(x if comm.rank else [x])
    assert agree(all((np.asarray(one).ravel() == x).all() for one in got))
    assert agree(ours.calls_accelerated == 1)
    fresh.Free()

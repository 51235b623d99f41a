"""The layer below mpi4py: methods in use, code that a repeated call runs, and resources after the end."""

import gc
import os
import sys
import threading
import time
from itertools import chain
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from common import bits, data, few_or_many, offsets
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine
from compcoll.operations import OPERATIONS

many = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")
N = 1009
IS_MPI_4 = MPI.Get_version() >= (4, 0)


@pytest.fixture
def ours(comm):
    made = compcoll.Comm(comm, "lossless", min_nbytes=1000)
    yield made
    if made != MPI.COMM_NULL:
        made.Free()


# -- methods


def whole(n: int, seed: int) -> np.ndarray:
    """Random whole numbers, whose sums are exact in any order."""
    return np.round(50 * data(n, "f8", seed))


@pytest.mark.parametrize("cls", [compcoll.Comm, compcoll.Cartcomm, compcoll.Distgraphcomm])
def test_methods_are_mpi4pys(cls):
    """Methods of the wrappers are mpi4py's own, which therefore parse arguments and buffers."""
    messages = "Send", "Ssend", "Isend", "Send_init", "Recv", "Irecv", "Recv_init", "Sendrecv", "Mprobe"
    for method in chain(messages, *(one.forms for one in OPERATIONS.values())):
        if hasattr(MPI.Intracomm, method):  # others belong to topologies
            assert getattr(cls, method) is getattr(MPI.Intracomm, method)


# -- repeated calls


def python_in(call) -> list[str]:
    """Python functions of compcoll that this thread runs in a call."""
    seen = []

    def note(frame, event, _):
        if event == "call" and "/compcoll/" in frame.f_code.co_filename:
            seen.append(frame.f_code.co_qualname)

    gc.collect()  # finalizers of communicators run Python code
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


def vector(n: int):
    return MPI.DOUBLE.Create_vector(n, 1, 1).Commit()


def absolute(array):
    """Datatype with the absolute addresses of every second value of an array."""
    n, at = array.size // 2, MPI.Get_address(array)
    return MPI.DOUBLE.Create_hindexed([1] * n, [at + 16 * i for i in range(n)]).Commit()


def tensor(array):
    return pytest.importorskip("torch").from_numpy(array)


def v(array, size: int) -> list:
    counts = [array.size // size] * size
    return [array, counts, offsets(counts), MPI.DOUBLE]


#: Method, arguments for a send buffer and a receive buffer, and datatypes to free, by the form of buffers.
BUFFERS = {
    "array": lambda a, b, size: ("alltoall", [a, b], []),
    "typed": lambda a, b, size: ("alltoall", [[a, MPI.DOUBLE], [b, "d"]], []),
    "counted": lambda a, b, size: (
        "alltoall",
        [[a, a.size // size, MPI.DOUBLE], [b, b.size // size, "d"]],
        [],
    ),
    "vectors": lambda a, b, size: ("alltoallv", [v(a, size), v(b, size)], []),
    "in place": lambda a, b, size: ("alltoallv", [MPI.IN_PLACE, v(b, size)], []),
    "derived": lambda a, b, size: ("bcast", [[b, 1, kind := vector(b.size)]], [kind]),
    "absolute": lambda a, b, size: ("bcast", [[MPI.BOTTOM, 1, kind := absolute(b)]], [kind]),
    "memoryview": lambda a, b, size: ("allreduce", [memoryview(a), memoryview(b)], []),
    "tensor": lambda a, b, size: ("allgather", [tensor(a[: a.size // size]), tensor(b)], []),
    "shaped": lambda a, b, size: ("alltoall", [compcoll.shaped(x.reshape(size, -1, 2)) for x in (a, b)], []),
}


@many
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.exhaustive] * (form == "tensor")) for form in BUFFERS]
)
def test_a_repeated_call_runs_no_python_of_compcoll(comm, ours, agree, form):
    """Repeated calls in each form run no Python code of compcoll, with other values and other memory too."""
    size, rank = comm.size, comm.rank
    if form == "in place" and MPI.get_vendor()[0] == "Open MPI":
        pytest.skip("Open MPI is given nonblocking calls in place")
    both = [[whole(N * 2 * size, rank + i) for i in range(2)] for _ in range(2)]
    calls = [BUFFERS[form](a, b, size) for a, b in both]
    name = calls[0][0]
    for method in (name.capitalize(), f"I{name}", f"{name.capitalize()}_init"):
        requests = []

        def make(args, method=method, requests=requests):
            request = getattr(ours, method)(*args)
            if request is None:
                return
            if method.endswith("_init"):
                request.Start()
                requests.append(request)
            request.Wait()

        # Each absolute type is one more layout.
        for _, args, _ in calls:
            make(args)
        decided, accelerated = _engine.prepared_count(), ours.calls_accelerated
        seen = python_in(lambda make=make: [make(calls[i % 2][1]) for i in range(5)])
        assert agree(not seen), seen
        assert agree(_engine.prepared_count() == decided)
        assert agree(ours.calls_accelerated == accelerated + 5)
        for request in requests:
            request.Free()
    for _, _, kinds in calls:
        for kind in kinds:
            kind.Free()


@many
@pytest.mark.parametrize("codec", ["none", "auto"])
def test_messages_that_are_never_compressed_are_mpis(comm, agree, codec):
    """Messages that are never compressed, even large ones, run no Python code and are received by MPI."""
    c = compcoll.Comm(comm, codec)
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sent, got = whole(200_000, comm.rank), np.zeros(200_000)

    def exchange():
        MPI.Request.Waitall([c.Irecv(got, before), c.Isend(sent, behind)])
        c.Sendrecv(sent, behind, 0, got, before)

    assert agree(not (seen := python_in(exchange))), seen
    assert agree("uncompressed" not in c.report.reason and bits(got) == bits(whole(200_000, before)))
    c.Free()


@many
def test_a_start_runs_no_python_of_compcoll(comm, ours, agree):
    a, b = whole(N * comm.size, comm.rank), np.zeros(N * comm.size)
    request = ours.Alltoall_init(a, b)
    want = np.zeros_like(b)
    for k in range(3):
        a[:] = whole(a.size, comm.rank + 5 * k)
        assert agree(not python_in(lambda: (request.Start(), request.Wait())))
        comm.Alltoall(a, want)
        assert agree(bits(b) == bits(want))
    request.Free()


# -- records


@many
def test_small_calls_that_are_alike_are_one_record(comm, ours, agree):
    """Equal small calls become one record if no consumer asks where they were made."""
    small, large, taken = np.zeros(8), np.ones(N), []
    _engine.record_calls(lambda: taken.extend(_engine.take_records()))
    start = time.perf_counter()
    try:
        for _ in range(700):
            ours.Allreduce(MPI.IN_PLACE, small)
            ours.Bcast(small[:4])
            ours.Bcast(small)
        for _ in range(2):
            ours.Allreduce(MPI.IN_PLACE, large)
    finally:
        _engine.end_records()
    taken += _engine.take_records()
    seconds = time.perf_counter() - start
    kinds = [(one[0], one[3], one[9], one[13]) for one in taken]  # name, bytes, accelerated, calls
    assert agree(kinds[:2] == [("Allreduce", 64, False, 700), ("Bcast", 32, False, 700)])
    assert agree(kinds[2:] == [("Bcast", 64, False, 700), *[("Allreduce", 8 * N, True, 1)] * 2])
    assert agree(0 < sum(one[6] - one[5] for one in taken) < seconds)


# -- marked communicators


def idup(comm, folder):
    new, request = comm.Idup()
    request.Wait()
    return new


def opened(comm, folder):
    return MPI.File.Open(
        comm, str(folder / "file"), MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
    )


UNMARKED = {
    "Idup": (idup, lambda new: new.Free()),
    "File": (opened, lambda new: new.Close()),
    "Win": (lambda comm, _: MPI.Win.Create(np.zeros(4), 8, comm=comm), lambda new: new.Free()),
    "objects": (lambda comm, _: comm.allreduce([comm.rank]), None),
    "user's sum": (lambda comm, _: comm.allreduce({comm.rank}, lambda a, b: a | b), None),
    "scan": (lambda comm, _: comm.scan((comm.rank,)), None),
}


@pytest.mark.parametrize("make", UNMARKED)
@pytest.mark.parametrize("own", [True, False], ids=["Comm", "mpi4py's"])
def test_what_mpi_duplicates_is_not_marked(comm, ours, agree, tmp_path, make, own):
    """Communicators that MPI itself duplicates carry no mark, because the layer does not know them."""
    begin, end = UNMARKED[make]
    folder = Path(comm.bcast(str(tmp_path)))
    before = _engine.marked_count()
    try:
        new = begin(ours if own else MPI.Intracomm(ours), folder)
    except (NotImplementedError, MPI.Exception) as problem:
        pytest.skip(f"this MPI cannot: {problem}")
    assert agree(_engine.marked_count() == before)
    assert agree(not isinstance(new, MPI.Comm) or _engine.number_of(new) == 0)
    if end is not None:
        end(new)
    assert agree(_engine.marked_count() == before)
    got = whole(N, comm.rank)
    ours.Bcast(got)
    assert agree(bits(got) == bits(whole(N, 0)) and ours.report.accelerated == (comm.size > 1))


# -- resources


def resources() -> dict[str, int]:
    """Communicators, threads, open files and kept memory of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return {
        "marked": _engine.marked_count(),
        "Python threads": threading.active_count(),
        "threads": int(status.partition("Threads:")[2].split()[0]),
        "files": len(os.listdir("/proc/self/fd")),
        "kept": _engine.held_count(),
    }


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def nothing_grows(agree):
    """``nothing_grows(act, n)`` makes ``n`` calls ``act(i)``, of which the last half must leave nothing."""

    def check(act, n: int, room: int = 4 << 20) -> None:
        for i in range(n // 2):
            act(i)
        before, nbytes = resources(), resident_nbytes()
        for i in range(n // 2, n):
            act(i)
        after, grown = resources(), resident_nbytes() - nbytes
        assert agree(after == before), (before, after)
        assert agree(grown < room), grown

    return check


@few_or_many(150, 3000)
def test_communicators_of_the_same_settings_leave_nothing(comm, nothing_grows, count):
    """Communicators that are freed leave nothing, also beside one with equal settings."""
    for kept in (None, compcoll.Comm(comm, "lossless")):
        nothing_grows(lambda i: compcoll.Comm(comm, "lossless").Free(), count)
        if kept is not None:
            kept.Free()


@few_or_many(60, 1000)
def test_communicators_of_other_settings_leave_nothing(comm, nothing_grows, count):
    """Communicators of other settings leave nothing, although each has a cached decision of a call."""
    got = whole(N, comm.rank)

    def act(i: int) -> None:
        new = compcoll.Comm(comm, "lossless", min_nbytes=i)
        new.Bcast(got)
        new.Ibcast(got).Wait()
        new.Free()
        assert new == MPI.COMM_NULL

    nothing_grows(act, count)


@few_or_many(40, 600)
def test_origins_that_go_first_leave_nothing(comm, nothing_grows, count):
    """Freed origins leave nothing: wrappers, and the wrappers of these, are freed with them."""
    got = whole(N, comm.rank)

    def act(i: int) -> None:
        origin = comm.Dup()
        first = compcoll.Comm(origin, "lossless", min_nbytes=1000)
        second, third = compcoll.Comm(first, "raw", min_nbytes=10), first.using("none")
        second.Bcast(got)
        origin.Free()
        assert first == second == third == MPI.COMM_NULL

    nothing_grows(act, count)


@few_or_many(200, 1000)
def test_persistent_requests_leave_nothing(comm, ours, nothing_grows, count):
    a, b = whole(N * comm.size, comm.rank), np.zeros(N * comm.size)

    def act(i: int) -> None:
        requests = [ours.Alltoall_init(a, b), ours.Bcast_init(a)]
        for request in requests[: i % 3]:
            request.Start()
            request.Wait()
        for request in requests:
            request.Free()

    nothing_grows(act, count)


# -- datatypes


def layout(rng, size: int):
    """Datatype of doubles for one of ``size`` blocks, and the places of these among the 600 of a block."""
    kind = rng.integers(6)
    n = int(rng.integers(100, 200))
    if kind == 0:
        made, at = MPI.DOUBLE.Create_contiguous(n), np.arange(n)
    elif kind == 1:
        made, at = MPI.DOUBLE.Create_vector(n, 1, 3), 3 * np.arange(n)
    elif kind == 2:
        at = np.sort(rng.permutation(600)[:n])
        made = MPI.DOUBLE.Create_indexed_block(1, at.tolist())
    elif kind == 3:
        at = rng.permutation(600)[:n]
        made = MPI.DOUBLE.Create_hindexed([1] * n, (8 * at).tolist())
    elif kind == 4:
        made = MPI.DOUBLE.Create_subarray([20, 30], [10, n // 10], [3, 1])
        at = (30 * np.arange(3, 13)[:, None] + np.arange(1, n // 10 + 1)).ravel()
    else:
        made, at = MPI.DOUBLE.Create_vector(n // 2, 2, 5), (5 * np.arange(n // 2)[:, None] + [0, 1]).ravel()
    block = made.Create_resized(0, 4800)
    made.Free()
    return block.Commit(), at


@pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"], ids=["blocking", "nonblocking", "persistent"])
def test_handles_that_are_given_out_again_are_other_datatypes(comm, agree, form):
    """A datatype is not mistaken for a freed one with its handle.

    Each type is freed before its call ends and before the next type is made.
    """
    ours, size = compcoll.Comm(comm, "lossless", min_nbytes=500), comm.size
    rng, handles, accelerated = np.random.default_rng(3), [], 0
    a = whole(600 * size, comm.rank).reshape(size, 600)
    theirs = np.stack([whole(600 * size, r).reshape(size, 600)[comm.rank] for r in range(size)])
    for i in range(50):
        kind, at = layout(rng, size)
        handles.append(MPI._handleof(kind))
        name, got = ("alltoall", "bcast")[i % 2], np.full((size, 600), -1.0)
        want = got.copy()
        if name == "alltoall":
            want[:, at] = theirs[:, at]
            args = [a, 1, kind], [got, 1, kind]
        else:
            got[:] = a
            want = a.copy()
            want[0][at] = whole(600 * size, 0)[:600][at]
            args = ([got, 1, kind],)
        method = form.format(name)
        request = getattr(ours, method if method[0] == "I" else method.capitalize())(*args)
        kind.Free()
        if form.endswith("_init"):
            request.Start()
        if request is not None:
            request.Wait()
        if form.endswith("_init"):
            request.Free()
        accelerated += ours.report.accelerated
        assert agree(bits(got) == bits(want)), (i, name)
    assert agree(len(set(handles)) < 50 and accelerated == 50 * (size > 1))
    ours.Free()


# -- sums of floats that MPI lacks

FLOATS = {
    "FLOAT8_E4M3": ml_dtypes.float8_e4m3fn,
    "FLOAT8_E5M2": ml_dtypes.float8_e5m2,
    "BFLOAT16": ml_dtypes.bfloat16,
    "FLOAT16": np.float16,
}


@pytest.mark.parametrize("n", [100, 5003], ids=["small", "large"])
@pytest.mark.parametrize("name", FLOATS)
def test_sums_of_floats_that_mpi_lacks(comm, agree, name, n):
    """Sums are those of 32-bit floats, rounded after each addition, below and above ``min_nbytes``."""
    ours, dtype, size = compcoll.Comm(comm, "lossless", min_nbytes=1000), np.dtype(FLOATS[name]), comm.size
    parts = [(np.random.default_rng([r, n]).standard_normal(n) * 4).astype(dtype) for r in range(size)]
    mine, wide = parts[comm.rank], np.stack([part.astype("f4") for part in parts])
    want, eps = wide.sum(0), float(ml_dtypes.finfo(dtype).eps)
    least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    room = size * (eps * np.abs(wide).sum(0) + least)

    def right(got) -> bool:
        return bool((np.abs(got.astype("f4") - want) <= room).all())

    kind = getattr(compcoll, name)
    got = np.zeros(n, dtype)
    ours.Allreduce(compcoll.typed(mine), compcoll.typed(got), MPI.SUM)
    assert agree(right(got) and len(set(comm.allgather(bits(got)))) == 1)
    large = size > 1 and n * dtype.itemsize // size >= 1000 and dtype.itemsize > 1
    assert agree(ours.report.accelerated == large), ours.report
    got = mine.copy()
    ours.Iallreduce(MPI.IN_PLACE, compcoll.typed(got)).Wait()
    assert agree(right(got))
    got, is_root = np.zeros(n, dtype), comm.rank == size - 1
    pattern = mine.view(f"u{dtype.itemsize}")
    ours.Reduce([pattern, kind], compcoll.typed(got) if is_root else None, root=size - 1)
    assert agree(not is_root or right(got))
    assert agree(bits(mine) == bits(parts[comm.rank]))
    ours.Free()

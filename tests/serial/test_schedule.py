"""Every algorithm's schedules complete on many ranks, and every value arrives."""

import math
from itertools import accumulate, chain, pairwise

import numpy as np
import pytest
from interpreter import Stuck, interpret

from compcoll.algorithms.catalog import program
from compcoll.algorithms.cut import cut
from compcoll.algorithms.groups import radices
from compcoll.operations import ALGORITHMS
from compcoll.schedule.cache import OPS_OF_SCHEDULE, Cache
from compcoll.schedule.graph import Kind
from compcoll.schedule.trace import Tracer, trace

SIZES = [1, 2, 3, 5, 8]
KINDS = ["one", "uneven", "chunks", "empty"]
CHUNK = 1024
SUMS = ALGORITHMS["Reduce_scatter"]

#: Placements on nodes: in order, round robin, uneven, single ranks, and arbitrary names.
PLACEMENTS = [
    (0, 0, 1, 1),
    (0, 1, 0, 1),
    (0, 0, 1),
    (0, 1, 1, 1),
    (5, 5, 5, 2, 2, 9),
    (0, 1, 2, 0, 1, 2, 0, 1, 0),
    (0,) * 4 + (1,) * 4,
    tuple(range(3)) * 2,
]
#: A number of ranks on one level, or the node of each rank on two.
where = pytest.mark.parametrize("where", [*SIZES, *PLACEMENTS], ids=lambda w: str(w).replace(", ", ""))
kinds = pytest.mark.parametrize(
    ("kind", "in_place"),
    [("one", True), ("uneven", False), ("chunks", False), ("chunks", True), ("empty", False)],
)
cases = pytest.mark.parametrize(("size", "kind"), [(size, kind) for size in SIZES for kind in KINDS])


def data(rank: int, n: int, salt: int = 0) -> np.ndarray:
    """Small integers that depend on their origin; their sums are exact in any order."""
    return ((np.arange(n) * 7 + rank * 31 + salt * 17) % 251).astype(np.int64)


def parts(array: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    """Consecutive blocks of the given lengths."""
    return [array[a:b] for a, b in pairwise([0, *accumulate(counts)])]


def counts_of(kind: str, size: int) -> list[int]:
    """Block lengths: equal, uneven with empty ones, several chunks, nothing at all."""
    return {
        "one": [1] * size,
        "uneven": [(rank * 5) % 7 for rank in range(size)],
        "chunks": [3 * CHUNK + 11 * rank for rank in range(size)],
        "empty": [0] * size,
    }[kind]


def size_of(where) -> int:
    return where if isinstance(where, int) else len(where)


def traced(op: str, algorithm: str, where, sends: list, recvs: list, root: int = 0, **options) -> list:
    """Schedules of all ranks of a collective: each rank's blocks to send, and those to receive."""
    two_levels = {} if isinstance(where, int) else {"nodes": where}
    return [
        trace(
            program(op, algorithm, root, 1 + len(two_levels)),
            rank,
            size_of(where),
            list(map(len, sends[rank])),
            list(map(len, recvs[rank])),
            CHUNK,
            **two_levels,
            **options,
        )
        for rank in range(size_of(where))
    ]


def run(
    op: str, algorithm: str, where, sends: list, recvs: list, root: int = 0, seed: int = 0, **options
) -> None:
    """Run a collective in the interpreter; one of two levels in three random orders."""
    schedules = traced(op, algorithm, where, sends, recvs, root, **options)
    blocks = [[*s, *r] for s, r in zip(sends, recvs, strict=True)]
    before = [[block.copy() for block in rank] for rank in blocks]
    for each in range(seed, seed + (1 if isinstance(where, int) else 3)):
        for block, old in zip(chain(*blocks), chain(*before), strict=True):
            block[:] = old
        interpret(schedules, blocks, each)


@cases
def test_alltoall(size, kind):
    counts = counts_of(kind, size)
    sends = [[data(r, counts[(r + p) % size], p) for p in range(size)] for r in range(size)]
    recvs = [[np.zeros(counts[(r + p) % size], np.int64) for p in range(size)] for r in range(size)]
    run("Alltoallv", "pairwise", size, sends, recvs)
    for r in range(size):
        for p in range(size):
            np.testing.assert_array_equal(recvs[r][p], sends[p][r])


@where
@pytest.mark.parametrize("n", [0, 1, 3 * CHUNK + 70])
def test_alltoall_of_equal_blocks(where, n):
    size = size_of(where)
    sends = [parts(data(r, n * size), [n] * size) for r in range(size)]
    recvs = [[np.zeros(n, np.int64) for _ in range(size)] for _ in range(size)]
    run("Alltoall", "pairwise", where, sends, recvs)
    for r, blocks in enumerate(recvs):
        for p, block in enumerate(blocks):
            np.testing.assert_array_equal(block, sends[p][r])


@where
@kinds
@pytest.mark.parametrize("algorithm", ALGORITHMS["Allgatherv"])
def test_allgather(where, kind, algorithm, in_place):
    size = size_of(where)
    n_peers = size if where == size else len(set(where))
    if algorithm == "recursive_doubling" and n_peers & (n_peers - 1):
        if where != size:
            pytest.skip("nodes are no power of two")
        with pytest.raises(ValueError, match=f"power of two of ranks, not {size}"):
            run("Allgather", algorithm, size, [[data(0, 1)]] * size, [[data(0, 1)] * size] * size)
        return
    counts = counts_of(kind, size)
    expected = np.concatenate([data(r, n) for r, n in enumerate(counts)])
    wholes = [np.zeros(sum(counts), np.int64) for _ in range(size)]
    recvs = [parts(whole, counts) for whole in wholes]
    sends = [[data(r, n)] for r, n in enumerate(counts)]
    if in_place:
        for r, send in enumerate(sends):
            recvs[r][r][:] = send[0]
        sends = [[]] * size
    run("Allgatherv", algorithm, where, sends, recvs)
    for whole in wholes:
        np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("where", [*SIZES, 33, *PLACEMENTS], ids=str)
@pytest.mark.parametrize("n", [0, 1, 20 * CHUNK + 70])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Bcast"])
def test_bcast(where, n, algorithm):
    size = size_of(where)
    for root in range(size) if n == 1 and where != size else {0, size // 2, size - 1}:
        blocks = [data(r, n) for r in range(size)]
        expected = blocks[root].copy()
        run("Bcast", algorithm, where, [[]] * size, [[block] for block in blocks], root)
        for block in blocks:
            np.testing.assert_array_equal(block, expected)


@where
@kinds
@pytest.mark.parametrize("algorithm", SUMS)
def test_reduce_scatter(where, kind, algorithm, in_place):
    size = size_of(where)
    counts = counts_of(kind, size)
    wholes = [data(r, sum(counts)) for r in range(size)]
    sends = [parts(whole, counts) for whole in wholes]
    expected = parts(sum(wholes), counts)
    recvs = [np.zeros(n, np.int64) for n in counts]
    blocks = [[recv] for recv in recvs]
    if in_place:
        recvs = [whole[: counts[r]] for r, whole in enumerate(wholes)]
        sends, blocks = [[]] * size, [[*b, r] for b, r in zip(sends, recvs, strict=True)]
    run("Reduce_scatter", algorithm, where, sends, blocks, widens=in_place)
    for recv, sums in zip(recvs, expected, strict=True):
        np.testing.assert_array_equal(recv, sums)


#: Elements of a sum, and whether it is in place, its codec widens, and values inside a node stay exact.
SUMS_OF_ALL = [
    (0, False, False, True),
    (1, True, False, False),
    (300, False, True, True),
    (300, True, True, False),
    (20 * CHUNK + 70, False, False, True),
    (20 * CHUNK + 70, True, True, False),
]


@where
@pytest.mark.parametrize(("n", "in_place", "widens", "inside_exact"), SUMS_OF_ALL)
@pytest.mark.parametrize("algorithm", ALGORITHMS["Allreduce"])
def test_allreduce(where, algorithm, n, in_place, widens, inside_exact):
    size = size_of(where)
    sends = [data(r, n) for r in range(size)]
    expected = sum(sends)
    recvs = sends if in_place else [np.zeros(n, np.int64) for _ in range(size)]
    options = {"widens": widens, "inside_exact": inside_exact and where != size}
    run(
        "Allreduce",
        algorithm,
        where,
        [[] if in_place else [s] for s in sends],
        [[r] for r in recvs],
        **options,
    )
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


@where
@pytest.mark.parametrize(
    ("n", "in_place"), [(0, False), (1, True), (9 * CHUNK + 70, False), (9 * CHUNK + 70, True)]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS["Reduce"])
def test_reduce(where, algorithm, n, in_place):
    size = size_of(where)
    for root in range(size) if n == 1 and where != size else {size // 2, size - 1}:
        sends = [data(r, n) for r in range(size)]
        expected = sum(sends)
        recv = sends[root] if in_place else np.zeros(n, np.int64)
        run(
            "Reduce",
            algorithm,
            where,
            [[] if in_place and r == root else [s] for r, s in enumerate(sends)],
            [[recv] if r == root else [] for r in range(size)],
            root,
            widens=where == size,
        )
        np.testing.assert_array_equal(recv, expected)


@pytest.mark.parametrize("size", [6, 7, 12, 16, 30])
@pytest.mark.parametrize("n", [2_000, 60_000])
def test_halving_in_groups(size, n):
    """Sums are right in groups as small as the factors of the number of ranks allow."""
    sends = [data(r, n) for r in range(size)]
    expected = sum(sends)
    recvs = [np.zeros(n, np.int64) for _ in range(size)]
    run("Allreduce", "recursive_halving", size, [[s] for s in sends], [[r] for r in recvs])
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)
    for root in {0, size // 2, size - 1}:
        recv = np.zeros(n, np.int64)
        gets = [[recv] if r == root else [] for r in range(size)]
        run("Reduce", "recursive_halving", size, [[s] for s in sends], gets, root)
        np.testing.assert_array_equal(recv, expected)
    assert math.prod(radices(size)) == size
    assert {6: [3, 2], 7: [7], 12: [4, 3], 16: [4, 4], 30: [5, 3, 2]}[size] == radices(size)


@cases
@pytest.mark.parametrize("in_place", [False, True])
def test_gather_and_scatter(size, kind, in_place):
    counts, root = counts_of(kind, size), size - 1
    whole, values = np.zeros(sum(counts), np.int64), [data(r, counts[r]) for r in range(size)]
    at_root = [parts(whole, counts) if r == root else [] for r in range(size)]
    if in_place:
        at_root[root][root][:] = values[root]
    run(
        "Gatherv",
        "linear",
        size,
        [[] if in_place and r == root else [v] for r, v in enumerate(values)],
        at_root,
        root,
    )
    np.testing.assert_array_equal(whole, np.concatenate(values))
    mine = [np.zeros(n, np.int64) for n in counts]
    recvs = [[] if in_place and r == root else [m] for r, m in enumerate(mine)]
    run("Scatterv", "linear", size, at_root, recvs, root)
    for rank, block in enumerate(mine):
        if not in_place or rank != root:
            np.testing.assert_array_equal(block, values[rank])


def test_lost_message_is_noticed():
    async def nobody_receives(rt: Tracer, send: list, recv: list) -> None:
        await rt.send(await rt.encode(send[0]), 1 - rt.rank)

    with pytest.raises(Stuck, match="2 messages were never received"):
        interpret([trace(nobody_receives, r, 2, [1], [], CHUNK) for r in range(2)], [[data(0, 1)]] * 2)


def test_deadlock_is_noticed():
    async def nobody_sends(rt: Tracer, send: list, recv: list) -> None:
        await rt.recv(1 - rt.rank, recv[0])

    with pytest.raises(Stuck, match=r"ranks \[0, 1\] wait"):
        interpret([trace(nobody_sends, r, 2, [], [1], CHUNK) for r in range(2)], [[data(0, 1)]] * 2)


def test_windows_bound_what_is_under_way():
    """A sender has at most ``window`` frames, and waits for the oldest before it encodes another."""
    schedule = trace(program("Send", "stream"), 0, 2, [40 * CHUNK], [], CHUNK, window=3)
    dependencies = schedule.dependencies()
    encodes = np.flatnonzero(schedule.ops["kind"] == Kind.ENCODE).tolist()
    sends = np.flatnonzero(schedule.ops["kind"] == Kind.SEND).tolist()
    assert len(encodes) == len(sends) == 40
    assert [not dependencies[i] for i in encodes] == [True] * 3 + [False] * 37
    for nth in range(3, 40):
        assert sends[nth - 3] in dependencies[encodes[nth]]


def test_dependencies_stay_few():
    """An operation has few dependencies, however long its message is."""
    for op in ("Alltoall", "Allreduce", "Allgather"):
        n = 300 * CHUNK
        sends, recvs = {"Alltoall": ([n] * 3, [n] * 3), "Allreduce": ([n], [n])}.get(op, ([n], [n] * 3))
        schedule = trace(program(op, ALGORITHMS[op][0]), 1, 3, sends, recvs, CHUNK)
        assert max(schedule.ops["n_deps"]) < 40, op
        assert len(schedule.successors) < 8 * len(schedule), op


def test_text():
    schedule = trace(program("Allreduce", "direct"), 0, 2, [100], [100], CHUNK, widens=True)
    text = str(schedule)
    assert text.startswith("rank 0 of 2: 11 operations, 4 frames")
    assert "recv buffer 0[0:64] frame 0 from rank 1, tag 0" in text
    assert "decode_add scratch 0[0:64] frame 0" in text
    assert "-> buffer 1[0:64]" in text


def test_unknown_algorithm():
    with pytest.raises(ValueError, match="Alltoall has no algorithm 'ring'; it has pairwise"):
        program("Alltoall", "ring")


def test_cut_covers_a_block():
    rt = list(range(1000))
    assert [len(part) for part in cut(rt, 3)] == [384, 384, 232]
    assert [i for part in cut(rt, 7) for i in part] == rt


def test_cache_is_bounded():
    cache, made = Cache(most_ops=30 + 2 * OPS_OF_SCHEDULE), []

    def make(n: int):
        made.append(n)
        return trace(program("Send", "stream"), 0, 2, [n * CHUNK], [], CHUNK)

    first = cache.get("five", lambda: make(5))  # of 10 operations
    assert cache.get("five", lambda: make(5)) is first
    cache.get("six", lambda: make(6))
    assert (len(cache), cache.n_ops - 2 * OPS_OF_SCHEDULE) == (2, 22)
    cache.get("five", lambda: make(5))  # so that the other one is the oldest
    cache.get("eight", lambda: make(8))
    assert (len(cache), cache.n_ops - 2 * OPS_OF_SCHEDULE, made) == (2, 26, [5, 6, 8])
    cache.get("six", lambda: make(6))
    assert made == [5, 6, 8, 6]
    cache.get("huge", lambda: make(100))
    assert (len(cache), cache.n_ops) == (1, 200 + OPS_OF_SCHEDULE)

"""Every algorithm as a schedule, on many ranks: it ends, and every value arrives."""

import math
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

cases = pytest.mark.parametrize(("size", "kind"), [(size, kind) for size in SIZES for kind in KINDS])


def data(rank: int, n: int, salt: int = 0) -> np.ndarray:
    """Values that name their origin; small integers, so that sums are exact in any order."""
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


def run(op: str, algorithm: str, sends: list, recvs: list, root: int = 0, seed: int = 0, **options) -> None:
    """Carry out a collective: each rank's blocks to send, and those to receive."""
    size = len(sends)
    schedules = [
        trace(
            program(op, algorithm, root),
            rank,
            size,
            list(map(len, sends[rank])),
            list(map(len, recvs[rank])),
            CHUNK,
            **options,
        )
        for rank in range(size)
    ]
    interpret(schedules, [[*s, *r] for s, r in zip(sends, recvs, strict=True)], seed)


@cases
def test_alltoall(size, kind):
    counts = counts_of(kind, size)
    sends = [[data(r, counts[(r + p) % size], p) for p in range(size)] for r in range(size)]
    recvs = [[np.zeros(counts[(r + p) % size], np.int64) for p in range(size)] for r in range(size)]
    run("Alltoallv", "pairwise", sends, recvs)
    for r in range(size):
        for p in range(size):
            np.testing.assert_array_equal(recvs[r][p], sends[p][r])


@cases
@pytest.mark.parametrize("algorithm", ALGORITHMS["Allgatherv"])
@pytest.mark.parametrize("in_place", [False, True])
def test_allgather(size, kind, algorithm, in_place):
    if algorithm == "recursive_doubling" and size & (size - 1):
        with pytest.raises(ValueError, match=f"power of two of ranks, not {size}"):
            run("Allgather", algorithm, [[data(0, 1)]] * size, [[data(0, 1)] * size] * size)
        return
    counts = counts_of(kind, size)
    expected = np.concatenate([data(r, counts[r]) for r in range(size)])
    wholes = [np.zeros(sum(counts), np.int64) for _ in range(size)]
    recvs = [parts(whole, counts) for whole in wholes]
    sends = [[data(r, counts[r])] for r in range(size)]
    if in_place:
        for r in range(size):
            recvs[r][r][:] = sends[r][0]
        sends = [[]] * size
    run("Allgatherv", algorithm, sends, recvs)
    for whole in wholes:
        np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("size", [*SIZES, 33])
@pytest.mark.parametrize("n", [0, 1, 12 * CHUNK + 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Bcast"])
def test_bcast(size, n, algorithm):
    for root in {0, size // 2, size - 1}:
        blocks = [data(r, n) for r in range(size)]
        expected = blocks[root].copy()
        run("Bcast", algorithm, [[]] * size, [[block] for block in blocks], root)
        for block in blocks:
            np.testing.assert_array_equal(block, expected)


@cases
@pytest.mark.parametrize("algorithm", SUMS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("widens", [False, True])
def test_reduce_scatter(size, kind, algorithm, in_place, widens):
    counts = counts_of(kind, size)
    wholes = [data(r, sum(counts)) for r in range(size)]
    blocks = [parts(whole, counts) for whole in wholes]
    expected = parts(sum(wholes), counts)
    recvs = [np.zeros(n, np.int64) for n in counts]
    if in_place:
        recvs = [whole[: counts[r]] for r, whole in enumerate(wholes)]
        run(
            "Reduce_scatter",
            algorithm,
            [[]] * size,
            [[*b, r] for b, r in zip(blocks, recvs, strict=True)],
            widens=widens,
        )
    else:
        run("Reduce_scatter", algorithm, blocks, [[recv] for recv in recvs], widens=widens)
    for recv, sums in zip(recvs, expected, strict=True):
        np.testing.assert_array_equal(recv, sums)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", [0, 1, 300, 9 * CHUNK + 70])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Allreduce"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("widens", [False, True])
def test_allreduce(size, n, algorithm, in_place, widens):
    sends = [data(r, n) for r in range(size)]
    expected = sum(sends)
    recvs = sends if in_place else [np.zeros(n, np.int64) for _ in range(size)]
    run("Allreduce", algorithm, [[] if in_place else [s] for s in sends], [[r] for r in recvs], widens=widens)
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


@pytest.mark.parametrize("size", [6, 7, 12, 16, 30])
@pytest.mark.parametrize("n", [2_000, 60_000])
def test_halving_in_groups(size, n):
    """Parts are cut while they are large; each round is of groups as small as the number of ranks allows."""
    sends = [data(r, n) for r in range(size)]
    expected = sum(sends)
    recvs = [np.zeros(n, np.int64) for _ in range(size)]
    run("Allreduce", "recursive_halving", [[s] for s in sends], [[r] for r in recvs])
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)
    for root in range(size):
        recv = np.zeros(n, np.int64)
        gets = [[recv] if r == root else [] for r in range(size)]
        run("Reduce", "recursive_halving", [[s] for s in sends], gets, root)
        np.testing.assert_array_equal(recv, expected)
    assert math.prod(radices(size)) == size
    assert {6: [3, 2], 7: [7], 12: [4, 3], 16: [4, 4], 30: [5, 3, 2]}[size] == radices(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", [0, 1, 9 * CHUNK + 70])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Reduce"])
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce(size, n, algorithm, in_place):
    root = size // 2
    sends = [data(r, n) for r in range(size)]
    expected = sum(sends)
    recv = sends[root] if in_place else np.zeros(n, np.int64)
    run(
        "Reduce",
        algorithm,
        [[] if in_place and r == root else [s] for r, s in enumerate(sends)],
        [[recv] if r == root else [] for r in range(size)],
        root,
        widens=True,
    )
    np.testing.assert_array_equal(recv, expected)


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
        [[] if in_place and r == root else [v] for r, v in enumerate(values)],
        at_root,
        root,
    )
    np.testing.assert_array_equal(whole, np.concatenate(values))
    mine = [np.zeros(n, np.int64) for n in counts]
    recvs = [[] if in_place and r == root else [m] for r, m in enumerate(mine)]
    run("Scatterv", "linear", at_root, recvs, root)
    for rank, block in enumerate(mine):
        if not in_place or rank != root:
            np.testing.assert_array_equal(block, values[rank])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(0, 20 * CHUNK),
    st.sampled_from(ALGORITHMS["Allreduce"]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_any_order_of_operations(size, n, algorithm, seed, in_place):
    sends = [data(r, n) for r in range(size)]
    expected = sum(sends)
    recvs = sends if in_place else [np.zeros(n, np.int64) for _ in range(size)]
    run("Allreduce", algorithm, [[] if in_place else [s] for s in sends], [[r] for r in recvs], seed=seed)
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


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
    """A sender holds no more frames than it may, and waits for the first before it makes another."""
    schedule = trace(program("Send", "stream"), 0, 2, [40 * CHUNK], [], CHUNK, window=3)
    dependencies = schedule.dependencies()
    encodes = np.flatnonzero(schedule.ops["kind"] == Kind.ENCODE).tolist()
    sends = np.flatnonzero(schedule.ops["kind"] == Kind.SEND).tolist()
    assert len(encodes) == len(sends) == 40
    assert [not dependencies[i] for i in encodes] == [True] * 3 + [False] * 37
    for nth in range(3, 40):
        assert sends[nth - 3] in dependencies[encodes[nth]]


def test_dependencies_stay_few():
    """However long a message is, an operation names only what it has just awaited."""
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

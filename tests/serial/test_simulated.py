"""Every algorithm, on many simulated ranks: it ends, and every byte arrives."""

from itertools import accumulate, pairwise
from math import inf

import numpy as np
import pytest

from compcoll import algorithms as alg
from compcoll.runtime.simulated import DeadlockError, Profile, SimulatedRuntime, World

SIZES = [1, 2, 3, 5, 8, 64]
#: With messages that overtake each other.
PROFILE = Profile(chunk_nbytes=8192, ratio=4.0, jitter=1e-3)


def data(rank: int, n: int, salt: int = 0) -> np.ndarray:
    """Values that name their origin; small integers, so that sums are exact in any order."""
    return ((np.arange(n) * 7 + rank * 31 + salt * 17) % 251).astype(np.int64)


def cut(array: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    """Consecutive blocks of the given lengths."""
    ends = [0, *accumulate(counts)]
    return [array[a:b] for a, b in pairwise(ends)]


def counts_of(kind: str, size: int) -> list[int]:
    """Block lengths: equal, uneven with empty ones, several chunks, nothing at all."""
    return {
        "one": [1] * size,
        "uneven": [(rank * 5) % 7 for rank in range(size)],
        "chunks": [3000 + 11 * rank for rank in range(size)],
        "empty": [0] * size,
    }[kind]


def run(size: int, body) -> World:
    instant = PROFILE.with_(encode=inf, decode=inf)
    world = World(size, instant if size > 64 else PROFILE)
    seconds = world.run(body)
    assert seconds >= 0
    return world


cases = pytest.mark.parametrize(
    ("size", "kind"),
    [(size, kind) for size in SIZES for kind in ("one", "uneven", "chunks", "empty")] + [(512, "one")],
)
no_512 = pytest.mark.parametrize(
    ("size", "kind"), [(size, kind) for size in SIZES for kind in ("one", "uneven", "chunks", "empty")]
)


@cases
def test_alltoall(size, kind):
    counts = counts_of(kind, size)
    sends = [[data(r, counts[(r + p) % size], p) for p in range(size)] for r in range(size)]
    recvs = [[np.zeros(counts[(r + p) % size], np.int64) for p in range(size)] for r in range(size)]
    run(size, lambda rt: alg.alltoall(rt, sends[rt.rank], recvs[rt.rank]))
    for r in range(size):
        for p in range(size):
            np.testing.assert_array_equal(recvs[r][p], sends[p][r])


@cases
def test_ring_allgather(size, kind):
    counts = counts_of(kind, size)
    recvs = [np.zeros(sum(counts), np.int64) for _ in range(size)]
    expected = np.concatenate([data(r, counts[r]) for r in range(size)])
    run(size, lambda rt: alg.ring_allgather(rt, data(rt.rank, counts[rt.rank]), cut(recvs[rt.rank], counts)))
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64, 512])
@pytest.mark.parametrize("kind", ["one", "uneven", "chunks"])
def test_recursive_doubling_allgather(size, kind):
    if (size, kind) in {(512, "uneven"), (512, "chunks")}:
        pytest.skip("covered by smaller worlds")
    counts = counts_of(kind, size)
    recvs = [np.zeros(sum(counts), np.int64) for _ in range(size)]
    expected = np.concatenate([data(r, counts[r]) for r in range(size)])

    def body(rt):
        mine = data(rt.rank, counts[rt.rank])
        return alg.recursive_doubling_allgather(rt, mine, cut(recvs[rt.rank], counts))

    run(size, body)
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


def test_recursive_doubling_refuses_other_sizes():
    with pytest.raises(ValueError, match="power of two of ranks, not 3"):
        run(3, lambda rt: alg.recursive_doubling_allgather(rt, data(0, 1), [data(0, 1)] * 3))


@pytest.mark.parametrize("size", [*SIZES, 512])
@pytest.mark.parametrize("n", [0, 1, 5000])
@pytest.mark.parametrize("bcast", [alg.chain_bcast, alg.tree_bcast])
def test_bcast(size, n, bcast):
    for root in {0, size // 2, size - 1}:
        blocks = [data(r, n) for r in range(size)]
        expected = blocks[root].copy()
        run(size, lambda rt, root=root, blocks=blocks: bcast(rt, blocks[rt.rank], root))
        for block in blocks:
            np.testing.assert_array_equal(block, expected)


@cases
@pytest.mark.parametrize("column_sum", [alg.ring_sum, alg.direct_sum, alg.compressed_sum])
def test_reduce_scatter(size, kind, column_sum):
    counts = counts_of(kind, size)
    sends = [data(r, sum(counts)) for r in range(size)]
    recvs = [np.zeros(n, np.int64) for n in counts]

    def body(rt):
        return alg.reduce_scatter(rt, cut(sends[rt.rank], counts), recvs[rt.rank], column_sum)

    run(size, body)
    for recv, expected in zip(recvs, cut(sum(sends), counts), strict=True):
        np.testing.assert_array_equal(recv, expected)


@no_512
@pytest.mark.parametrize("column_sum", [alg.ring_sum, alg.direct_sum, alg.compressed_sum])
@pytest.mark.parametrize("in_place", [False, True])
def test_allreduce(size, kind, column_sum, in_place):
    counts = counts_of(kind, size)
    sends = [data(r, sum(counts)) for r in range(size)]
    expected = sum(sends)
    recvs = sends if in_place else [np.zeros(sum(counts), np.int64) for _ in range(size)]

    def body(rt):
        return alg.allreduce(rt, cut(sends[rt.rank], counts), cut(recvs[rt.rank], counts), column_sum)

    run(size, body)
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


@no_512
@pytest.mark.parametrize("column_sum", [alg.ring_sum, alg.direct_sum, alg.compressed_sum])
def test_reduce(size, kind, column_sum):
    counts, root = counts_of(kind, size), size // 2
    sends = [data(r, sum(counts)) for r in range(size)]
    recv = np.zeros(sum(counts), np.int64)

    def body(rt):
        target = cut(recv, counts) if rt.rank == root else None
        return alg.reduce(rt, cut(sends[rt.rank], counts), target, root, column_sum)

    run(size, body)
    np.testing.assert_array_equal(recv, sum(sends))


@pytest.mark.parametrize("reduction", [alg.allreduce, alg.reduce])
def test_reductions_of_512(reduction):
    size, root = 512, 0
    counts = counts_of("one", size)
    sends = [data(r, size) for r in range(size)]
    recvs = [np.zeros(size, np.int64) for _ in range(size)]

    def body(rt):
        source, target = cut(sends[rt.rank], counts), cut(recvs[rt.rank], counts)
        if reduction is alg.allreduce:
            return alg.allreduce(rt, source, target, alg.ring_sum)
        return alg.reduce(rt, source, target if rt.rank == root else None, root, alg.direct_sum)

    run(size, body)
    for recv in recvs if reduction is alg.allreduce else recvs[:1]:
        np.testing.assert_array_equal(recv, sum(sends))


@cases
def test_gather_and_scatter(size, kind):
    counts, root = counts_of(kind, size), size - 1
    whole = np.zeros(sum(counts), np.int64)

    def gather(rt):
        blocks = cut(whole, counts) if rt.rank == root else None
        return alg.gather(rt, data(rt.rank, counts[rt.rank]), blocks, root)

    run(size, gather)
    np.testing.assert_array_equal(whole, np.concatenate([data(r, counts[r]) for r in range(size)]))
    mine = [np.zeros(n, np.int64) for n in counts]
    run(size, lambda rt: alg.scatter(rt, cut(whole, counts), mine[rt.rank], root))
    for rank, block in enumerate(mine):
        np.testing.assert_array_equal(block, data(rank, counts[rank]))


def test_deadlock_is_noticed():
    async def nobody_sends(rt: SimulatedRuntime) -> None:
        await rt.recv((rt.rank + 1) % rt.size, np.zeros(1))

    with pytest.raises(DeadlockError, match=r"ranks \[0, 1\] wait"):
        run(2, nobody_sends)


def test_lost_message_is_noticed():
    async def nobody_receives(rt: SimulatedRuntime) -> None:
        await rt.send(await rt.encode(np.zeros(1)), 1 - rt.rank)

    with pytest.raises(DeadlockError, match="never received"):
        run(2, nobody_receives)


def test_time_is_latency_plus_bytes_over_bandwidth():
    n = 1 << 20
    profile = Profile(encode=float("inf"), decode=float("inf"), chunk_nbytes=n)

    async def ping(rt: SimulatedRuntime) -> None:
        block = np.zeros(n, np.uint8)
        await alg.gather(rt, block, [block, block], 0)

    seconds = World(2, profile).run(ping)
    assert seconds == pytest.approx(profile.network.latency + (n + 80) / profile.network.bandwidth)


def test_a_free_core_serves_whoever_comes_next():
    world = World(5, Profile(cores=2))
    assert [world.work(rank, seconds) for rank, seconds in enumerate([3.0, 1, 1, 2, 1])] == [3, 1, 2, 4, 4]

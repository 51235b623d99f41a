"""Two levels as schedules: they end, every value arrives, and each crosses a port once."""

import numpy as np
import pytest
from interpreter import interpret
from test_schedule import CHUNK, counts_of, data, parts

from compcoll.algorithms.catalog import program
from compcoll.algorithms.groups import placement
from compcoll.operations import ALGORITHMS
from compcoll.schedule.graph import Kind
from compcoll.schedule.trace import trace

#: In order, round robin, uneven, one rank on some nodes, names that say nothing.
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
SUMS = ALGORITHMS["Reduce_scatter"]
nodes = pytest.mark.parametrize("nodes", PLACEMENTS, ids=lambda n: "".join(map(str, n)))
kinds = pytest.mark.parametrize("kind", ["one", "uneven", "chunks", "empty"])


def traced(op, algorithm, nodes, sends, recvs, root=0, **options):
    return [
        trace(
            program(op, algorithm, root, 2),
            rank,
            len(nodes),
            list(map(len, sends[rank])),
            list(map(len, recvs[rank])),
            CHUNK,
            nodes=nodes,
            **options,
        )
        for rank in range(len(nodes))
    ]


def run(op, algorithm, nodes, sends, recvs, root=0, **options):
    schedules = traced(op, algorithm, nodes, sends, recvs, root, **options)
    for seed in range(3):
        before = [[a.copy() for a in (*s, *r)] for s, r in zip(sends, recvs, strict=True)]
        interpret(schedules, [[*s, *r] for s, r in zip(sends, recvs, strict=True)], seed)
        if seed < 2:
            for arrays, old in zip(zip(sends, recvs, strict=True), before, strict=True):
                for array, values in zip((*arrays[0], *arrays[1]), old, strict=True):
                    array[:] = values


def test_a_placement():
    at = placement((5, 5, 5, 2, 2, 9))
    assert at.members == [[0, 1, 2], [3, 4], [5]]
    assert (at.width, at.turns) == (1, 3)
    assert at.node_peers(1) == [2, 0]
    assert at.served(0, 1) == [1, 4, None]


@nodes
@pytest.mark.parametrize("n", [0, 1, 300, 20 * CHUNK + 70])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Allreduce"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize("inside_exact", [False, True])
def test_allreduce(nodes, n, algorithm, in_place, widens, inside_exact):
    sends = [data(r, n) for r in range(len(nodes))]
    expected = sum(sends)
    recvs = sends if in_place else [np.zeros(n, np.int64) for _ in nodes]
    run(
        "Allreduce",
        algorithm,
        nodes,
        [[] if in_place else [s] for s in sends],
        [[r] for r in recvs],
        widens=widens,
        inside_exact=inside_exact,
    )
    for recv in recvs:
        np.testing.assert_array_equal(recv, expected)


@nodes
@pytest.mark.parametrize("n", [0, 1, 5 * CHUNK + 70])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Reduce"])
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce(nodes, n, algorithm, in_place):
    for root in range(len(nodes)):
        sends = [data(r, n) for r in range(len(nodes))]
        expected = sum(sends)
        recv = sends[root] if in_place else np.zeros(n, np.int64)
        run(
            "Reduce",
            algorithm,
            nodes,
            [[] if in_place and r == root else [s] for r, s in enumerate(sends)],
            [[recv] if r == root else [] for r in range(len(nodes))],
            root,
        )
        np.testing.assert_array_equal(recv, expected)


@nodes
@kinds
@pytest.mark.parametrize("algorithm", SUMS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("widens", [False, True])
def test_reduce_scatter(nodes, kind, algorithm, in_place, widens):
    counts = counts_of(kind, len(nodes))
    wholes = [data(r, sum(counts)) for r in range(len(nodes))]
    blocks = [parts(whole, counts) for whole in wholes]
    expected = parts(sum(wholes), counts)
    recvs = [np.zeros(n, np.int64) for n in counts]
    if in_place:
        recvs = [whole[: counts[r]] for r, whole in enumerate(wholes)]
        run(
            "Reduce_scatter",
            algorithm,
            nodes,
            [[]] * len(nodes),
            [[*b, r] for b, r in zip(blocks, recvs, strict=True)],
            widens=widens,
        )
    else:
        run("Reduce_scatter", algorithm, nodes, blocks, [[recv] for recv in recvs], widens=widens)
    for recv, sums in zip(recvs, expected, strict=True):
        np.testing.assert_array_equal(recv, sums)


@nodes
@kinds
@pytest.mark.parametrize("algorithm", ALGORITHMS["Allgatherv"])
@pytest.mark.parametrize("in_place", [False, True])
def test_allgather(nodes, kind, algorithm, in_place):
    if algorithm == "recursive_doubling" and len(set(nodes)) & (len(set(nodes)) - 1):
        pytest.skip("nodes are no power of two")
    counts = counts_of(kind, len(nodes))
    expected = np.concatenate([data(r, n) for r, n in enumerate(counts)])
    wholes = [np.zeros(sum(counts), np.int64) for _ in nodes]
    recvs = [parts(whole, counts) for whole in wholes]
    sends = [[data(r, n)] for r, n in enumerate(counts)]
    if in_place:
        for r, send in enumerate(sends):
            recvs[r][r][:] = send[0]
        sends = [[]] * len(nodes)
    run("Allgatherv", algorithm, nodes, sends, recvs)
    for whole in wholes:
        np.testing.assert_array_equal(whole, expected)


@nodes
@pytest.mark.parametrize("n", [0, 1, 20 * CHUNK + 70])
@pytest.mark.parametrize("algorithm", ALGORITHMS["Bcast"])
def test_bcast(nodes, n, algorithm):
    for root in range(len(nodes)):
        blocks = [data(r, n) for r in range(len(nodes))]
        expected = blocks[root].copy()
        run("Bcast", algorithm, nodes, [[]] * len(nodes), [[block] for block in blocks], root)
        for block in blocks:
            np.testing.assert_array_equal(block, expected)


@nodes
@pytest.mark.parametrize("n", [0, 1, 3 * CHUNK + 70])
def test_alltoall(nodes, n):
    wholes = [data(r, n * len(nodes)) for r in range(len(nodes))]
    sends = [parts(whole, [n] * len(nodes)) for whole in wholes]
    recvs = [[np.zeros(n, np.int64) for _ in nodes] for _ in nodes]
    run("Alltoall", "pairwise", nodes, sends, recvs)
    for r, blocks in enumerate(recvs):
        for p, block in enumerate(blocks):
            np.testing.assert_array_equal(block, sends[p][r])


def test_messages_of_alltoall():
    """From each node one message for each rank of another, and inside what is gathered besides."""
    nodes = tuple(i // 4 for i in range(12))
    empty = [[np.empty(100)] * 12] * 12
    for schedule in traced("Alltoall", "pairwise", nodes, empty, empty):
        sent = schedule.ops[schedule.ops["kind"] == Kind.SEND]
        assert (len(sent), sent["inside"].sum()) == (2 + 6, 6)


def across(schedules, nodes) -> dict[int, int]:
    """Elements that leave each node, and None of those inside."""
    found = dict.fromkeys(nodes, 0)
    for schedule in schedules:
        frames = {}
        for op in schedule.ops:
            if op["kind"] in (Kind.ENCODE, Kind.RECV):
                frames[op["frame"]] = schedule.blocks[op["block"]]["n"]
            elif op["kind"] == Kind.SEND and nodes[op["peer"]] != nodes[schedule.rank]:
                found[nodes[schedule.rank]] += frames[op["frame"]]
    return found


@pytest.mark.parametrize(
    ("op", "sends", "recvs", "expected"),
    [
        ("Allreduce", [64], [64], 2 * 64 * 2 / 3),
        ("Reduce_scatter_block", [64] * 12, [64], 64 * 8),
        ("Allgather", [64], [64] * 12, 64 * 8),
        ("Bcast", [], [64], 64),
    ],
)
def test_each_value_crosses_a_port_once(op, sends, recvs, expected):
    """Three nodes of four ranks: what the theory of one level says of three ranks."""
    nodes, k = tuple(i // 4 for i in range(12)), 3 * CHUNK
    algorithm = ALGORITHMS[op][0]
    empty = [[np.empty(n * k) for n in ns] for ns in (sends, recvs)]
    found = across(traced(op, algorithm, nodes, [empty[0]] * 12, [empty[1]] * 12), nodes)
    assert max(found.values()) == expected * k

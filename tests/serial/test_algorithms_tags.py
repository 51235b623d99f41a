"""Random calls on random nodes: no message matches another one's receive, and every value arrives."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from interpreter import N_TAGS, interpret
from test_schedule import CHUNK, data

from compcoll.algorithms.catalog import program
from compcoll.algorithms.groups import placement
from compcoll.operations import ALGORITHMS, OPERATIONS, TWO_LEVEL, Blocks
from compcoll.schedule.trace import trace

ALGORITHMS_OF_ALL = [
    (op, algorithm, levels)
    for op, algorithms in ALGORITHMS.items()
    for algorithm in algorithms
    for levels in ([1, 2] if op in TWO_LEVEL else [1])
]


@st.composite
def nodes_of(draw, size: int) -> tuple[int, ...]:
    """Draw each rank's node, at least two in all: in order, round robin, or uneven."""
    n = draw(st.integers(2, min(size, 8)))
    match draw(st.sampled_from(["in order", "round robin", "uneven"])):
        case "in order":
            return tuple(r * n // size for r in range(size))
        case "round robin":
            return tuple(r % n for r in range(size))
        case _:
            others = draw(st.lists(st.integers(0, n - 1), min_size=size - n, max_size=size - n))
            return tuple(draw(st.permutations([*range(n), *others])))


def blocks_of(op: str, size: int, root: int, counts: list[int]) -> tuple[list, list, list]:
    """Blocks that each rank sends and receives, and the expected results.

    ``counts`` has each rank's block size; operations with one size for all blocks use the first.
    """
    ranks = range(size)
    row = OPERATIONS.get(op)
    if row is None:  # a message
        values = data(0, counts[0])
        return [[values], []], [[], [np.zeros_like(values)]], [[], [values]]
    n = counts if Blocks.COUNTED in (row.send, row.recv) or op == "Reduce_scatter" else [counts[0]] * size
    if row.send.many and row.recv.many:
        if row.send is not Blocks.EACH:
            sends = [[data(r, n[(r + p) % size], p) for p in ranks] for r in ranks]
        else:
            sends = [[data(r, n[0], p) for p in ranks] for r in ranks]
        expected = [[sends[p][r] for p in ranks] for r in ranks]
    elif op.startswith("Reduce_scatter"):
        sends = [[data(r, n[p], p) for p in ranks] for r in ranks]
        expected = [[sum(sends[p][r] for p in ranks)] for r in ranks]
    elif row.reduces:
        sends = [[data(r, counts[0])] for r in ranks]
        expected = [[sum(send for (send,) in sends)] for _ in ranks]
    elif op.startswith("Scatter"):
        sends = [[data(r, n[p], p) for p in ranks] for r in ranks]
        expected = [[sends[root][r]] for r in ranks]
    elif op == "Bcast":
        sends, expected = [[] for _ in ranks], [[data(root, counts[0])] for _ in ranks]
    else:
        sends = [[data(r, n[r])] for r in ranks]
        expected = [[send for (send,) in sends] for _ in ranks]
    recvs = [[np.zeros_like(block) for block in blocks] for blocks in expected]
    for r in ranks:
        if op == "Bcast" and r == root:
            recvs[r][0][:] = expected[r][0]
        if r != root and row.root == "recv":
            recvs[r], expected[r] = [], []
        if r != root and row.root == "send":
            sends[r] = []
    return sends, recvs, expected


def check_call(op, algorithm, levels, nodes, root, chunk, counts, n_tags, seed, **options):
    size = len(nodes)
    sends, recvs, expected = blocks_of(op, size, root, counts)
    schedules = [
        trace(
            program(op, algorithm, root, levels),
            r,
            size,
            list(map(len, sends[r])),
            list(map(len, recvs[r])),
            chunk,
            nodes=nodes,
            n_tags=n_tags,
            **options,
        )
        for r in range(size)
    ]
    interpret(schedules, [[*s, *r] for s, r in zip(sends, recvs, strict=True)], seed, n_tags)
    for got, want in zip(recvs, expected, strict=True):
        for block, values in zip(got, want, strict=True):
            np.testing.assert_array_equal(block, values)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_call(case):
    draw = case.draw
    op, algorithm, levels = draw(st.sampled_from(ALGORITHMS_OF_ALL))
    size = draw(st.one_of(st.integers(2, 12), st.integers(2, 40))) if op in OPERATIONS else 2
    if algorithm == "recursive_doubling" and levels == 1:
        size = 1 << size.bit_length() - 1
    nodes = draw(nodes_of(size))
    n_nodes = len(set(nodes))
    assume(algorithm != "recursive_doubling" or levels == 1 or not n_nodes & (n_nodes - 1))
    # Rings reuse a tag in up to 8 columns of each turn at once.
    few_tags = 16 * (placement(nodes).turns if levels == 2 else 1)
    check_call(
        op,
        algorithm,
        levels,
        nodes,
        draw(st.integers(0, size - 1)),
        draw(st.integers(1, 3)) * CHUNK,
        draw(st.lists(st.integers(0, most_of(op, size)), min_size=size, max_size=size)),
        draw(st.sampled_from([few_tags, N_TAGS])),
        draw(st.integers(0, 1 << 30)),
        window=draw(st.integers(1, 4)),
        widens=draw(st.booleans()),
        owner_exact=draw(st.booleans()),
        inside_exact=draw(st.booleans()),
    )


def most_of(op: str, size: int) -> int:
    """Largest block in elements for which a call does not have too many messages."""
    row = OPERATIONS.get(op, OPERATIONS["Bcast"])
    messages = size * size if (row.send.many and row.recv.many) or not row.root else size
    whole = not row.send.many and not row.recv.many
    return min(40 if whole else 12, 400 // messages + 2) * CHUNK


def test_contributions_and_results_of_one_rank():
    """The root never confuses a leader's part of the sum with its contribution to the root's longer part."""
    for n in (16_385, 16_400, 24_640):
        for root in range(4):
            check_call("Reduce", "recursive_halving", 2, (0, 0, 1, 1), root, CHUNK, [n] * 4, N_TAGS, seed=n)

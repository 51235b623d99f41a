"""Two-level schedules: placements, and each value crosses a node's port once; `test_schedule` runs them."""

import numpy as np
import pytest
from test_schedule import CHUNK, traced

from compcoll.algorithms.groups import placement
from compcoll.operations import ALGORITHMS
from compcoll.schedule.graph import Kind


def test_a_placement():
    at = placement((5, 5, 5, 2, 2, 9))
    assert at.members == [[0, 1, 2], [3, 4], [5]]
    assert (at.width, at.turns) == (1, 3)
    assert at.node_peers(1) == [2, 0]
    assert at.served(0, 1) == [1, 4, None]


def test_messages_of_alltoall():
    """Each node sends one message to each rank of another node; messages inside nodes gather the blocks."""
    nodes = tuple(i // 4 for i in range(12))
    empty = [[np.empty(100)] * 12] * 12
    for schedule in traced("Alltoall", "pairwise", nodes, empty, empty):
        sent = schedule.ops[schedule.ops["kind"] == Kind.SEND]
        assert (len(sent), sent["inside"].sum()) == (2 + 6, 6)


def across(schedules, nodes) -> dict[int, int]:
    """Elements that are sent out of each node."""
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
@pytest.mark.exhaustive(but=1)
def test_each_value_crosses_a_port_once(op, sends, recvs, expected):
    """Three nodes of four ranks send as many elements as three ranks in one level."""
    nodes, k = tuple(i // 4 for i in range(12)), 3 * CHUNK // 8
    algorithm = ALGORITHMS[op][0]
    empty = [[np.empty(n * k) for n in ns] for ns in (sends, recvs)]
    found = across(traced(op, algorithm, nodes, [empty[0]] * 12, [empty[1]] * 12), nodes)
    assert max(found.values()) == expected * k

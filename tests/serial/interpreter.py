"""Interpreter of all ranks' schedules on real values, one operation at a time: the oracle of the algorithms.

There are no times, codecs or errors: a frame is a copy of values. The next operation is drawn at random from
those that are ready, since threads and the network finish in any order.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import or_
from random import Random

import numpy as np

from compcoll.schedule.graph import NONE, Kind, Schedule

#: Tags of a call if MPI has only as many as its standard requires.
N_TAGS = 504


class Stuck(AssertionError):
    """Some operations can never complete."""


def check(schedule: Schedule, n_tags: int) -> None:
    """Check the invariants of a schedule in a call with ``n_tags`` tags."""
    dependencies = schedule.dependencies()
    kinds, peers, tags = (schedule.ops[name].tolist() for name in ("kind", "peer", "tag"))
    behind: list[int] = []  # bit sets of direct and indirect dependencies
    last: dict[tuple[int, int, int], int] = {}
    assert list(map(len, dependencies)) == schedule.ops["n_deps"].tolist()
    for i, (peer, tag, before) in enumerate(zip(peers, tags, dependencies, strict=True)):
        assert all(k < i for k in before), f"operation {i} waits for a later one"
        behind.append(reduce(or_, (behind[k] | 1 << k for k in before), 0))
        if kinds[i] in (Kind.SEND, Kind.RECV):
            # Messages may overtake each other, so dependencies must order equal tags, at both ends.
            key = kinds[i], peer, tag % n_tags
            assert key not in last or behind[i] >> last[key] & 1, (
                f"rank {schedule.rank}: operation {i} may overtake {last[key]}, which has its tag {tag}"
            )
            last[key] = i
            assert 0 <= tag < schedule.n_tags
            assert 0 <= peer < schedule.size
            assert peer != schedule.rank
    made = [
        op["frame"] if k != Kind.ADD else op["sum"]
        for op, k in zip(schedule.ops, kinds, strict=True)
        if k in (Kind.ENCODE, Kind.RECV, Kind.ADD)
    ]
    assert sorted(made) == list(range(schedule.n_frames)), "each frame is made once"


class Rank:
    """One rank's memory and pending operations."""

    def __init__(self, schedule: Schedule, buffers: list[np.ndarray]):
        self.schedule = schedule
        dtype = buffers[0].dtype if buffers else np.dtype(np.int64)
        scratch = [np.empty(n, dtype) for n in schedule.scratch["n"]]
        self.buffers = [*buffers, *scratch]
        self.frames: dict[int, np.ndarray] = {}
        self.n_deps = schedule.ops["n_deps"].copy()
        self.ready = np.flatnonzero(self.n_deps == 0).tolist()
        self.remaining = len(schedule)

    def block(self, index: int) -> np.ndarray:
        block = self.schedule.blocks[index]
        return self.buffers[block["buffer"]][block["start"] : block["start"] + block["n"]]

    def finish(self, index: int) -> None:
        ops = self.schedule.ops
        end = ops["first"][index + 1] if index + 1 < len(ops) else len(self.schedule.successors)
        for later in self.schedule.successors[ops["first"][index] : end].tolist():
            self.n_deps[later] -= 1
            if not self.n_deps[later]:
                self.ready.append(later)
        self.remaining -= 1


def interpret(
    schedules: list[Schedule], buffers: list[list[np.ndarray]], seed: int = 0, n_tags: int = N_TAGS
) -> None:
    """Run the schedules of all ranks to completion; ``buffers`` are each rank's blocks.

    Messages are matched by source, destination, and tag modulo ``n_tags``.
    """
    random = Random(seed)
    for schedule in schedules:
        check(schedule, n_tags)
    ranks = [Rank(s, b) for s, b in zip(schedules, buffers, strict=True)]
    sent: dict[tuple, list[np.ndarray]] = defaultdict(list)
    wanted: dict[tuple, list[int]] = defaultdict(list)
    alive = [r for r, rank in enumerate(ranks) if rank.ready]
    while alive:
        r = random.choice(alive)
        rank = ranks[r]
        index = rank.ready.pop(random.randrange(len(rank.ready)))
        op = rank.schedule.ops[index]
        kind, peer, tag = Kind(op["kind"]), int(op["peer"]), int(op["tag"]) % n_tags
        if kind is Kind.SEND:
            key = r, peer, tag
            sent[key].append(rank.frames[op["frame"]])
            rank.finish(index)
        elif kind is Kind.RECV:
            key = peer, r, tag
            wanted[key].append(index)
        else:
            _work(rank, op, kind)
            rank.finish(index)
        if peer != NONE and sent[key] and wanted[key]:
            _deliver(ranks[key[1]], wanted[key].pop(0), sent[key].pop(0))
        alive = [r for r, rank in enumerate(ranks) if rank.ready]
    stuck = [r for r, rank in enumerate(ranks) if rank.remaining]
    if stuck or any(sent.values()):
        raise Stuck(f"ranks {stuck} wait, {sum(map(len, sent.values()))} messages were never received")


def _deliver(rank: Rank, index: int, frame: np.ndarray) -> None:
    op = rank.schedule.ops[index]
    assert len(frame) == len(rank.block(op["block"])), "a frame of another size came"
    rank.frames[op["frame"]] = frame
    rank.finish(index)


def _work(rank: Rank, op: np.void, kind: Kind) -> None:
    block = rank.block(op["block"])
    match kind:
        case Kind.ENCODE:
            rank.frames[op["frame"]] = block.copy()
            if op["into"] != NONE:
                rank.block(op["into"])[:] = block
        case Kind.DECODE:
            block[:] = rank.frames[op["frame"]]
        case Kind.DECODE_ADD:
            block += rank.frames[op["frame"]]
        case Kind.ADD:
            rank.frames[op["sum"]] = rank.frames[op["frame"]] + rank.frames[op["other"]]
        case _:
            rank.block(op["into"])[:] = block

"""Schedules of all ranks carried out with real values, one operation at a time: the oracle of the algorithms.

It knows nothing of time, frames or errors: a frame is a copy of values. Which of the operations that may come
next does come is left to chance, as the engine's threads and the network leave it.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np

from compcoll.schedule.graph import NONE, Kind, Schedule


class Stuck(AssertionError):
    """Operations wait for ever."""


def check(schedule: Schedule) -> None:
    """What holds for every schedule."""
    dependencies = schedule.dependencies()
    kinds = schedule.ops["kind"].tolist()
    behind: list[set[int]] = []  # all that each operation waits for, at any distance
    last: dict[tuple[int, int, int], int] = {}
    for i, (op, before) in enumerate(zip(schedule.ops, dependencies, strict=True)):
        assert all(k < i for k in before), f"operation {i} waits for a later one"
        assert len(before) == op["n_deps"]
        behind.append(set(before).union(*(behind[k] for k in before)))
        if kinds[i] in (Kind.SEND, Kind.RECV):
            # Messages may overtake each other: those with equal tags are apart.
            key = kinds[i], int(op["peer"]), int(op["tag"])
            assert last.get(key, i) in {i, *behind[i]}, f"operation {i} may overtake {last[key]}"
            last[key] = i
            assert 0 <= op["tag"] < schedule.n_tags
            assert 0 <= op["peer"] < schedule.size
            assert op["peer"] != schedule.rank
    made = [op["frame"] if k != Kind.ADD else op["sum"] for op, k in zip(schedule.ops, kinds, strict=True)
            if k in (Kind.ENCODE, Kind.RECV, Kind.ADD)]  # fmt: skip
    assert sorted(made) == list(range(schedule.n_frames)), "each frame is made once"


class Rank:
    """One rank's memory and what it has still to do."""

    def __init__(self, schedule: Schedule, buffers: list[np.ndarray]):
        check(schedule)
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


def interpret(schedules: list[Schedule], buffers: list[list[np.ndarray]], seed: int = 0) -> None:
    """Run the schedules of all ranks to their ends; ``buffers`` are each rank's blocks."""
    random = Random(seed)
    ranks = [Rank(s, b) for s, b in zip(schedules, buffers, strict=True)]
    sent: dict[tuple, list[np.ndarray]] = defaultdict(list)
    wanted: dict[tuple, list[int]] = defaultdict(list)
    alive = [r for r, rank in enumerate(ranks) if rank.ready]
    while alive:
        r = random.choice(alive)
        rank = ranks[r]
        index = rank.ready.pop(random.randrange(len(rank.ready)))
        op = rank.schedule.ops[index]
        kind = Kind(op["kind"])
        if kind is Kind.SEND:
            sent[r, int(op["peer"]), int(op["tag"])].append(rank.frames[op["frame"]])
            rank.finish(index)
        elif kind is Kind.RECV:
            wanted[int(op["peer"]), r, int(op["tag"])].append(index)
        else:
            _work(rank, op, kind)
            rank.finish(index)
        for key in [k for k in wanted if sent.get(k)]:
            _deliver(ranks[key[1]], wanted[key].pop(0), sent[key].pop(0))
            if not wanted[key]:
                del wanted[key]
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

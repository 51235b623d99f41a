"""Collectives for the driver: schedules, and every rank's blocks before and after. ``cases.py FILE``."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from compcoll.algorithms.catalog import program
from compcoll.core import dtypes
from compcoll.operations import ALGORITHMS
from compcoll.schedule.graph import Schedule
from compcoll.schedule.trace import trace

#: Placements of four ranks on nodes: in order, round robin, one alone.
NODES = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1)]
#: Several chunks a block, some above and some below the stand-in's eager limit.
N, CHUNK = 9000, 2048


def values(rank: int, n: int, dtype: str) -> np.ndarray:
    """Small values that depend on the rank and the index."""
    return ((np.arange(n) * 7 + rank * 31) % 101).astype(dtype)


def cases(dtype: str):
    """Yield (name, nodes, schedules, each rank's blocks before, and after)."""
    for nodes in ((0,) * 2, (0,) * 3, (0,) * 4, *NODES):
        size, levels = len(nodes), len(set(nodes))
        inputs = [values(rank, N * size, dtype) for rank in range(size)]
        total = np.add.reduce(inputs, dtype=dtype)
        for op in ("Alltoall", "Allgather", "Bcast", "Allreduce", "Reduce_scatter_block", "Reduce", "Gather"):
            for algorithm in ALGORITHMS[op]:
                if (algorithm == "recursive_doubling" and size == 3) or (levels == 2 and op == "Gather"):
                    continue
                before, after, sends = zip(
                    *(_rank(op, r, size, inputs, total) for r in range(size)), strict=True
                )
                schedules = [
                    trace(
                        program(op, algorithm, levels=levels),
                        r,
                        size,
                        [b.size for b in before[r][: sends[r]]],
                        [b.size for b in before[r][sends[r] :]],
                        CHUNK,
                        nodes=nodes if levels == 2 else (),
                    )
                    for r in range(size)
                ]
                name = f"{op} by {algorithm} of {size} ranks on nodes {nodes}, {dtype}"
                yield name, nodes, schedules, before, after


def _rank(op: str, rank: int, size: int, inputs: list[np.ndarray], total: np.ndarray):
    """One rank's blocks before and after, and how many of them it sends; the root is rank 0."""
    mine = inputs[rank]
    blocks, zero = np.split(mine, size), np.zeros(N, mine.dtype)
    first = [np.split(x, size)[0] for x in inputs]
    match op:
        case "Alltoall":
            return blocks + [zero] * size, blocks + [np.split(x, size)[rank] for x in inputs], size
        case "Allgather":
            return [first[rank]] + [zero] * size, [first[rank], *first], 1
        case "Bcast":
            return [mine], [inputs[0]], 0
        case "Allreduce":
            return [mine, np.zeros_like(mine)], [mine, total], 1
        case "Reduce_scatter_block":
            return [*blocks, zero], [*blocks, np.split(total, size)[rank]], size
        case "Reduce":
            return ([mine, np.zeros_like(mine)], [mine, total], 1) if rank == 0 else ([mine], [mine], 1)
        case _:
            return (
                ([first[0]] + [zero] * size, [*first[:1], *first], 1)
                if rank == 0
                else ([first[rank]], [first[rank]], 1)
            )


def write(file: BinaryIO) -> None:
    """Write all cases: integers uncompressed, and floats by a lossy codec."""
    found = [(*case, "raw", 0.0) for case in cases("i4")]
    # Every addition of the largest sum can be off by a step of the scale.
    found += [(*case, "int8", 4 * 4 * 400 / 127) for case in cases("f4") if "compressed" not in case[0]]
    file.write(struct.pack("<i", len(found)))
    for name, nodes, schedules, before, after, codec, tolerance in found:
        for text in (name, codec):
            _list(file, np.frombuffer(text.encode(), np.uint8))
        file.write(struct.pack("<idi", dtypes.code_of(before[0][0].dtype), tolerance, len(schedules)))
        _list(file, np.array(nodes, np.int32))
        for schedule, old, new in zip(schedules, before, after, strict=True):
            _schedule(file, schedule)
            for a, b in zip(old, new, strict=True):
                _list(file, a.view(np.uint8))
                _list(file, b.view(np.uint8))


def _schedule(file: BinaryIO, s: Schedule) -> None:
    file.write(struct.pack("<5i", s.rank, s.size, s.n_buffers, s.n_frames, s.n_tags))
    for table in (s.ops, s.blocks, s.successors, s.scratch):
        _list(file, table)


def _list(file: BinaryIO, array: np.ndarray) -> None:
    file.write(struct.pack("<q", array.size) + array.tobytes())


if __name__ == "__main__":
    with Path(sys.argv[1]).open("wb") as target:
        write(target)

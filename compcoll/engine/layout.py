"""Layouts put together from smaller ones, in as few loops as they need.

A *piece* is a layout and where its first byte lies, in bytes from the start of what it is a part of.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from compcoll.engine._layout import LOOP, RUN, Layout, StridedBlock, loop, parts, run, runs

__all__ = [
    "EMPTY",
    "LOOP",
    "RUN",
    "Layout",
    "Piece",
    "StridedBlock",
    "contiguous",
    "joined",
    "joined_runs",
    "repeated",
]

Piece: TypeAlias = tuple[int, Layout]

EMPTY: Piece = (0, run(0))


def contiguous(nbytes: int) -> Piece:
    """Bytes side by side."""
    return 0, run(nbytes)


def repeated(count: int, stride: int, piece: Piece) -> Piece:
    """A piece ``count`` times, ``stride`` bytes apart."""
    offset, layout = piece
    if count <= 0 or not layout.nbytes:
        return EMPTY
    if count == 1:
        return piece
    if layout.kind == RUN and stride == layout.nbytes:
        return offset, run(count * stride)
    if layout.kind == LOOP and stride == layout.count * layout.stride:
        return offset, loop(count * layout.count, layout.stride, layout.child)
    return offset, loop(count, stride, layout)


def joined(offsets: np.ndarray, pieces: list[Piece]) -> Piece:
    """Pieces one behind the other in packed order, each at an offset of its own."""
    some = [i for i, (_, layout) in enumerate(pieces) if layout.nbytes]
    layouts = [pieces[i][1] for i in some]
    at = np.asarray(offsets, np.int64)[some] + np.array([pieces[i][0] for i in some], np.int64)
    if all(layout.kind == RUN for layout in layouts):
        return joined_runs(at, np.array([layout.nbytes for layout in layouts], np.int64))
    first = layouts[0]
    steps = np.diff(at)
    if all(layout == first for layout in layouts) and (steps == steps[:1]).all():
        return repeated(len(layouts), int(steps[0]) if steps.size else 0, (int(at[0]), first))
    return int(at[0]), parts(at - at[0], layouts)


def joined_runs(offsets: np.ndarray, nbytes: np.ndarray) -> Piece:
    """Bytes side by side at each offset; what touches is one."""
    some = nbytes > 0
    offsets, nbytes = offsets[some].astype(np.int64), nbytes[some].astype(np.int64)
    if not offsets.size:
        return EMPTY
    begins = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1] + nbytes[:-1]]))
    offsets, nbytes = offsets[begins], np.add.reduceat(nbytes, begins)
    first, steps = int(offsets[0]), np.diff(offsets)
    if (nbytes == nbytes[0]).all() and (steps == steps[:1]).all():
        return repeated(len(offsets), int(steps[0]) if steps.size else 0, (first, run(int(nbytes[0]))))
    return first, runs(offsets - first, nbytes)

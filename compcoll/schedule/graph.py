"""A schedule: one rank's operations in a collective, each with its dependencies.

The idea comes from libNBC (Hoefler, Lumsdaine and Rehm, "Implementation and Performance Analysis of
Non-Blocking Collective Operations for MPI", 2007). Operations are in the order in which the algorithm issues
them, which is their priority; an operation never depends on a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np

from compcoll.core._cpu import Compiled

__all__ = ["BLOCK", "NONE", "OP", "SCRATCH", "Kind", "Schedule"]

#: No block, frame or peer.
NONE = -1


class Kind(IntEnum):
    """Kind of an operation (csrc/engine/schedule.h). Operands are blocks, frames in brackets."""

    ENCODE = 0  # block, [frame], block that gets the frame's values or NONE; ``inside`` for its node alone
    DECODE = 1  # block, [frame]
    DECODE_ADD = 2  # block, [frame]: block += frame
    ADD = 3  # block like the sum, [frame], [other], [sum]
    COPY = 4  # block, block that gets its values, widened where it is an accumulator
    ROUND = 5  # accumulator, block that gets its values: a result
    WRITE_DECODED = 6  # block, [frame], block that gets the values which everybody else decodes
    SEND = 7  # [frame], peer, tag
    RECV = 8  # block like the frame's, [frame], peer, tag


#: Missing operands are ``NONE``. ``n_deps`` counts the operations that an operation depends on; the
#: operations that depend on it are in `Schedule.successors`, from ``first`` to the next operation's
#: ``first``. ``idle``: no other rank needs it, so it runs when there is nothing else to do. ``inside``: a
#: frame is for ranks of the same node, or a message stays on the node.
OP = np.dtype(
    [
        ("kind", "i4"),
        ("block", "i4"),
        ("into", "i4"),
        ("frame", "i4"),
        ("other", "i4"),
        ("sum", "i4"),
        ("peer", "i4"),
        ("tag", "i4"),
        ("n_deps", "i4"),
        ("first", "i4"),
        ("idle", "i4"),
        ("inside", "i4"),
    ]
)
#: ``start`` and ``n`` count elements of a buffer; ``wide``: elements have the accumulators' type. A block of
#: two or three dimensions has the shape ``(n / plane, plane / row, row)``; in two dimensions ``plane`` equals
#: ``row``, in one both are 0. A chunk whose frame may have another shape is chunk ``number`` of ``count`` of
#: the block ``of``, and may receive up to ``most`` elements; otherwise ``of`` is ``NONE`` and ``most`` its
#: own n (compcoll/schedule/planes.py).
BLOCK = np.dtype(
    [
        ("buffer", "i4"),
        ("wide", "i4"),
        ("start", "i8"),
        ("n", "i8"),
        ("most", "i8"),
        ("plane", "i8"),
        ("row", "i8"),
        ("of", "i4"),
        ("number", "i4"),
        ("count", "i4"),
    ],
    align=True,
)
#: A buffer that exists while the schedule runs.
SCRATCH = np.dtype([("n", "i8"), ("wide", "i4")], align=True)


@dataclass(frozen=True, eq=False)
class Schedule:
    """One rank's part in a collective.

    Attributes
    ----------
    rank, size : int
    ops : numpy.ndarray
        Of type `OP`.
    blocks : numpy.ndarray
        Of type `BLOCK`.
    successors : numpy.ndarray
        int32: the operations that depend on each operation, one after the other.
    n_buffers : int
        Number of the caller's buffers, which come first.
    scratch : numpy.ndarray
        Of type `SCRATCH`: the buffers that follow.
    n_frames : int
    n_tags : int
        Tags are smaller.
    """

    rank: int
    size: int
    ops: np.ndarray
    blocks: np.ndarray
    successors: np.ndarray
    n_buffers: int
    scratch: np.ndarray
    n_frames: int
    n_tags: int

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def compiled(self) -> Compiled:
        """The schedule for compiled code."""
        return Compiled(self)

    def dependencies(self) -> list[list[int]]:
        """For each operation, the operations that it depends on."""
        found: list[list[int]] = [[] for _ in self.ops]
        bounds = [*self.ops["first"].tolist(), len(self.successors)]
        for i, (first, end) in enumerate(pairwise(bounds)):
            for k in self.successors[first:end].tolist():
                found[k].append(i)
        return found

    def __str__(self) -> str:
        lines = [f"rank {self.rank} of {self.size}: {len(self.ops)} operations, {self.n_frames} frames"]
        dependencies = self.dependencies()
        for i, op in enumerate(self.ops):
            after = f"  after {', '.join(map(str, dependencies[i]))}" if dependencies[i] else ""
            lines.append(f"{i:5d}  {self._described(op):60s}{after}".rstrip())
        return "\n".join(lines)

    def _described(self, op: np.void) -> str:
        kind = Kind(op["kind"])
        parts = [kind.name.lower()]
        if op["block"] != NONE:
            parts.append(self._named(op["block"]))
        if op["frame"] != NONE:
            parts.append(f"frame {op['frame']}")
        if op["other"] != NONE:
            parts.append(f"frame {op['other']} -> frame {op['sum']}")
        if op["into"] != NONE:
            parts.append(f"-> {self._named(op['into'])}")
        if op["peer"] != NONE:
            parts.append(f"{'to' if kind is Kind.SEND else 'from'} rank {op['peer']}, tag {op['tag']}")
        if op["inside"]:
            parts.append("inside")
        return " ".join(parts)

    def _named(self, index: int) -> str:
        block = self.blocks[index]
        end = block["start"] + block["n"]
        own = block["buffer"] - self.n_buffers
        name = f"buffer {block['buffer']}" if own < 0 else f"scratch {own}"
        return f"{name}[{block['start']}:{end}]{self._shape(block)}"

    @staticmethod
    def _shape(block: np.void) -> str:
        if not block["row"]:
            return ""
        shape = block["n"] // block["plane"], block["plane"] // block["row"], block["row"]
        return " as " + "x".join(map(str, shape if shape[1] > 1 else shape[::2]))

"""Alltoallw: each pair of ranks has a datatype of its own, and decides for itself as in Alltoallv."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.devices import arrays
from compcoll.engine.decision import Decision
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.buffers import Message, in_place, on_gpu
from compcoll.mpi.layouts import entry_of
from compcoll.mpi.staging import Staged
from compcoll.mpi.vectors import Shared, VectorCalls

__all__ = ["Typed", "TypedCalls"]


class Typed:
    """A buffer argument with a count, a displacement in bytes and a datatype for each rank.

    Attributes
    ----------
    nbytes : list of int
        Bytes of each block's values; those of a type that consists of several basic ones count as well.

    Raises
    ------
    LeftToMPI
        Where mpi4py will find something wrong with it.
    """

    def __init__(self, spec: Any, blocks: int):
        try:
            self._buffer, counts, displs, types = _unpacked(spec)
            self._memory = None if on_gpu(spec) else _memory_of(self._buffer)
            if self._memory is MPI.BOTTOM and (counts is None or displs is None):
                raise LeftToMPI
            self._counts = [1] * blocks if counts is None else [index(n) for n in counts]
            self._displs = [0] * blocks if displs is None else [index(n) for n in displs]
            self._types: list[MPI.Datatype] = list(types)
            if not len(self._counts) == len(self._displs) == len(self._types) == blocks:
                raise LeftToMPI
            pairs = list(zip(self._counts, self._types, strict=True))
            self._entries = [entry_of(datatype) if n > 0 else None for n, datatype in pairs]
            each = zip(self._counts, self._entries, strict=True)
            self.nbytes = [n * entry.piece[1].nbytes if entry is not None else 0 for n, entry in each]
        except (AttributeError, BufferError, TypeError, ValueError, MPI.Exception):
            raise LeftToMPI from None

    def message(self, i: int) -> Message | None:
        """Block i, which is not empty and not a GPU's; None where no basic type is that of all its values."""
        datatype, entry = self._types[i], self._entries[i]
        if entry is None or entry.element is None:
            return None
        return Message(self._memory, datatype, entry, [self._counts[i]], [self._displs[i]], unit=1)

    def masked(self, keep: list[bool]) -> list:
        """The argument in mpi4py's form, with the counts of the other blocks set to 0."""
        counts = [n if k else 0 for n, k in zip(self._counts, keep, strict=True)]
        return [self._buffer, counts, self._displs, self._types]


def _memory_of(buffer: Any) -> Any:
    """The bytes behind a buffer, or what stands for none."""
    if buffer is None or buffer is MPI.BOTTOM:
        return MPI.BOTTOM
    if arrays.is_torch(buffer):
        arrays.check_tensor(buffer)
    memory: Any = MPI.buffer(buffer)
    return np.frombuffer(memory, np.uint8) if memory.nbytes else np.empty(0, np.uint8)


def _unpacked(spec: Any) -> tuple:
    """(buffer, counts, displacements, types); LeftToMPI for what mpi4py does not take either."""
    match len(spec):
        case 2:
            buffer, types = spec
            return buffer, None, None, types
        case 3:
            buffer, (counts, displs), types = spec
            return buffer, counts, displs, types
        case 4:
            return tuple(spec)
    raise LeftToMPI


#: A large message and how it is compressed.
Large = tuple[Message, Decision]


class TypedCalls(VectorCalls):
    """The methods with a datatype for each pair of ranks."""

    def Alltoallw(self, sendbuf, recvbuf) -> None:
        self._serve("Alltoallw", super().Alltoallw, self._share_alltoallw, sendbuf, recvbuf)

    def _share_alltoallw(self, sendbuf, recvbuf) -> Shared | None:
        send, recv = self._typed("Alltoallw", sendbuf, recvbuf)
        staged = None
        if send is not None and (on_gpu(sendbuf) or on_gpu(recvbuf)):
            staged = Staged("Alltoallw", (sendbuf, recvbuf))
            sendbuf, recvbuf = staged.args
            send, recv = self._typed("Alltoallw", sendbuf, recvbuf)
        if send is None or recv is None:
            return None
        outgoing, incoming = self._large_parts("Alltoallw", send), self._large_parts("Alltoallw", recv)
        if not outgoing and not incoming:
            return None
        blocks = {p: message.source(0) for p, (message, _) in outgoing.items()}
        if send is recv:
            blocks = {p: block.copy() for p, block in blocks.items()}
        targets = {p: message.target(0) for p, (message, _) in incoming.items()}
        ranks = range(self._size)
        sends = sendbuf if send is recv else send.masked([p not in outgoing for p in ranks])
        shared = Shared((sends, recv.masked([p not in incoming for p in ranks])), staged)
        for like, decision, out, into in _alike(outgoing, incoming):
            nothing = np.empty(0, like.dtype)
            some = [blocks[p] if p in out else nothing for p in ranks]
            others = [targets[p] if p in into else nothing for p in ranks]
            shapes = {p: outgoing[p][0].shape(0) for p in out}
            shared.add("Alltoallw", decision, like, some, others, shapes)
        return shared

    def _typed(self, op: str, sendbuf, recvbuf) -> tuple[Typed | None, Typed | None]:
        """What is sent and what is received; (None, None) where no message of this rank is large."""
        if self._context is None or self._size == 1:
            self._gate.last = (op, self._why_small())
            return None, None
        try:
            recv = Typed(recvbuf, self._size)
            send = recv if in_place(sendbuf) else Typed(sendbuf, self._size)
        except LeftToMPI:
            return None, None
        self._come_together()
        if any(self._is_large(p, n) for typed in (send, recv) for p, n in enumerate(typed.nbytes)):
            return send, recv
        self._gate.last = op
        return None, None

    def _is_large(self, peer: int, nbytes: int) -> bool:
        return peer != self._rank and nbytes >= max(self._min_nbytes, 1)

    def _large_parts(self, op: str, typed: Typed) -> dict[int, Large]:
        """The peers whose messages are compressed, and how; what a pair decides, both its ends know."""
        found = {}
        for peer, nbytes in enumerate(typed.nbytes):
            if not self._is_large(peer, nbytes):
                continue
            message = typed.message(peer)
            if message is None:
                self._declined(op, "the buffers' type is not accelerated")
                continue
            decision = self._decide_alone(op, message, nbytes)
            self._gate.last = (op, decision.reason)
            if decision.codec is not None:
                found[peer] = message, decision
        return found


def _alike(
    outgoing: dict[int, Large], incoming: dict[int, Large]
) -> Iterator[tuple[Message, Decision, set[int], set[int]]]:
    """(message like all, decision, peers sent to, peers received from), in the same order on all ranks."""
    kinds: dict[tuple[str, str], list[Large]] = {}
    for large in (*outgoing.values(), *incoming.values()):
        kinds.setdefault(_kind(large), []).append(large)
    for kind in sorted(kinds):
        sides = [{p for p, large in side.items() if _kind(large) == kind} for side in (outgoing, incoming)]
        yield (*kinds[kind][0], sides[0], sides[1])


def _kind(large: Large) -> tuple[str, str]:
    message, decision = large
    return str(message.dtype), repr(decision)

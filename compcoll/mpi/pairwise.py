"""Alltoallv, Alltoallw, Gatherv and Scatterv: each pair of ranks knows only its own message.

So each pair decides for itself. All ranks call MPI's method as they would anyway, but with a count of zero
for the messages that are large enough, and those travel compressed beside it. A rank without large messages
makes exactly the call that it was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.devices import arrays
from compcoll.engine import interrupts
from compcoll.engine.call import Call
from compcoll.engine.decision import Decision
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.base import Wrapper
from compcoll.mpi.buffers import Message, in_place, on_gpu
from compcoll.mpi.collectives import Arguments, buffers_of
from compcoll.mpi.layouts import entry_of
from compcoll.mpi.staging import Staged
from compcoll.operations import Blocks, Operation

__all__ = ["HybridCall", "PairwiseCalls", "TypedBlocks", "sides_of"]


@dataclass
class HybridCall:
    """A call of which MPI carries out a part.

    Attributes
    ----------
    args : tuple
        Arguments of MPI's method, which all ranks call.
    written : list of Message or Staged
        Buffers to be finished afterwards.
    calls : list of (Decision, Call)
        The part of some ranks that is compressed.
    """

    args: tuple
    written: list[Message | Staged] = field(default_factory=list)
    calls: list[tuple[Decision, Call]] = field(default_factory=list)

    def finish(self) -> None:
        """Write through what could not be written in place."""
        for one in (*(call for _, call in self.calls), *self.written):
            one.finish()


@dataclass
class _Large:
    """A message that is compressed: block ``i`` of a buffer, and how."""

    message: Message
    i: int
    decision: Decision

    @property
    def kind(self) -> tuple[str, str]:
        """The messages of one kind travel in one call."""
        return str(self.message.dtype), repr(self.decision)


class CountedBlocks:
    """A buffer argument whose blocks are of one datatype; one block is the message with ``peer``."""

    def __init__(self, message: Message, peer: int | None = None):
        self._message, self._peer = message, peer
        counts = message.counts if peer is None else message.counts[:1]
        each = [n * message.dtype.itemsize for n in counts]
        self.nbytes: dict[int, int] = dict(enumerate(each)) if peer is None else {peer: each[0]}
        self.on_gpu = message.device is not None
        #: What has to be finished when the blocks are written.
        self.written = message

    def block(self, peer: int) -> tuple[Message | None, int]:
        """The message with a rank: a parsed argument and the number of its block."""
        return self._message, peer if self._peer is None else 0

    def without(self, peers: Any) -> list:
        """The argument in mpi4py's form, with counts of 0 for these ranks."""
        if self._peer is not None:
            return self._message.masked_one()
        return self._message.masked([peer not in peers for peer in self.nbytes])


class TypedBlocks:
    """A buffer argument with a count, a displacement in bytes and a datatype for each rank.

    Attributes
    ----------
    nbytes : dict of int
        Bytes of each block's values; those of a type that consists of several basic ones count as well.

    Raises
    ------
    LeftToMPI
        Where mpi4py will find something wrong with it.
    """

    on_gpu, written = False, None

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
            self.nbytes = dict(enumerate(n * e.piece[1].nbytes if e is not None else 0 for n, e in each))
        except (AttributeError, BufferError, TypeError, ValueError, MPI.Exception):
            raise LeftToMPI from None

    def elements(self, peer: int) -> tuple[int, str] | None:
        """Elements of a block and their type; None where no basic type is that of all its values."""
        entry = self._entries[peer]
        if entry is None:
            return 0, ""
        return None if entry.element is None else (self._counts[peer] * entry.n, str(entry.element))

    def block(self, peer: int) -> tuple[Message | None, int]:
        """As of `CountedBlocks`, for a block that is not empty and not a GPU's."""
        datatype, entry = self._types[peer], self._entries[peer]
        if entry is None or entry.element is None:
            return None, 0
        counts, displs = [self._counts[peer]], [self._displs[peer]]
        return Message(self._memory, datatype, entry, counts, displs, unit=1), 0

    def without(self, peers: Any) -> list:
        """As of `CountedBlocks`."""
        counts = [0 if peer in peers else n for peer, n in enumerate(self._counts)]
        return [self._buffer, counts, self._displs, self._types]


def sides_of(operation: Operation, rank: int, size: int, given: Arguments) -> tuple[Any, Any]:
    """The blocks that a rank sends and those that it receives, the same object where that is in place.

    Either is None where the rank exchanges nothing with others there, or its type is not accelerated.

    Raises
    ------
    LeftToMPI
        Where mpi4py will find something wrong with an argument.
    """
    if operation.root and not 0 <= given.root < size:
        raise LeftToMPI
    if operation.send is Blocks.TYPED:
        recv: Any = TypedBlocks(given.buffers[1], size)
        return (recv if in_place(given.buffers[0]) else TypedBlocks(given.buffers[0], size)), recv
    messages = buffers_of(operation, rank, size, given, strict=True)
    if messages[0] is messages[1] and not operation.root:
        both = None if messages[0] is None else CountedBlocks(messages[0])
        return both, both
    send, recv = (
        CountedBlocks(message, None if blocks.many else given.root)
        if message is not None and significant
        else None
        for message, blocks, significant in zip(
            messages,
            (operation.send, operation.recv),
            significant_buffers(operation, rank, given),
            strict=True,
        )
    )
    return send, recv


def significant_buffers(operation: Operation, rank: int, given: Arguments) -> tuple[bool, bool]:
    """Whether a rank exchanges blocks of its send and of its receive buffer with other ranks."""
    at_root = rank == given.root
    send, recv = (not operation.root or at_root == (operation.root == side) for side in ("send", "recv"))
    return send, recv


class PairwiseCalls(Wrapper):
    """Operations of which each pair of ranks decides for the message between them."""

    def _run_hybrid(self, operation: Operation, given: Arguments) -> None:
        """Carry out a call: MPI's part of it, then what is compressed."""
        hybrid, plain = self._hybrid(operation, given), self._plain(operation.name)
        if hybrid is None:
            self._to_mpi(plain, *given.for_mpi(operation))
            return
        with interrupts.deferred():
            self._to_mpi(plain, *hybrid.args)
            for decision, call in hybrid.calls:  # whose tags never change: messages arrive in order
                self._carry_out(operation.name, decision, call, self._context.pairwise_tags)
            hybrid.finish()

    def _hybrid(self, operation: Operation, given: Arguments) -> HybridCall | None:
        """The parts of a call; None where MPI carries it out as it is."""
        sides = self._sides(operation, given)
        staged = None
        if sides is not None and operation.send is Blocks.TYPED and any(map(on_gpu, given.buffers)):
            staged = Staged(operation.name, given.buffers)
            given = Arguments(tuple(staged.args), given.root)
            sides = sides_of(operation, self._rank, self._size, given)
        if sides is None:
            return None
        outgoing, incoming = (self._large(operation.name, side) for side in sides)
        if not outgoing and not incoming:
            return None
        send, recv = sides
        copied = send is recv
        buffers = list(given.buffers)
        blocks, targets = _Side(outgoing), _Side(incoming)
        if operation.send is Blocks.COUNTED and operation.recv is Blocks.COUNTED:
            self._keep_own(send, recv, blocks, targets)
        sources = {p: b.message.source(b.i) for p, b in blocks.large.items()}
        if copied:
            sources = {p: block.copy() for p, block in sources.items()}
        sinks = {p: b.message.target(b.i) for p, b in targets.large.items()}
        if outgoing and not copied:
            buffers[0] = send.without(sources)
        if incoming:
            buffers[1] = recv.without(sinks)
        if operation.root and self._rank != given.root:
            buffers[0 if operation.root == "send" else 1] = None
        written: list[Message | Staged] = [staged] if staged is not None else []
        if incoming and recv.written is not None:
            written.append(recv.written)
        hybrid = HybridCall(given.for_mpi(operation, tuple(buffers)), written)
        for kind in sorted({large.kind for large in (*outgoing.values(), *incoming.values())}):
            hybrid.calls.append(self._call_of(operation, given.root, kind, blocks, targets, sources, sinks))
        return hybrid

    def _call_of(
        self, operation: Operation, root: int, kind: tuple[str, str], blocks: _Side, targets: _Side,
        sources: dict[int, Any], sinks: dict[int, Any],
    ) -> tuple[Decision, Call]:  # fmt: skip
        """A call of messages of one kind."""
        out, into = blocks.of_kind(kind), targets.of_kind(kind)
        like = next(iter((*out.values(), *into.values())))
        nothing = np.empty(0, like.message.dtype)

        def listed(of: Blocks, side: str, some: Any, values: dict[int, Any]) -> list[Any]:
            if not of.many:
                return [values[root]] if root in some else []
            if operation.root == side and self._rank != root:
                return []
            return [values[p] if p in some else nothing for p in range(self._size)]

        send = listed(operation.send, "send", out, sources)
        recv = listed(operation.recv, "recv", into, sinks)
        shapes = {
            p if operation.send.many else 0: b.message.shape(b.i) for p, b in out.items() if p != self._rank
        }
        nbytes = max(block.nbytes for block in (*send, *recv))
        dtype = like.message.dtype
        return like.decision, Call(operation.name, dtype, nbytes, False, send, recv, root, shapes=shapes)

    def _keep_own(self, send: Any, recv: Any, blocks: _Side, targets: _Side) -> None:
        """Let this rank's own block of a GPU stay on the GPU: it travels with the compressed ones."""
        if send is None or recv is None or not (send.on_gpu or recv.on_gpu):
            return
        if not blocks.large or not targets.large or send.nbytes[self._rank] != recv.nbytes[self._rank]:
            return
        first = min((*blocks.large.values(), *targets.large.values()), key=lambda large: large.kind)
        for side, own in ((blocks, send), (targets, recv)):
            message, i = own.block(self._rank)
            side.large[self._rank] = _Large(message, i, first.decision)

    def _sides(self, operation: Operation, given: Arguments) -> tuple[Any, Any] | None:
        """What is sent and what is received; None where no message of this rank is large."""
        op, typed = operation.name, operation.send is Blocks.TYPED
        if self._context is None or self._size == 1:
            self._gate.last = (op, self._why_small())
            return None
        significant = significant_buffers(operation, self._rank, given)
        mine = [spec for spec, is_mine in zip(given.buffers, significant, strict=True) if is_mine]
        if not typed and self._is_together() and all(in_place(s) or self._small(op, s) for s in mine):
            return None
        try:
            sides = sides_of(operation, self._rank, self._size, given)
        except (LeftToMPI, TypeError):
            return None
        self._come_together()
        if any(side is None and is_mine for side, is_mine in zip(sides, significant, strict=True)):
            self._declined(op, "the buffers' type is not accelerated")
        if typed and not any(self._is_large(p, n) for side in sides for p, n in side.nbytes.items()):
            self._gate.last = op
            return None
        return sides

    def _is_together(self) -> bool:
        """Whether there is nothing left for `_come_together` to do."""
        context = self._context
        if context is None or self._size == 1:
            return True
        self._check_usable()
        return context.has_shadow and not self._policy.names_communicators

    def _come_together(self) -> None:
        """What all ranks have to do together before some of them talk to each other; collective."""
        if self._is_together():
            return
        with interrupts.deferred():
            self._context.make_shadow()
            self._agree_on_name()
        self._gate.paired = self._is_together()

    def _is_large(self, peer: int, nbytes: int) -> bool:
        return peer != self._rank and nbytes >= max(self._min_nbytes, 1)

    def _large(self, op: str, side: Any) -> dict[int, _Large]:
        """The peers whose messages are compressed, and how; what a pair decides, both its ends know."""
        found: dict[int, _Large] = {}
        if side is None:
            return found
        reason = ""
        for peer, nbytes in side.nbytes.items():
            if not self._is_large(peer, nbytes):
                continue
            message, i = side.block(peer)
            if message is None:
                self._declined(op, "the buffers' type is not accelerated")
                continue
            decision = self._decide_alone(op, message, nbytes)
            reason = decision.reason
            if decision.codec is not None:
                found[peer] = _Large(message, i, decision)
        if not found:
            self._gate.last = (op, reason or f"the messages are below min_nbytes = {self._min_nbytes}")
        return found


class _Side:
    """The large messages of one side by their peers."""

    def __init__(self, large: dict[int, _Large]):
        self.large = dict(large)

    def of_kind(self, kind: tuple[str, str]) -> dict[int, _Large]:
        return {peer: large for peer, large in self.large.items() if large.kind == kind}


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

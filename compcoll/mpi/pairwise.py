"""Alltoallv, Alltoallw, Gatherv and Scatterv: each pair of ranks knows only its own message.

So each pair decides for itself. All ranks call MPI's method as they would anyway, but with a count of zero
for the messages that are large enough, and those travel compressed beside it. A rank without large messages
makes exactly the call that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.engine.call import Call
from compcoll.engine.decision import Decision
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.blocks import sides_of, significant_buffers
from compcoll.mpi.buffers import Message, in_place, on_gpu
from compcoll.mpi.collectives import Arguments
from compcoll.mpi.core import CommBase
from compcoll.mpi.staging import Staged
from compcoll.operations import Blocks, Operation

__all__ = ["HybridCall", "PairwiseCalls"]


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


class PairwiseCalls(CommBase):
    """Operations of which each pair of ranks decides for the message between them."""

    def _plain(self, name: str) -> Callable:
        """mpi4py's own method."""
        return getattr(MPI.Intracomm, name).__get__(self)

    def _run_hybrid(self, operation: Operation, given: Arguments) -> None:
        """Carry out a call: MPI's part of it, then what is compressed."""
        hybrid, plain = self._hybrid(operation, given), self._plain(operation.name)
        if hybrid is None:
            self._to_mpi(plain, *given.for_mpi(operation))
            return
        self._to_mpi(plain, *hybrid.args)
        tags = self._context.pairwise_tags  # which never change: messages arrive in order
        for i, (decision, call) in enumerate(hybrid.calls):
            self._carry_out(operation.name, decision, call, tags, i == 0)
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
        """The send and the receive side of a call; None where no message of this rank is large."""
        op, typed = operation.name, operation.send is Blocks.TYPED
        if self._context is None or self._size == 1:
            self._gate.last = (op, self._why_small())
            return None
        significant = significant_buffers(operation, self._rank, given)
        mine = [spec for spec, is_mine in zip(given.buffers, significant, strict=True) if is_mine]
        if not typed and self._is_agreed() and all(in_place(s) or self._small(op, s) for s in mine):
            return None
        try:
            sides = sides_of(operation, self._rank, self._size, given)
        except (LeftToMPI, TypeError):
            return None
        self._ensure_agreed()
        if any(side is None and is_mine for side, is_mine in zip(sides, significant, strict=True)):
            self._declined(op, "the buffers' type is not accelerated")
        if typed and not any(self._is_large(p, n) for side in sides for p, n in side.nbytes.items()):
            self._gate.last = op
            return None
        return sides

    def _is_agreed(self) -> bool:
        """Whether there is nothing left for `_ensure_agreed` to do."""
        context = self._context
        if context is None or self._size == 1:
            return True
        self._check_usable()
        return not self._policy.names_communicators

    def _ensure_agreed(self) -> None:
        """Agree on the communicator before some ranks exchange messages; collective."""
        if self._is_agreed():
            return
        self._agree_on_name()

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
            decision = self._decide_p2p(op, message, nbytes, peer)
            reason = decision.reason
            if decision.codec is not None:
                found[peer] = _Large(message, i, decision)
        if not found:
            self._gate.last = (op, reason or self._why_small())
        return found


class _Side:
    """The large messages of one side by their peers."""

    def __init__(self, large: dict[int, _Large]):
        self.large = dict(large)

    def of_kind(self, kind: tuple[str, str]) -> dict[int, _Large]:
        return {peer: large for peer, large in self.large.items() if large.kind == kind}

"""Alltoallv, Gatherv and Scatterv: each pair of ranks knows only its own message.

So each pair decides for itself. All ranks call MPI's method as they would anyway, but with a count of
zero for the messages that are large enough, and those travel compressed beside it. A rank without large
messages makes exactly the call that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compcoll.engine import interrupts
from compcoll.engine.call import Call
from compcoll.engine.decision import Decision
from compcoll.mpi._shortcut import shortcut
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.base import Wrapper
from compcoll.mpi.buffers import Message, in_place, parse
from compcoll.mpi.staging import Staged

__all__ = ["Shared", "VectorCalls"]


@dataclass
class Shared:
    """A call of which MPI does a part.

    Attributes
    ----------
    args : tuple
        What MPI's method is called with, by all ranks.
    written : Message, Staged or None
        What has to be finished afterwards.
    calls : list of (Decision, Call)
        What some ranks do besides.
    """

    args: tuple
    written: Message | Staged | None = None
    calls: list[tuple[Decision, Call]] = field(default_factory=list)

    def add(
        self, op: str, decision: Decision, like: Message, send: list, recv: list,
        shapes: dict[int, tuple[int, ...] | None], root: int = 0,
    ) -> None:  # fmt: skip
        """Add a call of blocks like those of a message."""
        nbytes = max(b.nbytes for b in (*send, *recv))
        self.calls.append((decision, Call(op, like.dtype, nbytes, False, send, recv, root, shapes=shapes)))

    def finish(self) -> None:
        """Write through what could not be written in place."""
        for _, call in self.calls:
            call.finish()
        if self.written is not None:
            self.written.finish()


class VectorCalls(Wrapper):
    """The methods whose counts differ from rank to rank and are known only to sender and receiver."""

    @shortcut(2, pairs=True)
    def Alltoallv(self, sendbuf, recvbuf) -> None:
        self._serve("Alltoallv", super().Alltoallv, self._share_alltoallv, sendbuf, recvbuf)

    @shortcut(2, pairs=True)
    def Gatherv(self, sendbuf, recvbuf, root: int = 0) -> None:
        self._serve("Gatherv", super().Gatherv, self._share_gatherv, sendbuf, recvbuf, root)

    @shortcut(2, pairs=True)
    def Scatterv(self, sendbuf, recvbuf, root: int = 0) -> None:
        self._serve("Scatterv", super().Scatterv, self._share_scatterv, sendbuf, recvbuf, root)

    def _serve(self, op: str, plain: Callable, share: Callable[..., Shared | None], *args: Any) -> None:
        """Carry out a call: MPI's part of it, then what is compressed."""
        shared = share(*args)
        if shared is None:
            self._to_mpi(plain, *args)
            return
        with interrupts.deferred():
            self._to_mpi(plain, *shared.args)
            for decision, call in shared.calls:  # whose tags never change: messages arrive in order
                self._carry_out(op, decision, call, self._context.pairwise_tags)
            shared.finish()

    def _share_alltoallv(self, sendbuf, recvbuf) -> Shared | None:
        send, recv = self._both("Alltoallv", sendbuf, recvbuf)
        copied = send is recv
        outgoing, incoming = self._large("Alltoallv", send), self._large("Alltoallv", recv)
        if not outgoing and not incoming:
            return None
        # This rank's own block of a GPU need not see the host.
        on_device = send.device is not None or recv.device is not None
        own = {self._rank} if on_device and outgoing and incoming else set()
        if own and send.counts[self._rank] != recv.counts[self._rank]:
            own = set()
        blocks = {p: send.source(p).copy() if copied else send.source(p) for p in {*outgoing, *own}}
        targets = {p: recv.target(p) for p in {*incoming, *own}}
        ranks = range(self._size)
        # A side with a message of a type that is not accelerated has none that is.
        sends = send.masked([p not in blocks for p in ranks]) if outgoing and not copied else sendbuf
        recvs = recv.masked([p not in targets for p in ranks]) if incoming else recvbuf
        shared, like = Shared((sends, recvs), recv if incoming else None), send or recv
        for decision, out, into in _grouped(outgoing, incoming):
            sources = [blocks[p] if p in out | own else _nothing(like) for p in ranks]
            sinks = [targets[p] if p in into | own else _nothing(like) for p in ranks]
            own = set()
            shared.add("Alltoallv", decision, like, sources, sinks, {p: send.shape(p) for p in out})
        return shared

    def _share_gatherv(self, sendbuf, recvbuf, root: int = 0) -> Shared | None:
        own, other = (recvbuf, sendbuf) if self._rank == root else (sendbuf, None)
        message, large = self._rooted("Gatherv", own, other, root)
        if message is None or not large:
            return None
        if self._rank != root:
            shared = Shared((message.masked_one(), None, root))
            shared.add("Gatherv", large[0], message, [message.source(0)], [], {0: message.shape(0)}, root)
            return shared
        targets = {p: message.target(p) for p in large}
        ranks = range(self._size)
        shared = Shared((sendbuf, message.masked([p not in large for p in ranks]), root), message)
        for decision, _, into in _grouped({}, large):
            blocks = [targets[p] if p in into else _nothing(message) for p in ranks]
            shared.add("Gatherv", decision, message, [], blocks, {}, root)
        return shared

    def _share_scatterv(self, sendbuf, recvbuf, root: int = 0) -> Shared | None:
        own, other = (sendbuf, recvbuf) if self._rank == root else (recvbuf, None)
        message, large = self._rooted("Scatterv", own, other, root)
        if message is None or not large:
            return None
        if self._rank != root:
            shared = Shared((None, message.masked_one(), root), message)
            shared.add("Scatterv", large[0], message, [], [message.target(0)], {}, root)
            return shared
        ranks = range(self._size)
        shared = Shared((message.masked([p not in large for p in ranks]), recvbuf, root))
        for decision, out, _ in _grouped(large, {}):
            blocks = [message.source(p) if p in out else _nothing(message) for p in ranks]
            shared.add("Scatterv", decision, message, blocks, [], {p: message.shape(p) for p in out}, root)
        return shared

    def _both(self, op: str, sendbuf, recvbuf) -> tuple[Any, Any]:
        """What is sent and what is received; (None, None) where no message of this rank is large."""
        copied = in_place(sendbuf)
        if self._is_together() and self._small(op, recvbuf) and (copied or self._small(op, sendbuf)):
            return None, None
        try:
            recv = self._judged(recvbuf, self._size, vector=True)
            send = recv if copied else self._judged(sendbuf, self._size, vector=True)
        except LeftToMPI:
            return None, None
        self._come_together()
        if recv is None or send is None:
            self._declined(op, "the buffers' type is not accelerated")
        return send, recv

    def _rooted(self, op: str, own, other, root: int) -> tuple[Any, dict[int, Decision]]:
        """This rank's messages, all of them at the root, and those that are large; `_large_rooted`."""
        if self._is_together() and self._small(op, own):
            return None, {}
        at_root = self._rank == root
        try:
            message = self._judged(own, self._size if at_root else None, vector=at_root)
            if at_root and not in_place(other):
                self._judged(other, None)
            if not 0 <= root < self._size:
                raise LeftToMPI
        except (LeftToMPI, TypeError):
            return None, {}
        self._come_together()
        if message is None:
            self._declined(op, "the buffers' type is not accelerated")
        return message, self._large_rooted(op, message, root)

    @staticmethod
    def _judged(spec, blocks: int | None, vector: bool = False) -> Message | None:
        """A parsed argument; LeftToMPI where mpi4py finds something wrong with it."""
        return parse(spec, blocks, vector=vector, device=True, judged=True)

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

    def _large(self, op: str, message: Message | None) -> dict[int, Decision]:
        """The peers whose messages are compressed, and how; what a pair decides, both its ends know."""
        found: dict[int, Decision] = {}
        if message is None or self._context is None:
            return found
        reason = ""
        for peer, count in enumerate(message.counts):
            nbytes = count * message.dtype.itemsize
            if peer != self._rank and nbytes and nbytes >= self._min_nbytes:
                decision = self._decide_alone(op, message, nbytes)
                reason = decision.reason
                if decision.codec is not None:
                    found[peer] = decision
        if not found:
            self._gate.last = (op, reason or f"the messages are below min_nbytes = {self._min_nbytes}")
        return found

    def _large_rooted(self, op: str, message: Message | None, root: int) -> dict[int, Decision]:
        """`_large` where only the root has several messages; the others find theirs under 0."""
        if message is None or self._context is None or self._size == 1:
            return {}
        if self._rank == root:
            return self._large(op, message)
        nbytes = message.nbytes
        if not nbytes or nbytes < self._min_nbytes:
            self._gate.last = (op, f"the message is below min_nbytes = {self._min_nbytes}")
            return {}
        decision = self._decide_alone(op, message, nbytes)
        self._gate.last = (op, decision.reason)
        return {0: decision} if decision.codec is not None else {}


def _grouped(outgoing: dict[int, Decision], incoming: dict[int, Decision]):
    """(decision, peers sent to, peers received from), in the same order on all ranks."""
    decisions = {repr(d): d for d in (*outgoing.values(), *incoming.values())}
    for key in sorted(decisions):
        decision = decisions[key]
        yield (
            decision,
            {p for p, d in outgoing.items() if d == decision},
            {p for p, d in incoming.items() if d == decision},
        )


def _nothing(like: Message) -> np.ndarray:
    """An empty block."""
    return np.empty(0, like.dtype)

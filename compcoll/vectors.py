"""Alltoallv, Gatherv and Scatterv: each pair of ranks knows only its own message.

So each pair decides for itself. All ranks call MPI's method as they would anyway, but with a count of
zero for the messages that are large enough, and those travel compressed beside it. A rank without large
messages makes exactly the call that it was asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll import algorithms as alg
from compcoll._shortcut import shortcut
from compcoll.buffers import Message, in_place, parse
from compcoll.engine import Engine
from compcoll.messages import kind_of
from compcoll.policy import Decision
from compcoll.runtime.cuda import CudaWork
from compcoll.runtime.host import HostWork

__all__ = ["VectorCalls"]

_NOTHING = np.empty(0, np.uint8)


class VectorCalls(Engine):
    """The methods whose counts differ from rank to rank and are known only to sender and receiver."""

    @shortcut(2)
    def Alltoallv(self, sendbuf, recvbuf) -> None:
        copied = in_place(sendbuf)
        if self._small("Alltoallv", recvbuf) and (copied or self._small("Alltoallv", sendbuf)):
            return self._to_mpi(super().Alltoallv, sendbuf, recvbuf)
        # None has no large messages.
        recv: Any = self._parse("Alltoallv", recvbuf, self._size, vector=True)
        send: Any = recv if copied else self._parse("Alltoallv", sendbuf, self._size, vector=True)
        outgoing, incoming = self._large("Alltoallv", send), self._large("Alltoallv", recv)
        if not outgoing and not incoming:
            return self._to_mpi(super().Alltoallv, sendbuf, recvbuf)
        # This rank's own block of a GPU need not see the host.
        kind = kind_of(send, recv)
        own = {self._rank} if kind is CudaWork and outgoing and incoming else set()
        if own and send.counts[self._rank] != recv.counts[self._rank]:
            own = set()
        blocks = {p: send.source(p).copy() if copied else send.source(p) for p in {*outgoing, *own}}
        targets = {p: recv.target(p) for p in {*incoming, *own}}
        ranks = range(self._size)
        # A side with a message of a type that is not accelerated has none that is.
        sends = send.masked([p not in blocks for p in ranks]) if outgoing and not copied else sendbuf
        recvs = recv.masked([p not in targets for p in ranks]) if incoming else recvbuf
        self._to_mpi(super().Alltoallv, sends, recvs)
        for decision, out, into in self._grouped(outgoing, incoming):
            sends = [blocks[p] if p in out | own else _NOTHING for p in ranks]
            recvs = [targets[p] if p in into | own else _NOTHING for p in ranks]
            own = set()
            self._among_some("Alltoallv", decision, lambda rt, s=sends, r=recvs: alg.alltoall(rt, s, r), kind)
        if incoming:
            recv.finish()

    @shortcut(2)
    def Gatherv(self, sendbuf, recvbuf, root: int = 0) -> None:
        own = recvbuf if self._rank == root else sendbuf
        if self._small("Gatherv", own):
            return self._to_mpi(super().Gatherv, sendbuf, recvbuf, root)
        message = self._rooted("Gatherv", own, root)
        large = self._large_rooted("Gatherv", message, root)
        if message is None or not large:
            return self._to_mpi(super().Gatherv, sendbuf, recvbuf, root)
        kind = kind_of(message)
        if self._rank == root:
            targets = {p: message.target(p) for p in large}
            rest = message.masked([p not in large for p in range(self._size)])
            self._to_mpi(super().Gatherv, sendbuf, rest, root)
            for decision, _, into in self._grouped({}, large):
                blocks = [targets[p] if p in into else _NOTHING for p in range(self._size)]
                self._among_some(
                    "Gatherv", decision, lambda rt, b=blocks: alg.gather(rt, None, b, root), kind
                )
            message.finish()
        else:
            super().Gatherv(message.masked_one(), None, root)
            self._among_some(
                "Gatherv", large[0], lambda rt: alg.gather(rt, message.source(0), [], root), kind
            )

    @shortcut(2)
    def Scatterv(self, sendbuf, recvbuf, root: int = 0) -> None:
        own = sendbuf if self._rank == root else recvbuf
        if self._small("Scatterv", own):
            return self._to_mpi(super().Scatterv, sendbuf, recvbuf, root)
        message = self._rooted("Scatterv", own, root)
        large = self._large_rooted("Scatterv", message, root)
        if message is None or not large:
            return self._to_mpi(super().Scatterv, sendbuf, recvbuf, root)
        kind = kind_of(message)
        if self._rank == root:
            rest = message.masked([p not in large for p in range(self._size)])
            self._to_mpi(super().Scatterv, rest, recvbuf, root)
            for decision, out, _ in self._grouped(large, {}):
                blocks = [message.source(p) if p in out else _NOTHING for p in range(self._size)]
                self._among_some(
                    "Scatterv",
                    decision,
                    lambda rt, b=blocks: alg.scatter(rt, b, None, root),
                    kind,
                )
        else:
            super().Scatterv(None, message.masked_one(), root)
            self._among_some(
                "Scatterv",
                large[0],
                lambda rt: alg.scatter(rt, [], message.target(0), root),
                kind,
            )
            message.finish()

    def _parse(self, op: str, spec, blocks: int | None, *, vector: bool) -> Message | None:
        message = parse(spec, blocks, vector=vector, device=True) if self._context is not None else None
        if message is None:
            self._declined(op, "the buffers' type is not accelerated")
        return message

    def _rooted(self, op: str, own, root: int) -> Message | None:
        at_root = self._rank == root
        return self._parse(op, own, self._size if at_root else None, vector=at_root)

    def _large(self, op: str, message: Message | None) -> dict[int, Decision]:
        """The peers whose messages are compressed, and how; what a pair decides, both its ends know."""
        found: dict[int, Decision] = {}
        if message is None:
            return found
        for peer, count in enumerate(message.counts):
            nbytes = count * message.dtype.itemsize
            if peer != self._rank and nbytes and nbytes >= self._min_nbytes:
                decision = self._decide_alone(op, message.dtype, nbytes)
                if decision.codec is not None:
                    found[peer] = decision
        if not found:
            self._gate.last = (op, "the messages are below min_nbytes")
        return found

    def _large_rooted(self, op: str, message: Message | None, root: int) -> dict[int, Decision]:
        """`_large` where only the root has several messages; the others find theirs under 0."""
        if message is None or self._size == 1 or not 0 <= root < self._size:
            return {}
        if self._rank == root:
            return self._large(op, message)
        nbytes = message.nbytes
        if not nbytes or nbytes < self._min_nbytes:
            self._gate.last = (op, "the message is below min_nbytes")
            return {}
        decision = self._decide_alone(op, message.dtype, nbytes)
        return {0: decision} if decision.codec is not None else {}

    def _among_some(self, op: str, decision: Decision, body, kind: type[HostWork]) -> None:
        """`_execute` where other ranks do not: its tag is always the same, and messages arrive in order."""
        self._execute(op, decision, body, self._context.pairwise_tags, kind)

    @staticmethod
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

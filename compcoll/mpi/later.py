"""Nonblocking messages: Isend, Issend, Irecv, Isendrecv.

A compressed send is on its way when the method returns: its envelope is, which holds the first chunk and is
matched like any other message, and the engine encodes and sends the other chunks while the program computes.
It cannot be cancelled any more. What comes is delivered by the engine's thread, too.
"""

from __future__ import annotations

from functools import partial

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.decision import Decision
from compcoll.mpi.buffers import Message, on_gpu, parse
from compcoll.mpi.messages import Outgoing, Tally
from compcoll.mpi.pointtopoint import PointToPoint
from compcoll.mpi.receives import Receive, copy_status
from compcoll.mpi.requests import Pending, Settled

__all__ = ["NonblockingMessages"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG


class NonblockingMessages(PointToPoint):
    """The nonblocking point-to-point methods: each returns an `MPI.Request`."""

    def Isend(self, buf, dest: int, tag: int = 0) -> MPI.Request:
        message, decision = self._outgoing("Send", buf, dest)
        if message is None or decision is None:
            return self._to_mpi(super().Isend, buf, dest, tag)
        self._check_send(buf, dest, tag)
        return self._send_later(message, decision, dest, tag)

    def Issend(self, buf, dest: int, tag: int = 0) -> MPI.Request:
        message, decision = self._outgoing("Send", buf, dest)
        if message is None or decision is None:
            return self._to_mpi(super().Issend, buf, dest, tag)
        self._check_send(buf, dest, tag)
        return self._send_later(message, decision, dest, tag, synchronous=True)

    def Irecv(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        message = self._incoming("Recv", buf, source, tag) or self._landed_later(buf, source)
        if message is None and not self._found_open(source, tag, None):
            self._expect_any(source)
            return self._to_mpi(super().Irecv, buf, source, tag)
        self._check_receive(buf, source, tag)
        if message is None:
            taken = self._opened(source, tag)
            assert taken is not None
            return self._replayed(taken, None, lambda mirror: mirror.Irecv(buf, 0, taken.tag))
        received = partial(self._received, "Recv")
        with interrupts.deferred():
            return Receive(self._context.inbox, message, source, tag, received=received).request

    def Isendrecv(
        self, sendbuf, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> MPI.Request:  # fmt: skip
        send, decision = self._outgoing("Sendrecv", sendbuf, dest)
        recv = self._incoming("Sendrecv", recvbuf, source, recvtag) or self._landed_later(recvbuf, source)
        if decision is None and recv is None:
            self._expect_any(source)
            return self._to_mpi(super().Isendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        self._check_receive(recvbuf, source, recvtag)
        self._check_send(sendbuf, dest, sendtag)
        with interrupts.deferred():
            settled: Settled = _nothing
            tally, received = Tally(), None
            if send is None or decision is None or send.device is not None:
                sent: _engine.Task = _engine.Request(self._to_mpi(super().Isend, sendbuf, dest, sendtag))
                received = partial(self._received, "Sendrecv")
            else:
                outgoing, settled = self._begin_send("Sendrecv", send, decision, dest, sendtag, tally)
                sent = _engine.Together(outgoing.tasks, outgoing.question)
            if recv is not None:
                both = sent, settled
                return Receive(self._context.inbox, recv, source, recvtag, both, received, tally).request
            self._expect_any(source)
            landing = _engine.Request(self._to_mpi(super().Irecv, recvbuf, source, recvtag))
            return Pending(
                [sent, landing], settled, status=lambda status: copy_status(landing.status, status),
                cancel=landing.request.Cancel,
            ).request  # fmt: skip

    def Isendrecv_replace(
        self, buf, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> MPI.Request:
        copy = self._copied(buf, dest, source)
        if copy is None:
            return self._to_mpi(super().Isendrecv_replace, buf, dest, sendtag, source, recvtag)
        return self.Isendrecv(copy, dest, sendtag, buf, source, recvtag)

    # -- helpers

    def _send_later(
        self, message: Message, decision: Decision, dest: int, tag: int, synchronous: bool = False
    ) -> MPI.Request:  # fmt: skip
        """Send a message compressed, and leave what remains to be done to the engine."""
        with interrupts.deferred():
            outgoing, settled = self._begin_send("Send", message, decision, dest, tag, Tally(), synchronous)
            pending = Pending(outgoing.tasks, settled, question=outgoing.question)
            self._context.channel.goes_on(pending)
        return pending.request

    def _begin_send(
        self, op: str, message: Message, decision: Decision, dest: int, tag: int, tally: Tally,
        synchronous: bool = False,
    ) -> tuple[Outgoing, Settled]:  # fmt: skip
        """Begin to send a message compressed; what has to be called when all is sent."""
        outgoing = Outgoing(self._context.channel, decision, message, dest, tag, tally, synchronous)

        def settled(request: MPI.Request, error: Exception | None) -> None:
            try:
                outgoing.finish()
            finally:
                tally.end()
                self._completed(request, (op, decision, tally))
                if any(task.end != _engine.DONE for task in outgoing.tasks):
                    self._break(f"{op} was left half-way")
            if error is None:
                self._check_strict(op, decision, tally.fallbacks)

        self.calls_accelerated += 1
        return outgoing, settled

    def _received(self, op: str, request: MPI.Request, tally: Tally) -> None:
        """A message came compressed."""
        self.calls_accelerated += 1
        self._completed(request, (op, None, tally))

    def _landed_later(self, buf, source: int) -> Message | None:
        """The buffer of a GPU that MPI cannot receive into; the progress thread brings it what arrives."""
        if self._passes_gpu_memory or self._context is None or self._context.channel is None:
            return None
        return parse(buf, device=True) if source != MPI.PROC_NULL and on_gpu(buf) else None


def _nothing(request: MPI.Request, error: Exception | None) -> None:
    """A message that MPI sends unchanged leaves nothing to be done."""

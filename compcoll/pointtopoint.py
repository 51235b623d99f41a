"""Send, Recv and Sendrecv, and what else has to understand a compressed message.

A compressed message begins with an *envelope* on the user's own communicator, under the user's tag, so
that MPI matches and orders it like any other: the frame of the first chunk, then how many elements there
are in all and under which tag of a private communicator the other chunks come. An envelope has an odd
number of bytes. Types of one byte are sent uncompressed, so no other message of a matching type is odd,
and a receiver tells the two apart by itself: a plain `Isend`, or a message from an unwrapped
communicator, reaches a `Recv` as ever.

`Irecv` completes in a progress thread, behind a generalised request; `Probe` and `Iprobe` open an
envelope to see how long its message is, and keep it for the next receive. Matched probes (`Mprobe`) and
persistent receives (`Recv_init`) cannot be taught: they have to be met by `Isend` or `Send_init`, which
send uncompressed.
"""

from __future__ import annotations

from contextlib import suppress
from os import sched_yield
from typing import Literal

from mpi4py import MPI

from compcoll.buffers import Message, parse
from compcoll.engine import Engine
from compcoll.messages import send_message
from compcoll.policy import Decision

__all__ = ["PointToPoint"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG


class PointToPoint(Engine):
    """The point-to-point methods of an accelerated communicator."""

    def Send(self, buf, dest: int, tag: int = 0) -> None:
        message, decision = self._outgoing("Send", buf, dest)
        if decision is None:
            self._to_mpi(super().Send, buf, dest, tag)
        else:
            self._exchange("Send", decision, (message, dest, tag))

    def Recv(
        self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        message = self._incoming("Recv", buf, source)
        if message is None:
            self._to_mpi(super().Recv, buf, source, tag, status)
        else:
            self._exchange("Recv", None, None, (buf, message, source, tag, status))

    def Sendrecv(
        self, sendbuf, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: MPI.Status | None = None,
    ) -> None:  # fmt: skip
        send, decision = self._outgoing("Sendrecv", sendbuf, dest)
        recv = self._incoming("Sendrecv", recvbuf, source)
        if decision is None and recv is None:
            self._to_mpi(super().Sendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
            return
        plain: list[tuple[MPI.Request, MPI.Status | None]] = []
        if decision is None:
            plain.append((super().Isend(sendbuf, dest, sendtag), None))
        if recv is None:
            plain.append((super().Irecv(recvbuf, source, recvtag), status))
        outgoing = (send, dest, sendtag) if decision is not None else None
        incoming = (recvbuf, recv, source, recvtag, status) if recv is not None else None
        self._exchange("Sendrecv", decision, outgoing, incoming)
        for request, its_status in plain:
            request.Wait(its_status)

    def Irecv(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        message = self._incoming("Irecv", buf, source)
        if message is None:
            return super().Irecv(buf, source, tag)
        return self._context.inbox.receive_later(self._runtime, buf, message, source, tag)

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        if not self._understands():
            return super().Probe(source, tag, status)
        while not self.Iprobe(source, tag, status):
            sched_yield()
        return True

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None) -> bool:
        if not self._understands():
            return super().Iprobe(source, tag, status)
        inbox, status = self._context.inbox, MPI.Status() if status is None else status
        taken = inbox.find(source, tag)
        if taken is None:
            if not super().Iprobe(source, tag, status):
                return False
            if status.Get_count(MPI.BYTE) % 2 == 0:
                return True
            taken = inbox.keep(super().Mprobe(status.source, status.tag), status)
        taken.fill(status)
        return True

    # -- helpers

    def _understands(self) -> bool:
        """Whether messages of this communicator may be compressed at all."""
        return self._context is not None and self._context.multithreaded and self._size > 1

    def _exchange(self, op: str, decision: Decision | None, outgoing=None, incoming=None) -> None:
        """Send a message compressed, receive one of either kind, or both at once."""
        inbox, stream = self._context.inbox, self._context.next_stream()

        async def body(rt):
            if incoming is not None:
                rt.start(inbox.receive(rt, *incoming))
            if outgoing is not None:
                message, dest, tag = outgoing
                await send_message(rt, inbox.user, message.source(0), dest, tag, stream)

        self._execute(op, decision, body, private=self._context.pairs)
        if incoming is not None:
            incoming[1].finish()

    def _outgoing(self, op: str, buf, dest: int) -> tuple[Message | None, Decision | None]:
        """The message and how it is compressed; (None, None) where MPI sends it unchanged."""
        if dest == MPI.PROC_NULL or not self._understands() or self._small(op, buf):
            return None, None
        message = parse(buf)
        if message is None or message.dtype.itemsize == 1:
            self._declined(op, "the buffer's type is not accelerated")
            return None, None
        decision = self._decide_alone(op, message.dtype, message.nbytes)
        if decision.codec is None or not message.nbytes:
            self._last = (op, decision.reason)
            return None, None
        return message, decision

    def _incoming(self, op: str, buf, source: int) -> Message | None:
        """The buffer of a message that may come compressed, else None."""
        if source == MPI.PROC_NULL or not self._understands():
            return None
        if not self._context.inbox.waiting and self._small(op, buf):
            return None
        message = None
        with suppress(ValueError):  # MPI looks at no more of a receive buffer than it needs
            message = parse(buf)
        small = message is None or message.nbytes < max(self._min_nbytes, 1) or message.dtype.itemsize == 1
        return None if small and not self._context.inbox.waiting else message

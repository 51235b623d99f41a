"""Send, Recv and Sendrecv, and what else has to understand a compressed message.

A compressed message begins with an *envelope* on the user's own communicator, under the user's tag, so
that MPI matches and orders it like any other: the frame of the first chunk, then how many elements there
are in all and under which tag of a private communicator the other chunks come. An envelope has an odd
number of bytes. Types of one byte are sent uncompressed, so no other message of a matching type is odd,
and a receiver tells the two apart by itself: a plain `Isend`, or a message from an unwrapped
communicator, reaches a `Recv` as ever.

`Irecv` completes in a progress thread, behind a generalised request. Probes open a message of an odd
size, to see whether it is an envelope and how long its message is, and keep it for the next receive;
what was none is sent on to this rank itself, so that whatever MPI can do with a message still can be
done. Persistent receives (`Recv_init`) cannot be taught: they have to be met by `Isend` or `Send_init`,
which send uncompressed.
"""

from __future__ import annotations

from contextlib import suppress

from mpi4py import MPI

from compcoll._shortcut import shortcut
from compcoll.buffers import Message, on_gpu, parse
from compcoll.messages import Taken, kind_of, may_be_envelope, send_message
from compcoll.policy import Decision
from compcoll.probes import Probes
from compcoll.staging import HostCopy

__all__ = ["PointToPoint"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG


class PointToPoint(Probes):
    """The point-to-point methods of an accelerated communicator."""

    @shortcut(1)
    def Send(self, buf, dest: int, tag: int = 0) -> None:
        message, decision = self._outgoing("Send", buf, dest)
        if decision is None:
            self._to_mpi(super().Send, buf, dest, tag)
        else:
            self._exchange("Send", decision, (message, dest, tag))

    def Recv(
        self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        message = self._incoming("Recv", buf, source, tag)
        if message is None:
            self._receive_small(buf, source, tag, status)
        else:
            self._exchange("Recv", None, None, (buf, message, source, tag, status))

    def Sendrecv(
        self, sendbuf, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: MPI.Status | None = None,
    ) -> None:  # fmt: skip
        send, decision = self._outgoing("Sendrecv", sendbuf, dest)
        recv = self._incoming("Sendrecv", recvbuf, source, recvtag)
        if decision is None and recv is None:
            sent = self._to_mpi(super().Isend, sendbuf, dest, sendtag)
            self._receive_small(recvbuf, source, recvtag, status)
            sent.Wait()
            return
        plain: list[tuple[MPI.Request, MPI.Status | None]] = []
        landing = None
        if decision is None:
            plain.append((self._to_mpi(super().Isend, sendbuf, dest, sendtag), None))
        if recv is None:
            if on_gpu(recvbuf) and not self._passes_gpu_memory:
                landing = HostCopy(recvbuf)
                recvbuf = landing.spec
            plain.append((self._to_mpi(super().Irecv, recvbuf, source, recvtag), status))
        outgoing = (send, dest, sendtag) if decision is not None else None
        incoming = (recvbuf, recv, source, recvtag, status) if recv is not None else None
        self._exchange("Sendrecv", decision, outgoing, incoming)
        for request, its_status in plain:
            request.Wait(its_status)
        if landing is not None:
            landing.back()

    def Sendrecv_replace(
        self, buf, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:  # fmt: skip
        copy = self._copied(buf)
        if copy is None:
            self._to_mpi(super().Sendrecv_replace, buf, dest, sendtag, source, recvtag, status)
        else:
            self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)

    def Irecv(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        message = self._incoming("Irecv", buf, source, tag) or self._landed_later(buf, source)
        if message is None:
            taken = self._opened(source, tag)
            if taken is not None:
                return self._replayed(taken, None).Irecv(buf, 0, taken.tag)
            return self._to_mpi(super().Irecv, buf, source, tag)
        return self._context.inbox.receive_later(self._runtime, message, source, tag)

    def Isendrecv(
        self, sendbuf, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> MPI.Request:  # fmt: skip
        message = self._incoming("Isendrecv", recvbuf, source, recvtag) or self._landed_later(recvbuf, source)
        if message is None:
            return self._to_mpi(super().Isendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        sent = self._to_mpi(super().Isend, sendbuf, dest, sendtag)
        return self._context.inbox.receive_later(self._runtime, message, source, recvtag, sent)

    def Isendrecv_replace(
        self, buf, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> MPI.Request:
        copy = self._copied(buf)
        if copy is None:
            return self._to_mpi(super().Isendrecv_replace, buf, dest, sendtag, source, recvtag)
        return self.Isendrecv(copy, dest, sendtag, buf, source, recvtag)

    # -- helpers

    def _understands(self) -> bool:
        """Whether messages of this communicator may be compressed at all."""
        return self._context is not None and self._context.multithreaded and self._size > 1

    def _exchange(self, op: str, decision: Decision | None, outgoing=None, incoming=None) -> None:
        """Send a message compressed, receive one of either kind, or both at once."""
        inbox, stream = self._context.inbox, self._context.next_stream()
        messages = (outgoing and outgoing[0], incoming and incoming[1])

        async def body(rt):
            if incoming is not None:
                rt.start(inbox.receive(rt, *incoming))
            if outgoing is not None:
                message, dest, tag = outgoing
                await send_message(rt, inbox.user, message.source(0), dest, tag, stream)

        self._finish(op, decision, self._runtime(decision, kind=kind_of(*messages)), body)
        if incoming is not None:
            incoming[1].finish()

    def _landed_later(self, buf, source: int) -> Message | None:
        """The buffer of a GPU that MPI cannot receive into; the progress thread brings it what arrives."""
        if self._passes_gpu_memory or self._context is None or not self._context.multithreaded:
            return None
        if source == MPI.PROC_NULL or not on_gpu(buf):
            return None
        return parse(buf, device=True)

    def _receive_small(self, buf, source: int, tag: int, status: MPI.Status | None) -> None:
        """Receive what should be too small to be compressed; truncation as MPI has it where it is not."""
        if source == MPI.PROC_NULL or not self._understands():
            self._to_mpi(super().Recv, buf, source, tag, status)
            return
        taken = self._opened(source, tag)
        if taken is not None:
            self._to_mpi(self._replayed(taken, status).Recv, buf, 0, taken.tag)
            return
        status = MPI.Status() if status is None else status
        matched = self._context.inbox.user.Mprobe(source, tag, status)
        if may_be_envelope(status) and (message := parse(buf, device=True)) is not None:
            rt = self._runtime(None, kind=kind_of(message))
            rt.run(Taken.of(matched, status).deliver(rt, message, status))
            message.finish()
        else:
            self._to_mpi(matched.Recv, buf, status)

    def _copied(self, buf):
        """A copy to send from where the received message may come compressed into the same buffer."""
        if not self._understands() or self._small("Sendrecv_replace", buf):
            return None
        message = parse(buf, device=True)
        return None if message is None else message.copied()

    def _outgoing(self, op: str, buf, dest: int) -> tuple[Message | None, Decision | None]:
        """The message and how it is compressed; (None, None) where MPI sends it unchanged."""
        if dest == MPI.PROC_NULL or not self._understands() or self._small(op, buf):
            return None, None
        message = parse(buf, device=True)
        if message is None or message.dtype.itemsize == 1:
            self._declined(op, "the buffer's type is not accelerated")
            return None, None
        decision = self._decide_alone(op, message.dtype, message.nbytes)
        if decision.codec is None or not message.nbytes:
            self._gate.last = (op, decision.reason)
            return None, None
        return message, decision

    def _incoming(self, op: str, buf, source: int, tag: int) -> Message | None:
        """The buffer of a message that may come compressed, or was opened by a probe; else None."""
        if source == MPI.PROC_NULL or not self._understands():
            return None
        opened = self._context.inbox.find(source, tag)
        if opened is None and self._small(op, buf):
            return None
        message = None
        with suppress(ValueError):  # MPI looks at no more of a receive buffer than it needs
            message = parse(buf, device=True)
        small = message is None or message.nbytes < max(self._min_nbytes, 1)
        return None if small and opened is None else message

"""Send, Recv and Sendrecv, and what else has to understand a compressed message.

A compressed message begins with an *envelope* on the user's own communicator, under the user's tag, so
that MPI matches and orders it like any other: the frame of the first chunk, then how many elements there
are in all and under which tag of a private communicator the other chunks come. An envelope has an odd
number of bytes. Types of one byte are sent uncompressed, so no other message of a matching type is odd,
and a receiver tells the two apart by itself: a buffered send, or a message from an unwrapped
communicator, reaches a `Recv` as ever.

Probes open a message of an odd size, to see whether it is an envelope and how long its message is, and keep
it for the next receive; what was none is sent on to this rank itself, so that whatever MPI can do with a
message still can be done. Nonblocking forms are in later.py, persistent ones in persistent.py.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.decision import Decision
from compcoll.mpi import check
from compcoll.mpi._shortcut import is_small, shortcut
from compcoll.mpi.buffers import Message, on_gpu, parse
from compcoll.mpi.messages import Delivery, Outgoing, Tally
from compcoll.mpi.probes import Probes
from compcoll.mpi.staging import HostCopy

__all__ = ["PointToPoint"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
_NOTHING = [np.empty(0, np.uint8), 0, MPI.BYTE]


class PointToPoint(Probes):
    """The point-to-point methods of an accelerated communicator.

    None of them sends or takes anything before mpi4py and MPI have nothing to say against any argument.
    """

    @shortcut(1)
    def Send(self, buf, dest: int, tag: int = 0) -> None:
        message, decision = self._outgoing("Send", buf, dest)
        if decision is None:
            self._to_mpi(super().Send, buf, dest, tag)
            return
        self._check_send(buf, dest, tag)
        with interrupts.deferred():
            self._exchange("Send", decision, (message, dest, tag))
        _engine.raise_pending()

    def Recv(
        self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        if source == MPI.PROC_NULL or not self._understands():
            self._to_mpi(super().Recv, buf, source, tag, status)
            return
        if not _surely_fits(buf):
            self._check_receive(buf, source, tag)
        message = self._incoming("Recv", buf, source, tag)
        with interrupts.deferred():
            if message is None:
                self._receive_small(buf, source, tag, status)
            else:
                self._exchange("Recv", None, None, (message, source, tag, status))
        _engine.raise_pending()

    def Sendrecv(
        self, sendbuf, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: MPI.Status | None = None,
    ) -> None:  # fmt: skip
        if not self._understands():
            self._to_mpi(super().Sendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
            return
        self._check_receive(recvbuf, source, recvtag)
        send, decision = self._outgoing("Sendrecv", sendbuf, dest)
        recv = self._incoming("Sendrecv", recvbuf, source, recvtag)
        if decision is not None:
            self._check_send(sendbuf, dest, sendtag)
        with interrupts.deferred():
            if decision is None and recv is None:
                sent = self._to_mpi(super().Isend, sendbuf, dest, sendtag)
                try:
                    self._receive_small(recvbuf, source, recvtag, status)
                finally:
                    self._complete([(sent, None)])
                return
            outgoing = (send, dest, sendtag) if decision is not None else None
            incoming = (recv, source, recvtag, status) if recv is not None else None
            landing = self._landing(recvbuf) if incoming is None else None
            plain: list[tuple[MPI.Request, MPI.Status | None]] = []
            if outgoing is None:
                plain.append((self._to_mpi(super().Isend, sendbuf, dest, sendtag), None))
            if incoming is None:
                into = recvbuf if landing is None else landing.spec
                self._expect_any(source)
                plain.append((self._to_mpi(super().Irecv, into, source, recvtag), status))
            try:
                self._exchange("Sendrecv", decision, outgoing, incoming)
            finally:
                self._complete(plain)
            if landing is not None:
                landing.back()

    def Sendrecv_replace(
        self, buf, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:  # fmt: skip
        copy = self._copied(buf, dest, source)
        if copy is None:
            self._to_mpi(super().Sendrecv_replace, buf, dest, sendtag, source, recvtag, status)
        else:
            self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)

    # -- helpers

    def _understands(self) -> bool:
        """Whether messages of this communicator may be compressed at all."""
        if self._context is None or self._size == 1 or self._context.channel is None:
            return False
        self._check_usable()
        return True

    def _check_send(self, buf, dest: int, tag: int) -> None:
        """Raise what mpi4py and MPI find wrong with the arguments of a send, without sending anything."""
        spec = _NOTHING if on_gpu(buf) else buf  # that of a GPU has been looked at
        self._to_mpi(lambda *args: MPI.Comm.Send_init(self, *args), spec, dest, tag).Free()

    def _check_receive(self, buf, source: int, tag: int) -> None:
        """The same for a receive."""
        if on_gpu(buf) and source != MPI.PROC_NULL:
            self._landing(buf)
            buf = _NOTHING
        self._to_mpi(lambda *args: MPI.Comm.Recv_init(self, *args), buf, source, tag).Free()

    def _landing(self, buf) -> HostCopy | None:
        """Host memory for what MPI cannot receive where it belongs."""
        return HostCopy(buf) if on_gpu(buf) and not self._passes_gpu_memory else None

    def _complete(self, requests: list) -> None:
        """Wait for pairs of a request and its status; for ever refer to their memory where that cannot be."""
        if self._context.broken:
            self._context.abandoned.extend(requests)
            return
        for request, status in requests:
            _engine.wait(_engine.Request(request, status))

    def _exchange(self, op: str, decision: Decision | None, outgoing=None, incoming=None) -> None:
        """Send a message compressed, receive one of either kind, or both at once."""
        context, tally, sending = self._context, Tally(), None
        accelerated = decision is not None
        try:
            if outgoing is not None and decision is not None:
                message, dest, tag = outgoing
                sending = Outgoing(context.channel, decision, message, dest, tag, tally)
            try:
                if incoming is not None:
                    others = sending.tasks if sending is not None else ()
                    accelerated |= context.inbox.receive(*incoming, tally, others)
            finally:
                if sending is not None:
                    sending.wait()
        except (KeyboardInterrupt, TimeoutError):
            self._break(f"{op} was left half-way")
            raise
        finally:
            tally.end()
            self.calls_accelerated += accelerated
            self._gate.last = (op, decision, tally) if accelerated else (op, "the message came uncompressed")
        self._check_strict(op, decision, tally.fallbacks)

    def _expect_any(self, source: int) -> None:
        """A receive of MPI's own may get a compressed message, and truncate it."""
        if source != MPI.PROC_NULL and self._understands():
            self._context.channel.lost.expect()

    def _receive_small(self, buf, source: int, tag: int, status: MPI.Status | None) -> None:
        """Receive what should be too small to be compressed; truncation as MPI has it where it is not."""
        taken = self._opened(source, tag)
        if taken is not None:
            landed = self._landing(buf)
            into = buf if landed is None else landed.spec
            self._replayed(taken, status, lambda mirror: self._to_mpi(mirror.Recv, into, 0, taken.tag))
            if landed is not None:
                landed.back()
            return
        status, inbox = MPI.Status() if status is None else status, self._context.inbox
        found = inbox.next(source, tag, status)
        if isinstance(found, MPI.Message):
            self._to_mpi(found.Recv, buf, status)
            if check.ON:
                check.check_whole(status, parse(buf, device=True, truncate=True))
            return
        message = parse(buf, device=True, truncate=True)
        if message is None:
            self._replayed(found, status, lambda mirror: self._to_mpi(mirror.Recv, buf, 0, found.tag))
            return
        Delivery(self._context.channel, found, message, status, Tally()).wait()

    def _copied(self, buf, dest: int, source: int):
        """A copy to send from where the received message may come compressed into the same buffer."""
        if MPI.PROC_NULL in (dest, source) or not self._understands() or self._small("Sendrecv_replace", buf):
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
        decision = self._decide_alone(op, message, message.nbytes)
        if decision.codec is None or not message.nbytes:
            self._gate.last = (op, decision.reason)
            return None, None
        return message, decision

    def _incoming(self, op: str, buf, source: int, tag: int) -> Message | None:
        """The buffer of a message that may come compressed, or was opened by a probe; else None."""
        if source == MPI.PROC_NULL or not self._understands():
            return None
        opened = self._context.inbox.find(source, tag)
        # A message may come from another wrapper of the communicator, which compresses smaller ones.
        least = self._context.least
        if opened is None and is_small(buf, least):
            self._gate.last = op
            return None
        message = parse(buf, device=True, truncate=True)  # MPI looks at no more of a buffer than it needs
        small = message is None or message.nbytes < max(least, 1)
        return None if small and opened is None else message


def _surely_fits(buf) -> bool:
    """Whether MPI is sure to take an argument for a receive buffer."""
    return (
        type(buf) is np.ndarray
        and buf.dtype.char in "bhilqBHILQfdFD"
        and buf.flags.carray
        and buf.dtype.isnative
    )

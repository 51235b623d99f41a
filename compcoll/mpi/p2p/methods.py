"""Send, Recv, Sendrecv, and their nonblocking and persistent forms.

A compressed send is on its way when a nonblocking method returns: its first message is, and the engine
encodes and sends the other chunks while the program computes. It cannot be cancelled any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine._calls import totals_of
from compcoll.engine.call import wait
from compcoll.engine.decision import Decision
from compcoll.mpi import check
from compcoll.mpi._shortcut import is_small, shortcut
from compcoll.mpi.buffers import Message, on_gpu, parse
from compcoll.mpi.core import CommBase
from compcoll.mpi.p2p.probe import understands
from compcoll.mpi.p2p.protocol import LEAST, MessageStats, looks_compressed
from compcoll.mpi.p2p.receive import Receive, all_done, copy_status, unpack_into
from compcoll.mpi.p2p.send import Outgoing
from compcoll.mpi.requests import KeptArguments, Pending, Prequest, Settled
from compcoll.mpi.staging import HostCopy

__all__ = [
    "Irecv",
    "Isend",
    "Isendrecv",
    "Isendrecv_replace",
    "Issend",
    "Recv",
    "Recv_init",
    "Send",
    "Send_init",
    "Sendrecv",
    "Sendrecv_replace",
    "Ssend",
    "Ssend_init",
]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
_SEND, _RECV, _SENDRECV = map(totals_of, ("Send", "Recv", "Sendrecv"))
_NOTHING = [np.empty(0, np.uint8), 0, MPI.BYTE]


@shortcut(1)
def Send(self: CommBase, buf: Any, dest: int, tag: int = 0) -> None:
    message, decision = _outgoing(self, "Send", buf, dest)
    if message is None or decision is None:
        self._to_mpi("Send", buf, dest, tag)
        return
    _check_send(self, buf, dest, tag)
    with interrupts.deferred():
        _exchange(self, "Send", decision, (message, dest, tag))


def Isend(self: CommBase, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
    return _isend(self, "Isend", buf, dest, tag)


def Ssend(self: CommBase, buf: Any, dest: int, tag: int = 0) -> None:
    self.Issend(buf, dest, tag).Wait()


def Issend(self: CommBase, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
    return _isend(self, "Issend", buf, dest, tag, synchronous=True)


def Recv(
    self: CommBase, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
) -> None:
    _RECV.calls += 1
    if source == MPI.PROC_NULL or not understands(self):
        self._to_mpi("Recv", buf, source, tag, status)
        return
    if not _surely_fits(buf):
        _check_receive(self, buf, source, tag)
    with interrupts.deferred():
        _exchange(self, "Recv", incoming=(buf, source, tag, status))


def Irecv(self: CommBase, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
    _RECV.calls += 1
    message = _incoming(self, buf, source)
    if message is None:
        return self._to_mpi("Irecv", buf, source, tag)
    _check_receive(self, buf, source, tag)
    with interrupts.deferred():
        on_end = partial(_received, self, "Recv")
        return Receive(self._context.channel, message, source, tag, on_end=on_end).request


def Sendrecv(
    self: CommBase,
    sendbuf: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = ANY_SOURCE,
    recvtag: int = ANY_TAG,
    status: MPI.Status | None = None,
) -> None:
    _SENDRECV.calls += 1
    if not understands(self):
        self._to_mpi("Sendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        return
    _check_receive(self, recvbuf, source, recvtag)
    message, decision = _outgoing(self, "Sendrecv", sendbuf, dest)
    if decision is not None:
        _check_send(self, sendbuf, dest, sendtag)
    outgoing = (sendbuf if message is None else message, dest, sendtag)
    with interrupts.deferred():
        _exchange(self, "Sendrecv", decision, outgoing, (recvbuf, source, recvtag, status))


def Isendrecv(
    self: CommBase,
    sendbuf: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = ANY_SOURCE,
    recvtag: int = ANY_TAG,
) -> MPI.Request:
    _SENDRECV.calls += 1
    send, decision = _outgoing(self, "Sendrecv", sendbuf, dest)
    recv = _incoming(self, recvbuf, source)
    if decision is None and recv is None:
        return self._to_mpi("Isendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag)
    _check_receive(self, recvbuf, source, recvtag)
    _check_send(self, sendbuf, dest, sendtag)
    with interrupts.deferred():
        settled: Settled = _nothing
        stats, on_end = MessageStats(), None
        if send is None or decision is None or send.device is not None:
            sent: _engine.Task = _engine.Request(self._to_mpi("Isend", sendbuf, dest, sendtag))
            on_end = partial(_received, self, "Sendrecv")
        else:
            answered = recv is not None and source in (dest, ANY_SOURCE)
            outgoing, settled = _begin_send(
                self, "Sendrecv", send, decision, dest, sendtag, stats, answered=answered
            )
            sent = _engine.TaskGroup(outgoing.tasks)
        if recv is not None:
            return Receive(
                self._context.channel,
                recv,
                source,
                recvtag,
                sent=(sent, settled),
                on_end=on_end,
                stats=stats,
            ).request
        arriving = _engine.Request(self._to_mpi("Irecv", recvbuf, source, recvtag))
        return Pending(
            [sent, arriving],
            settled,
            status=lambda status: copy_status(arriving.status, status),
            cancel=arriving.request.Cancel,
        ).request


def Sendrecv_replace(
    self: CommBase,
    buf: Any,
    dest: int,
    sendtag: int = 0,
    source: int = ANY_SOURCE,
    recvtag: int = ANY_TAG,
    status: MPI.Status | None = None,
) -> None:
    copy = _copied(self, buf, dest, source)
    if copy is None:
        _SENDRECV.calls += 1
        self._to_mpi("Sendrecv_replace", buf, dest, sendtag, source, recvtag, status)
    else:
        self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)


def Isendrecv_replace(
    self: CommBase, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
) -> MPI.Request:
    copy = _copied(self, buf, dest, source)
    if copy is None:
        _SENDRECV.calls += 1
        return self._to_mpi("Isendrecv_replace", buf, dest, sendtag, source, recvtag)
    return self.Isendrecv(copy, dest, sendtag, buf, source, recvtag)


# -- persistent


def Send_init(self: CommBase, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
    return _prepare_send(self, "Isend", "Send_init", buf, dest, tag)


def Ssend_init(self: CommBase, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
    return _prepare_send(self, "Issend", "Ssend_init", buf, dest, tag, synchronous=True)


def Recv_init(self: CommBase, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Prequest:
    if _incoming(self, buf, source) is None:
        return self._to_mpi("Recv_init", buf, source, tag)
    _check_receive(self, buf, source, tag)
    kept = KeptArguments(buf)
    return Prequest(lambda: Irecv(self, kept.args[0], source, tag), kept.free)


def _prepare_send(
    self: CommBase,
    begin: str,
    plain: str,
    buf: Any,
    dest: int,
    tag: int,
    synchronous: bool = False,
) -> MPI.Prequest:
    _, decision = _outgoing(self, "Send", buf, dest)
    if decision is None and (self._passes_gpu_memory or not on_gpu(buf)):
        return self._to_mpi(plain, buf, dest, tag)
    _check_send(self, buf, dest, tag)
    kept = KeptArguments(buf)

    def start() -> MPI.Request:
        return _isend(self, begin, kept.args[0], dest, tag, synchronous)

    return Prequest(start, kept.free)


# -- arguments


def _check_send(self: CommBase, buf: Any, dest: int, tag: int) -> None:
    """Raise what mpi4py and MPI find wrong with the arguments of a send, without sending anything."""
    spec = _NOTHING if on_gpu(buf) else buf  # that of a GPU has been looked at
    self._to_mpi("Send_init", spec, dest, tag).Free()


def _check_receive(self: CommBase, buf: Any, source: int, tag: int) -> None:
    """The same for a receive."""
    if on_gpu(buf) and source != MPI.PROC_NULL:
        if not self._passes_gpu_memory:
            HostCopy(buf)
        buf = _NOTHING
    self._to_mpi("Recv_init", buf, source, tag).Free()


def _outgoing(self: CommBase, op: str, buf: Any, dest: int) -> tuple[Message | None, Decision | None]:
    """The message and how it is compressed; (None, None) where MPI sends it unchanged."""
    if dest == MPI.PROC_NULL or not understands(self) or self._small(op, buf):
        return None, None
    message = parse(buf, device=True)
    if message is None or message.dtype.itemsize == 1:
        self._declined(op, "the buffer's type is not accelerated")
        return None, None
    if message.nbytes < self._context.least:
        least = f"of {self._context.least} bytes and more, as its first wrapper does"
        self._declined(op, f"this communicator compresses messages {least}")
        return None, None
    decision = self._decide_p2p(op, message, message.nbytes, dest)
    if decision.codec is None or not message.nbytes:
        self._gate.last = (op, decision.reason)
        return None, None
    return message, decision


def _incoming(self: CommBase, buf: Any, source: int) -> Message | None:
    """The buffer of a nonblocking receive that is not MPI's alone.

    Its message may come compressed, perhaps from another wrapper of the communicator; or it is memory of
    a GPU that MPI does not take.
    """
    staged = on_gpu(buf) and not self._passes_gpu_memory
    if source == MPI.PROC_NULL or not understands(self, alone=staged):
        return None
    least = self._context.least
    if check.ON:  # a frame may fit a buffer that is too small for its message
        least = min(least, LEAST)
    if not staged and is_small(buf, least):
        return None
    message = parse(buf, device=True, truncate=True)  # MPI looks at no more of a buffer than it needs
    return message if message is not None and (staged or message.nbytes >= least) else None


def _copied(self: CommBase, buf: Any, dest: int, source: int) -> np.ndarray | None:
    """A copy to send from where the received message may come compressed into the same buffer."""
    if MPI.PROC_NULL in (dest, source) or not understands(self) or is_small(buf, self._context.least):
        return None
    message = parse(buf, device=True)
    return None if message is None else message.copied()


# -- blocking


def _exchange(
    self: CommBase, op: str, decision: Decision | None = None, outgoing: Any = None, incoming: Any = None
) -> None:
    """Send a message, receive one, or both at once."""
    stats, accelerated = MessageStats(), decision is not None
    sending: Outgoing | None = None
    tasks: Sequence[Any] = ()
    try:
        if outgoing is not None and decision is not None:
            message, dest, tag = outgoing
            answered = incoming is not None and incoming[1] in (dest, ANY_SOURCE)
            sending = Outgoing(self._context.channel, decision, message, dest, tag, stats, answered=answered)
            tasks = sending.tasks
        elif outgoing is not None:
            tasks = [_engine.Request(self._to_mpi("Isend", *outgoing))]
        try:
            if incoming is not None:
                buf, source, tag, status = incoming
                accelerated |= _receive(self, op, buf, source, tag, status, stats, tasks)
        finally:
            if not self._context.broken:
                _finish(self, op, *tasks)
        if sending is not None:
            sending.finish()
    finally:
        stats.end()
        self.calls_accelerated += accelerated
        if accelerated:
            totals_of(op).add(stats)
            self._gate.last = (op, decision, stats)
        elif incoming is not None:
            small = is_small(incoming[0], self._context.least)
            self._gate.last = op if small else (op, "the message came uncompressed")
    self._check_strict(op, decision, stats.fallbacks)


def _receive(
    self: CommBase,
    op: str,
    buf: Any,
    source: int,
    tag: int,
    status: MPI.Status | None,
    stats: MessageStats,
    others: Sequence[Any],
) -> bool:
    """Receive the next message into a buffer of any kind; whether it came compressed."""
    status = MPI.Status() if status is None else status
    probe = _engine.Probe(self._context.comm, source, tag, status)
    _finish(self, op, probe, others=others)
    if not looks_compressed(status):
        self._call_mpi(probe.message.Recv, buf, status)
        if check.ON:
            check.check_whole(status, parse(buf, device=True, truncate=True))
        return False
    channel = self._context.channel
    received = channel.receive(probe.message, status)
    unpack_into(channel, received, buf, status, stats, partial(_finish, self, op, others=others))
    return received.is_compressed


def _finish(self: CommBase, op: str, *tasks: Any, others: Sequence[Any] = ()) -> None:
    """Wait for tasks; the communicator is in an error state where the wait is interrupted."""
    try:
        wait(*tasks, others=others)
    finally:
        if not all_done(tasks):
            self._break(f"{op} was interrupted")


# -- nonblocking


def _isend(
    self: CommBase, plain: str, buf: Any, dest: int, tag: int, synchronous: bool = False
) -> MPI.Request:
    """Send a message compressed, and leave what remains to be done to the engine."""
    _SEND.calls += 1
    message, decision = _outgoing(self, "Send", buf, dest)
    if message is None or decision is None:
        return self._to_mpi(plain, buf, dest, tag)
    _check_send(self, buf, dest, tag)
    with interrupts.deferred():
        outgoing, settled = _begin_send(
            self,
            "Send",
            message,
            decision,
            dest,
            tag,
            MessageStats(),
            synchronous,
            answered=self._context.channel.awaits(dest),
        )
        pending = Pending(outgoing.tasks, settled)
        self._context.channel.track(pending)
    return pending.request


def _begin_send(
    self: CommBase,
    op: str,
    message: Message,
    decision: Decision,
    dest: int,
    tag: int,
    stats: MessageStats,
    synchronous: bool = False,
    answered: bool = False,
) -> tuple[Outgoing, Settled]:
    """Begin to send a message compressed; also a function to call when all is sent."""
    outgoing = Outgoing(self._context.channel, decision, message, dest, tag, stats, synchronous, answered)

    def settled(request: MPI.Request, error: Exception | None) -> None:
        try:
            outgoing.finish()
        finally:
            stats.end()
            self._completed(request, (op, outgoing.decision, stats))
            if any(task.end != _engine.DONE for task in outgoing.tasks):
                self._break(f"{op} was interrupted")
        if error is None:
            self._check_strict(op, decision, stats.fallbacks)

    self.calls_accelerated += 1
    return outgoing, settled


def _received(self: CommBase, op: str, request: MPI.Request, stats: MessageStats) -> None:
    """Account for a message that came compressed."""
    self.calls_accelerated += 1
    self._completed(request, (op, None, stats))


def _nothing(request: MPI.Request, error: Exception | None) -> None:
    """A message that MPI sends unchanged leaves nothing to be done."""


def _surely_fits(buf: Any) -> bool:
    """Whether MPI is sure to take an argument for a receive buffer."""
    return (
        type(buf) is np.ndarray
        and buf.dtype.char in "bhilqBHILQfdFD"
        and buf.flags.carray
        and buf.dtype.isnative
    )

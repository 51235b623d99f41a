"""Send, Recv, Sendrecv, and their nonblocking and persistent forms.

A compressed send is on its way when a nonblocking method returns: its first message is, and the engine
encodes and sends the other chunks while the program computes. It cannot be cancelled any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from compcoll.core._calls import totals_of
from compcoll.engine import _engine, interrupts
from compcoll.engine.call import wait
from compcoll.mpi import check
from compcoll.mpi._shortcut import is_small, shortcut
from compcoll.mpi.buffers import Message, on_gpu, parse
from compcoll.mpi.p2p.channel import Channel
from compcoll.mpi.p2p.probe import understands
from compcoll.mpi.p2p.protocol import LEAST, MessageStats, looks_compressed
from compcoll.mpi.p2p.receive import Receive, all_done, copy_status, unpack_into
from compcoll.mpi.p2p.send import Outgoing
from compcoll.mpi.requests import KeptArguments, Pending, Prequest, Settled, nothing
from compcoll.mpi.staging import HostCopy
from compcoll.mpi.state import State
from compcoll.policy.decision import Decision

if TYPE_CHECKING:
    from compcoll.comm import Comm

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


@shortcut
def Send(self: Comm, buf: Any, dest: int, tag: int = 0) -> None:
    state = self._state
    message, decision = _outgoing(state, "Send", buf, dest)
    if message is None or decision is None:
        state.to_mpi("Send", buf, dest, tag)
        return
    _check_send(state, buf, dest, tag)
    with interrupts.deferred():
        _exchange(state, "Send", decision, (message, dest, tag))


def Isend(self: Comm, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
    return _isend(self._state, "Isend", buf, dest, tag)


def Ssend(self: Comm, buf: Any, dest: int, tag: int = 0) -> None:
    self.Issend(buf, dest, tag).Wait()


def Issend(self: Comm, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
    return _isend(self._state, "Issend", buf, dest, tag, synchronous=True)


def Recv(
    self: Comm, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
) -> None:
    state = self._state
    _RECV.calls += 1
    if source == MPI.PROC_NULL or not understands(state):
        state.to_mpi("Recv", buf, source, tag, status)
        return
    if not _surely_fits(buf):
        _check_receive(state, buf, source, tag)
    with interrupts.deferred():
        _exchange(state, "Recv", incoming=(buf, source, tag, status))


def Irecv(self: Comm, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
    state = self._state
    _RECV.calls += 1
    message = _incoming(state, buf, source)
    if message is None:
        return state.call_mpi(state.comm.Irecv, buf, source, tag)
    _check_receive(state, buf, source, tag)
    with interrupts.deferred():
        on_end = partial(_received, state, "Recv")
        return Receive(state.context.channel, message, source, tag, on_end=on_end).request


def Sendrecv(
    self: Comm,
    sendbuf: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = ANY_SOURCE,
    recvtag: int = ANY_TAG,
    status: MPI.Status | None = None,
) -> None:
    state = self._state
    _SENDRECV.calls += 1
    if not understands(state):
        state.to_mpi("Sendrecv", sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        return
    _check_receive(state, recvbuf, source, recvtag)
    message, decision = _outgoing(state, "Sendrecv", sendbuf, dest)
    if decision is not None:
        _check_send(state, sendbuf, dest, sendtag)
    outgoing = (sendbuf if message is None else message, dest, sendtag)
    with interrupts.deferred():
        _exchange(state, "Sendrecv", decision, outgoing, (recvbuf, source, recvtag, status))


def Isendrecv(
    self: Comm,
    sendbuf: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = ANY_SOURCE,
    recvtag: int = ANY_TAG,
) -> MPI.Request:
    state = self._state
    _SENDRECV.calls += 1
    send, decision = _outgoing(state, "Sendrecv", sendbuf, dest)
    recv = _incoming(state, recvbuf, source)
    if decision is None and recv is None:
        return state.call_mpi(state.comm.Isendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag)
    _check_receive(state, recvbuf, source, recvtag)
    _check_send(state, sendbuf, dest, sendtag)
    with interrupts.deferred():
        settled: Settled = nothing
        stats, on_end = MessageStats(), None
        if send is None or decision is None or send.device is not None:
            sent: _engine.Task = _engine.Request(state.to_mpi("Isend", sendbuf, dest, sendtag))
            on_end = partial(_received, state, "Sendrecv")
        else:
            answered = recv is not None and source in (dest, ANY_SOURCE)
            outgoing, settled = _begin_send(
                state, "Sendrecv", send, decision, dest, sendtag, stats, answered=answered
            )
            sent = _engine.TaskGroup(outgoing.tasks)
        if recv is not None:
            return Receive(
                state.context.channel,
                recv,
                source,
                recvtag,
                sent=(sent, settled),
                on_end=on_end,
                stats=stats,
            ).request
        arriving = _engine.Request(state.to_mpi("Irecv", recvbuf, source, recvtag))
        return Pending(
            [sent, arriving],
            settled,
            status=lambda status: copy_status(arriving.status, status),
            cancel=arriving.request.Cancel,
        ).request


def Sendrecv_replace(
    self: Comm,
    buf: Any,
    dest: int,
    sendtag: int = 0,
    source: int = ANY_SOURCE,
    recvtag: int = ANY_TAG,
    status: MPI.Status | None = None,
) -> None:
    state = self._state
    copy = _copied(state, buf, dest, source)
    if copy is None:
        _SENDRECV.calls += 1
        state.to_mpi("Sendrecv_replace", buf, dest, sendtag, source, recvtag, status)
    else:
        self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)


def Isendrecv_replace(
    self: Comm, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
) -> MPI.Request:
    state = self._state
    copy = _copied(state, buf, dest, source)
    if copy is None:
        _SENDRECV.calls += 1
        return state.call_mpi(state.comm.Isendrecv_replace, buf, dest, sendtag, source, recvtag)
    return self.Isendrecv(copy, dest, sendtag, buf, source, recvtag)


# -- persistent


def Send_init(self: Comm, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
    return _prepare_send(self._state, "Isend", "Send_init", buf, dest, tag)


def Ssend_init(self: Comm, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
    return _prepare_send(self._state, "Issend", "Ssend_init", buf, dest, tag, synchronous=True)


def Recv_init(self: Comm, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Prequest:
    state = self._state
    if _incoming(state, buf, source) is None:
        return state.call_mpi(state.comm.Recv_init, buf, source, tag)
    _check_receive(state, buf, source, tag)
    kept = KeptArguments(buf)
    return Prequest(lambda: Irecv(self, kept.args[0], source, tag), kept.free)


def _prepare_send(
    state: State,
    begin: str,
    plain: str,
    buf: Any,
    dest: int,
    tag: int,
    synchronous: bool = False,
) -> MPI.Prequest:
    _, decision = _outgoing(state, "Send", buf, dest)
    if decision is None and (state.passes_gpu_memory or not on_gpu(buf)):
        request: MPI.Prequest = state.to_mpi(plain, buf, dest, tag)
        return request
    _check_send(state, buf, dest, tag)
    kept = KeptArguments(buf)

    def start() -> MPI.Request:
        return _isend(state, begin, kept.args[0], dest, tag, synchronous)

    return Prequest(start, kept.free)


# -- arguments


def _check_send(state: State, buf: Any, dest: int, tag: int) -> None:
    """Raise what mpi4py and MPI find wrong with the arguments of a send, without sending anything."""
    spec = _NOTHING if on_gpu(buf) else buf  # that of a GPU has been looked at
    state.to_mpi("Send_init", spec, dest, tag).Free()


def _check_receive(state: State, buf: Any, source: int, tag: int) -> None:
    """The same for a receive."""
    if on_gpu(buf) and source != MPI.PROC_NULL:
        if not state.passes_gpu_memory:
            HostCopy(buf)
        buf = _NOTHING
    state.to_mpi("Recv_init", buf, source, tag).Free()


def _outgoing(state: State, op: str, buf: Any, dest: int) -> tuple[Message | None, Decision | None]:
    """The message and how it is compressed; (None, None) where MPI sends it unchanged."""
    if dest == MPI.PROC_NULL or not understands(state) or state.is_small(op, buf):
        return None, None
    message = parse(buf, device=True)
    if message is None or message.dtype.itemsize == 1:
        state.decline(op, "the buffer's type is not accelerated")
        return None, None
    decision = state.decide_p2p(op, message, message.nbytes, dest)
    if decision.codec is None or not message.nbytes:
        state.last = (op, decision.reason)
        return None, None
    return message, decision


def _incoming(state: State, buf: Any, source: int) -> Message | None:
    """The buffer of a nonblocking receive that is not MPI's alone.

    Its message may come compressed, perhaps from another wrapper of the communicator; or it is memory of
    a GPU that MPI does not take.
    """
    staged = on_gpu(buf) and not state.passes_gpu_memory
    if source == MPI.PROC_NULL or not understands(state, alone=staged):
        return None
    least = state.min_nbytes
    if check.ON:  # a frame may fit a buffer that is too small for its message
        least = min(least, LEAST)
    if not staged and is_small(buf, least):
        return None
    message = parse(buf, device=True, truncate=True)  # MPI looks at no more of a buffer than it needs
    return message if message is not None and (staged or message.nbytes >= least) else None


def _copied(state: State, buf: Any, dest: int, source: int) -> Any:
    """A copy to send from where the received message may come compressed into the same buffer."""
    if MPI.PROC_NULL in (dest, source) or not understands(state) or is_small(buf, state.min_nbytes):
        return None
    message = parse(buf, device=True)
    return None if message is None else message.source().copy()


# -- blocking


def _exchange(
    state: State, op: str, decision: Decision | None = None, outgoing: Any = None, incoming: Any = None
) -> None:
    """Send a message, receive one, or both at once."""
    stats, accelerated = MessageStats(), decision is not None
    sending: Outgoing | None = None
    tasks: Sequence[Any] = ()
    try:
        if outgoing is not None and decision is not None:
            message, dest, tag = outgoing
            answered = incoming is not None and incoming[1] in (dest, ANY_SOURCE)
            sending = Outgoing(state.context.channel, decision, message, dest, tag, stats, answered=answered)
            tasks = sending.tasks
        elif outgoing is not None:
            tasks = [_engine.Request(state.to_mpi("Isend", *outgoing))]
        try:
            if incoming is not None:
                buf, source, tag, status = incoming
                accelerated |= _receive(state, op, buf, source, tag, status, stats, tasks)
        finally:
            if not state.context.broken:
                _finish(state, op, *tasks)
        if sending is not None:
            sending.finish()
    finally:
        stats.end()
        state.accelerated += accelerated
        if accelerated:
            totals_of(op).add(stats)
            state.last = (op, decision, stats)
        elif incoming is not None:
            small = is_small(incoming[0], state.min_nbytes)
            state.last = op if small else (op, "the message came uncompressed")
    state.check_strict(op, decision, stats.fallbacks)


def _receive(
    state: State,
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
    probe = _engine.Probe(state.context.comm, source, tag, status)
    _finish(state, op, probe, others=others)
    if not looks_compressed(status):
        state.call_mpi(probe.message.Recv, buf, status)
        if check.ON:
            check.check_whole(status, parse(buf, device=True, truncate=True))
        return False
    channel: Channel = state.context.channel
    received = channel.receive(probe.message, status)
    unpack_into(channel, received, buf, status, stats, partial(_finish, state, op, others=others))
    return received.is_compressed


def _finish(state: State, op: str, *tasks: Any, others: Sequence[Any] = ()) -> None:
    """Wait for tasks; the communicator is in an error state where the wait is interrupted."""
    try:
        wait(*tasks, others=others)
    finally:
        if not all_done(tasks):
            state.fail(f"{op} was interrupted")


# -- nonblocking


def _isend(state: State, plain: str, buf: Any, dest: int, tag: int, synchronous: bool = False) -> MPI.Request:
    """Send a message compressed, and leave what remains to be done to the engine."""
    _SEND.calls += 1
    message, decision = _outgoing(state, "Send", buf, dest)
    if message is None or decision is None:
        request: MPI.Request = state.to_mpi(plain, buf, dest, tag)
        return request
    _check_send(state, buf, dest, tag)
    with interrupts.deferred():
        outgoing, settled = _begin_send(
            state,
            "Send",
            message,
            decision,
            dest,
            tag,
            MessageStats(),
            synchronous,
            answered=state.context.channel.awaits(dest),
        )
        pending = Pending(outgoing.tasks, settled)
        state.context.channel.track(pending)
    return pending.request


def _begin_send(
    state: State,
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
    outgoing = Outgoing(state.context.channel, decision, message, dest, tag, stats, synchronous, answered)

    def settled(request: MPI.Request, error: Exception | None) -> None:
        try:
            outgoing.finish()
        finally:
            stats.end()
            state.completed(request, (op, outgoing.decision, stats))
            if any(task.end != _engine.DONE for task in outgoing.tasks):
                state.fail(f"{op} was interrupted")
        if error is None:
            state.check_strict(op, decision, stats.fallbacks)

    state.accelerated += 1
    return outgoing, settled


def _received(state: State, op: str, request: MPI.Request, stats: MessageStats) -> None:
    """Account for a message that came compressed."""
    state.accelerated += 1
    state.completed(request, (op, None, stats))


def _surely_fits(buf: Any) -> bool:
    """Whether MPI is sure to take an argument for a receive buffer."""
    return (
        type(buf) is np.ndarray
        and buf.dtype.char in "bhilqBHILQfdFD"
        and buf.flags.carray
        and buf.dtype.isnative
    )

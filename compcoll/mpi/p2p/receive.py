"""Compressed messages on their way in, and nonblocking receives of messages that may come compressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from threading import Lock, Thread
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.codecs.decoding import decode
from compcoll.core.errors import FrameError
from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine
from compcoll.engine._engine import StridedBlock
from compcoll.engine.call import begin_message, n_chunks, wait
from compcoll.engine.coding import coding
from compcoll.mpi import check
from compcoll.mpi.buffers import Message, parse
from compcoll.mpi.p2p.channel import Channel
from compcoll.mpi.p2p.protocol import (
    LARGEST_CHUNK,
    ROOM,
    MessageStats,
    ReceivedMessage,
    serial_of,
    split_first,
)
from compcoll.mpi.requests import Request, Settled
from compcoll.schedule import planes

__all__ = ["Receive", "all_done", "copy_status", "unpack_into"]

_RAW = codec("raw")
# A program may put another communicator into its place.
_SELF = MPI.COMM_SELF
#: Held while there is a message on `_mirror`.
_UNPACKING = Lock()


@cache
def _mirror() -> MPI.Intracomm:
    """A private communicator of this rank alone."""
    return MPI.Intracomm(_SELF).Dup()


class Unpacking:
    """A received message on its way into a buffer.

    Attributes
    ----------
    tasks : list
        To be waited for before `finish`.
    """

    def __init__(
        self,
        channel: Channel,
        received: ReceivedMessage,
        message: Message,
        status: MPI.Status | None,
        stats: MessageStats,
        marks: dict[Any, Any] | None = None,
    ):
        received.fill(status)
        self._channel, self._received, self._message, self._stats = channel, received, message, stats
        self._error = received.problem(message.dtype.itemsize) or check.wrong_type(received, message)
        self.tasks: list[Any] = []
        self._values: Any = None
        memory = message.target().view(np.uint8)
        if received.nbytes > memory.size:  # the other chunks have to be received all the same
            self._error = MPI.Exception(MPI.ERR_TRUNCATE)
            memory = np.empty(received.nbytes, np.uint8)
        if received.is_compressed:
            self._unpack(memory, marks or {})
        else:
            _copy(received.data, memory)

    def _unpack(self, memory: Any, marks: dict[Any, Any]) -> None:
        received, dtype = self._received, self._received.dtype
        block = memory[: received.nbytes].view(dtype or np.dtype(f"u{received.itemsize}"))
        self._values = block
        first, rest = split_first(block, received.step)
        chunks = n_chunks(len(rest), received.step) if len(rest) else 0
        drops, count, inner = dtype is None, 0, received.inner
        if inner:
            end = planes.ends(len(block), 1 + chunks, prod(inner))[1]
            if received.info is not None and received.info.size == end:
                first, rest, count = block[:end], block, 1 + chunks
            else:
                drops, inner = True, ()
        on_device = isinstance(first, DeviceArray)
        self._channel.announce_held(received.source)
        if chunks or on_device:
            source = self._channel.rank_of(received.source)
            others = begin_message(
                self._channel.handle,
                _RAW,
                rest if chunks else rest[:0],
                source,
                received.step or 1,
                received.stream,
                sends=False,
                drops=drops,
                inner=inner,
                count=count if chunks else 0,
            )
            if on_device:
                others.order(marks)
            others.announce()
            self.tasks.append(others)
        if dtype is not None:
            self._decode(first)

    def _decode(self, first: Any) -> None:
        start, frame, info = perf_counter(), self._received.frame, self._received.info
        try:
            if isinstance(first, DeviceArray):
                self.tasks[0].also_decode(frame, first)
            elif isinstance(first, StridedBlock):
                first.put(decode(frame, np.empty(first.size, first.dtype)))
            else:
                decode(frame, first)
        except (FrameError, TypeError, ValueError) as error:
            self._error = self._error or error
        assert info is not None
        self._stats.add_bound(info.bound)
        self._stats.stages["decode"] += perf_counter() - start

    def finish(self) -> None:
        """Put values where they belong, when all tasks are done, and raise what went wrong."""
        for task in self.tasks:
            self._stats.add(task.outcome, task.outcome.bound)
        self._message.finish()
        if self._error is not None:
            raise self._error
        for task in self.tasks:
            task.check()

    def wait(self, wait: Callable[..., Any] = wait) -> None:
        """Wait until all is there, by a function that takes tasks."""
        try:
            if self.tasks:
                wait(*self.tasks)
        except Exception as error:
            if not all_done(self.tasks):
                raise
            self._error = self._error or error
        self.finish()


def all_done(tasks: Sequence[Any]) -> bool:
    """Whether all tasks are complete, none of them interrupted."""
    return all(task.done and task.end in (None, _engine.DONE) for task in tasks)


def _copy(data: np.ndarray, memory: Any) -> None:
    """Copy the bytes of a plain message to where they belong."""
    if isinstance(memory, DeviceArray):
        with memory.device.queue() as queue:
            queue.to_device(memory.address, data)
            queue.wait()
    elif isinstance(memory, StridedBlock):
        memory.put(data)
    else:
        memory[: data.size] = data


def unpack_into(
    channel: Channel,
    received: ReceivedMessage,
    buf: Any,
    status: MPI.Status | None,
    stats: MessageStats,
    wait: Callable[..., Any] = wait,
) -> None:
    """Bring a received message into a buffer of any kind, and wait by a function that takes tasks."""
    message = parse(buf, device=True, truncate=True)  # MPI looks at no more of a buffer than it needs
    if message is not None:
        Unpacking(channel, received, message, status, stats).wait(wait)
        return
    # Of a type that MPI alone can unpack: it has the bytes once more, from this rank to itself.
    data = received.data
    if received.is_compressed:
        data = np.empty(received.nbytes, np.uint8)
        Unpacking(channel, received, parse(data), None, stats).wait(wait)  # type: ignore[arg-type]
    with _UNPACKING:
        _mirror().Sendrecv([data, MPI.BYTE], 0, 0, buf, 0, 0)
    received.fill(status)


class Receive:
    """A nonblocking receive: MPI's own into scratch memory, behind a generalized request.

    Parameters
    ----------
    channel : Channel
    message : Message
    source, tag : int
    sent : (Task, callable), optional
        A send that has to end as well, and the function called, as in `Pending`, when the request completes.
    on_end : callable, optional
        ``on_end(request, stats)`` is called then, where the message came compressed.
    stats : MessageStats, optional
        Where to count what is done.
    received : ReceivedMessage, optional
        One that a matched probe has received already.

    Attributes
    ----------
    request : MPI.Request
    """

    def __init__(
        self,
        channel: Channel,
        message: Message,
        source: int,
        tag: int,
        *,
        sent: tuple[_engine.Task, Settled] | None = None,
        on_end: Callable[[MPI.Request, MessageStats], None] | None = None,
        stats: MessageStats | None = None,
        received: ReceivedMessage | None = None,
    ):
        self._channel, self._message, self._source, self._tag = channel, message, source, tag
        self._sent, self._on_end, self._is_settled = sent, on_end, False
        self._stats = MessageStats() if stats is None else stats
        self._received, self._status = received, MPI.Status()
        self._error: Exception | None = None
        self._missing, self._lock = 1 if sent is None else 2, Lock()
        # The caller's own work comes first; another thread does not know its streams.
        device: Any = message.device
        self._marks = {} if device is None else {device: device.mark()}
        self._arrival: Any = None
        self._has_notice = received is None
        self.request = Request(self._query, self._cancel)
        channel.track_receive(self)  # which keeps the scratch memory, before MPI writes to it
        if sent is not None:
            _engine.leave(sent[0], lambda end: self._part_done(error_of(end)), self.request.state)
        if received is None:
            self._begin()
        else:
            self._deliver()

    def _begin(self) -> None:
        message, check_types = self._message, check.ON
        self._scratch = np.empty(max(message.nbytes, LARGEST_CHUNK) + ROOM, np.uint8)
        arriving = self._channel.user.Irecv([self._scratch, MPI.BYTE], self._source, self._tag)
        # Where nothing else is under way and the buffer is plain, the engine delivers without Python.
        target = message.target() if message.device is None and not self._sent and not check_types else None
        if isinstance(target, np.ndarray):
            values = coding(_RAW, message.dtype)
            self._arrival = _engine.ScratchRecv(arriving, self._status, self._scratch, target, values)
        else:
            self._arrival = _engine.Request(arriving, self._status, message.nbytes)
        _engine.leave(self._arrival, self._arrived, self.request.state)

    @property
    def ended(self) -> bool:
        """Whether nothing is under way any more."""
        return not self._missing or (self._is_delivered and self._arrival.ended)

    @property
    def _is_delivered(self) -> bool:
        """Whether the engine has brought the message where it belongs, without Python."""
        return isinstance(self._arrival, _engine.ScratchRecv) and self._arrival.delivered

    def takes(self, channel: Channel, source: int, tag: int) -> bool:
        """Whether a message would match this receive."""
        return (
            channel is self._channel
            and self._has_notice
            and self._source in (MPI.ANY_SOURCE, source)
            and self._tag in (MPI.ANY_TAG, tag)
        )

    def may_match(self, channel: Channel, source: int) -> bool:
        """Whether a message of a rank may still come to this receive."""
        return (
            channel is self._channel and self._received is None and self._source in (MPI.ANY_SOURCE, source)
        )

    def drop_notice(self) -> None:
        """Drop the notice of the message, which has arrived."""
        received, arrival = self._received, self._arrival
        compressed = (
            received.is_compressed if received is not None else self._is_delivered and arrival.compressed
        )
        if self._has_notice and compressed:
            self._channel.drop_notice(self._status.source, self._status.tag, serial_of(self._scratch))

    def _opened(self) -> ReceivedMessage:
        """The message, before its status tells of what it becomes."""
        nbytes = self._status.Get_count(MPI.BYTE)
        return ReceivedMessage(self._scratch[:nbytes], self._status.source, self._status.tag)

    def _part_done(self, error: Exception | None = None) -> None:
        with self._lock:
            self._error = self._error or error
            self._missing -= 1
            missing = self._missing
        if not missing:
            self.request.complete()

    def _arrived(self, end: int) -> None:
        """The message, or the first of a compressed one, is there."""
        try:
            self._arrival.check()
            if end != _engine.DONE or self._status.Is_cancelled():
                self._part_done(error_of(end))
                return
            self._received = self._opened()
        except Exception as error:
            self._part_done(error)
            return
        if self._message.device is None:
            self._deliver()
        else:  # which takes its time, and moves on by itself
            Thread(target=self._deliver, daemon=True).start()

    def _deliver(self) -> None:
        try:
            assert self._received is not None
            unpacking = Unpacking(
                self._channel, self._received, self._message, self._status, self._stats, self._marks
            )
            if self._message.device is None and unpacking.tasks:
                _engine.leave(
                    unpacking.tasks[0], lambda end: self._finish(unpacking, end), self.request.state
                )
                return
            unpacking.wait()
        except Exception as error:
            self._part_done(error)
        else:
            self._part_done()

    def _finish(self, unpacking: Unpacking, end: int) -> None:
        try:
            unpacking.finish()
        except Exception as error:
            self._part_done(error)
        else:
            self._part_done(error_of(end))

    def _query(self, status: MPI.Status) -> None:
        """Tell of the end; only here are statuses filled, by the thread that waits or tests."""
        if self._missing and self._is_delivered:
            self._note_delivered()
        if not self._is_settled:
            self._is_settled = True
            self._settle()
        copy_status(self._status, status)
        if self._error is not None:
            raise self._error

    def _note_delivered(self) -> None:
        """Take note of a message that the engine has delivered."""
        _engine.settled(self._arrival)
        if self._arrival.compressed:
            self._received = self._opened()
            self._received.fill(self._status)
            self._stats.stages["decode"] += self._arrival.seconds
            self._stats.add_bound(self._received.info.bound if self._received.info is not None else None)
        self._missing = 0

    def _settle(self) -> None:
        try:
            if self._sent is not None:
                task, settled = self._sent
                settled(self.request, self._error)
                task.check()
            if self._on_end is not None and self._received is not None and self._received.is_compressed:
                self._stats.end()
                self._on_end(self.request, self._stats)
        except Exception as error:
            self._error = self._error or error

    def _cancel(self, completed: bool) -> None:
        if not completed and self._arrival is not None and self._arrival.request:
            if isinstance(self._arrival, _engine.ScratchRecv):
                self._arrival.keep_scratch()
            self._arrival.request.Cancel()


def error_of(end: int) -> Exception | None:
    """The error of a part of a message that has ended in another way than it should."""
    return None if end == _engine.DONE else _engine.stalled(broken=False)


def copy_status(of: MPI.Status, into: MPI.Status) -> None:
    """Say in the status of a generalized request what another one says of its message."""
    into.source, into.tag = of.source, of.tag
    into.Set_elements(MPI.BYTE, of.Get_elements(MPI.BYTE))
    into.Set_cancelled(of.Is_cancelled())

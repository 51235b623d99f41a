"""Point-to-point messages: on their way out, on their way in, and those that a probe had to open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from os import sched_yield
from threading import Lock, Thread
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.codecs.decoding import decode
from compcoll.core.errors import FrameError
from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine, interrupts
from compcoll.engine.call import begin_message, n_chunks, wait
from compcoll.engine.decision import Decision
from compcoll.engine.layout import LaidOut
from compcoll.engine.shaping import inner_of_message
from compcoll.frame import inspect
from compcoll.mpi import check, lost
from compcoll.mpi.buffers import Message
from compcoll.mpi.channel import Channel
from compcoll.mpi.envelopes import LARGEST_CHUNK, ROOM, Taken, cut, may_be_envelope, seal
from compcoll.schedule import planes
from compcoll.schedule.trace import chunk_step

__all__ = ["Delivery", "Inbox", "Outgoing", "Tally"]

_RAW = codec("raw")


class Tally:
    """What a message's parts did together; as `compcoll.engine._engine.Outcome`."""

    def __init__(self) -> None:
        self.raw_nbytes = self.wire_nbytes = self.messages = self.fallbacks = 0
        self.bound: float | None = 0.0
        self.codecs: dict[str, int] = {}
        self.dimensions: dict[int, int] = {}
        self.stages = {"encode": 0.0, "decode": 0.0, "wait": 0.0, "total": 0.0}
        self._start = perf_counter()

    def add(self, outcome: Any) -> None:
        """Count what a schedule did."""
        for key in ("raw_nbytes", "wire_nbytes", "messages", "fallbacks"):
            setattr(self, key, getattr(self, key) + getattr(outcome, key))
        for name, n in outcome.codecs.items():
            self.codecs[name] = self.codecs.get(name, 0) + n
        for ndim, n in outcome.dimensions.items():
            self.dimensions[ndim] = self.dimensions.get(ndim, 0) + n
        self.note_bound(outcome.bound)
        for stage, seconds in outcome.stages.items():
            self.stages[stage] += seconds

    def note_bound(self, bound: float | None) -> None:
        """Some of the result has this error."""
        known = bound is not None and self.bound is not None and bound == bound
        self.bound = max(bound, self.bound) if known else None  # type: ignore[type-var]

    def end(self) -> None:
        """All is done."""
        self.stages["total"] = perf_counter() - self._start


class Outgoing:
    """A compressed message on its way out: it begins on the user's communicator, and goes on by a channel.

    Attributes
    ----------
    tasks : list
        What has to be waited for.
    """

    def __init__(
        self, channel: Channel, decision: Decision, message: Message, dest: int, tag: int, tally: Tally
    ):
        block, spec = message.source(0), decision.codec
        assert spec is not None
        step = chunk_step(len(block), max(decision.chunk_nbytes // block.itemsize, 1))
        first, rest = cut(block, step)
        self.channel, self.dest, self.tag, self.tally = channel, dest, tag, tally
        self.chunks = n_chunks(len(rest), step) if len(rest) else 0
        inner = self._inner(decision, message, block, step)
        if inner:
            first, rest = block[: planes.ends(len(block), 1 + self.chunks, prod(inner))[1]], block
        self.stream = channel.reserve(self.chunks)
        start = perf_counter()
        self.error: Exception | None = None
        frame = np.empty(0, np.uint8)  # the receiver learns that there is something wrong here
        try:
            frame = np.asarray(spec.encode(_dense(first, inner))).reshape(-1)
        except Exception as error:
            self.error = error
        tally.stages["encode"] += perf_counter() - start
        envelope = seal(block, step, self.stream, frame)
        self._note(first, frame, envelope)
        self.tasks: list[Any] = [_engine.Request(channel.user.Isend([envelope, MPI.BYTE], dest, tag))]
        if self.chunks:
            there = channel.rank_of(dest)
            count = 1 + self.chunks if inner else 0
            others = begin_message(
                channel, spec, rest, there, step, self.stream, sends=True, inner=inner, count=count
            )
            if self.error is not None:
                others.fail(self.error)
            self.tasks.append(others)

    def _inner(self, decision: Decision, message: Message, block: Any, step: int) -> tuple[int, ...]:
        """The last dimensions of the block's shape, if it is coded in one (`compcoll.schedule.planes`)."""
        if isinstance(block, DeviceArray):
            return ()
        most_first = LARGEST_CHUNK // block.itemsize
        return inner_of_message(
            decision, block.dtype, message.shape(0), len(block), step, 1 + self.chunks, most_first
        )

    def _note(self, first: Any, frame: np.ndarray, envelope: np.ndarray) -> None:
        tally = self.tally
        tally.raw_nbytes += first.nbytes
        tally.wire_nbytes += envelope.size
        tally.messages += 1
        if frame.size:
            info = inspect(frame)
            tally.codecs[info.codec] = tally.codecs.get(info.codec, 0) + 1
            ndim = len(info.shape)
            tally.dimensions[ndim] = tally.dimensions.get(ndim, 0) + 1
            tally.fallbacks += info.fallback

    def wait(self) -> None:
        """Wait until all is sent. Where that takes long, ask the receiver once what became of the message."""
        if not wait(*self.tasks, limit=lost.STUCK if self.chunks else float("inf")):
            question = lost.question(self.stream, self.chunks, self.tag)
            there = self.channel.rank_of(self.dest)
            asked = _engine.Request(
                self.channel.comm.Isend([question, MPI.BYTE], there, self.channel.control)
            )
            wait(asked, *self.tasks)
        for task in self.tasks[1:]:
            self.tally.add(task.outcome)
        if self.error is not None:
            raise self.error


def _dense(block: Any, inner: tuple[int, ...]) -> Any:
    """A block side by side, in the shape whose last dimensions are these."""
    values = block.copy() if isinstance(block, LaidOut) else block
    return values.reshape(-1, *inner) if inner else values


class Delivery:
    """A message that MPI has handed over, on its way into a buffer.

    Attributes
    ----------
    tasks : list
        What has to be waited for before `finish`.
    compressed : bool
    """

    def __init__(
        self, channel: Channel, taken: Taken, message: Message, status: MPI.Status | None, tally: Tally,
        marks: dict[Any, Any] | None = None,
    ):  # fmt: skip
        taken.fill(status)
        self.channel, self.taken, self.message, self.tally = channel, taken, message, tally
        self.marks = marks or {}
        self.compressed = taken.is_envelope
        self.error: Exception | None = taken.problem or check.wrong_type(taken, message)
        self.tasks: list[Any] = []
        memory = message.target(0).view(np.uint8)
        if taken.nbytes > memory.size:  # the other chunks have to be taken all the same
            self.error = MPI.Exception(MPI.ERR_TRUNCATE)
            memory = np.empty(taken.nbytes, np.uint8)
        if taken.is_envelope:
            self._unpack(memory)
        else:
            self._copy(memory)

    def _copy(self, memory: Any) -> None:
        taken = self.taken
        if taken.nbytes % 2 and self.message.dtype.itemsize > 1:
            what = f"the message of {taken.nbytes} bytes from rank {taken.source}"
            self.error = FrameError(f"{what} is damaged")
        if isinstance(memory, DeviceArray):
            with memory.device.queue() as queue:
                queue.to_device(memory.address, taken.data)
                queue.wait()
        elif isinstance(memory, LaidOut):
            memory.put(taken.data)
        else:
            memory[: taken.nbytes] = taken.data

    def _unpack(self, memory: Any) -> None:
        taken, source = self.taken, self.channel.rank_of(self.taken.source)
        dtype = taken.dtype or np.dtype(f"u{taken.itemsize}")
        block = memory[: taken.nbytes].view(dtype)
        first, rest = cut(block, taken.step)
        on_device = isinstance(first, DeviceArray)
        chunks = n_chunks(len(rest), taken.step) if len(rest) else 0
        drops, count, inner = taken.dtype is None, 0, taken.inner
        if inner:
            end = planes.ends(len(block), 1 + chunks, prod(inner))[1]
            if taken.info is not None and taken.info.size == end:
                first, rest, count = block[:end], block, 1 + chunks
            else:
                drops, inner = True, ()
        if chunks or on_device:
            self.tasks.append(
                begin_message(
                    self.channel,
                    _RAW,
                    rest if chunks else rest[:0],
                    source,
                    taken.step,
                    taken.stream,
                    sends=False,
                    drops=drops,
                    inner=inner,
                    count=count if chunks else 0,
                )
            )
        if on_device:
            self.tasks[0].work.marks.update(self.marks)
        if taken.dtype is None:
            return
        start = perf_counter()
        try:
            if on_device:
                self.tasks[0].also_decode(taken.frame, first)
            elif isinstance(first, LaidOut):
                first.put(decode(taken.frame, np.empty(first.size, first.dtype)))
            else:
                decode(taken.frame, first)
        except (FrameError, TypeError, ValueError) as error:
            self.error = self.error or error
        assert taken.info is not None
        self.tally.note_bound(taken.info.bound)
        self.tally.stages["decode"] += perf_counter() - start

    def finish(self) -> None:
        """All tasks are done: put values where they belong, and raise what went wrong."""
        if self.taken.is_envelope:
            self.channel.lost.end(self.channel.rank_of(self.taken.source), self.taken.stream)
        for task in self.tasks:
            self.tally.add(task.outcome)
        self.message.finish()
        if self.error is not None:
            raise self.error
        for task in self.tasks:
            task.check()

    def wait(self, others: Sequence[Any] = ()) -> None:
        """Wait until all is there."""
        try:
            if self.tasks:
                wait(*self.tasks, others=others)
        except TimeoutError:
            raise
        except Exception as error:
            self.error = self.error or error
        self.finish()


@cache
def _mirror() -> MPI.Intracomm:
    """A communicator of this rank alone."""
    return MPI.Intracomm(_SELF).Dup()


_SELF = MPI.COMM_SELF
_REPLAY = Lock()
_replayed: list[MPI.Request] = []


class Inbox:
    """The receiving side of a communicator, with the messages that a probe had to open.

    Attributes
    ----------
    user : MPI.Intracomm
        The user's communicator as mpi4py knows it.
    channel : Channel or None
        None where no message is ever compressed.
    waiting : list of Taken
        Opened messages, in the order of their arrival; the next receives look here first.
    """

    def __init__(self, user: MPI.Intracomm, channel: Channel | None):
        self.user: MPI.Intracomm = user
        self.channel: Any = channel
        self.waiting: list[Taken] = []

    def find(self, source: int, tag: int) -> Taken | None:
        """The first opened message that a receive would match."""
        for taken in self.waiting:
            if source in (MPI.ANY_SOURCE, taken.source) and tag in (MPI.ANY_TAG, taken.tag):
                return taken
        return None

    def take(self, source: int, tag: int) -> Taken | None:
        """`find`, and no longer keep it."""
        taken = self.find(source, tag)
        if taken is not None:
            self.waiting.remove(taken)
        return taken

    @staticmethod
    def replay(data: np.ndarray, tag: int, receive: Callable[[MPI.Intracomm], Any]) -> Any:
        """Send bytes to this rank itself; what ``receive`` gives of the communicator on which they arrive."""
        with _REPLAY:  # another thread's message may have the same tag
            _replayed[:] = [request for request in _replayed if not request.Test()]
            _replayed.append(_mirror().Isend([data, MPI.BYTE], 0, tag))
            return receive(_mirror())

    def open(self, matched: MPI.Message, status: MPI.Status) -> Taken:
        """Read what a matched probe has found; its chunks are not lost."""
        return self.note(Taken.of(matched, status))

    def note(self, taken: Taken) -> Taken:
        """Say that the chunks of an envelope will be received."""
        if taken.is_envelope:
            self.channel.lost.begin(self.channel.rank_of(taken.source), taken.stream)
        return taken

    def keep(self, source: int, tag: int, status: MPI.Status) -> Taken | None:
        """Open a message that a probe has found, and keep it for a receive; None where it is gone."""
        with self.channel.lost.lock:
            matched = self.user.Improbe(source, tag, status)
            if matched is None:
                return None
            taken = self.open(matched, status)
        self.waiting.append(taken)
        return taken

    def next(
        self, source: int, tag: int, status: MPI.Status,
        opens: Callable[[MPI.Status], bool] = may_be_envelope, others: Sequence[Any] = (),
    ) -> Taken | MPI.Message:  # fmt: skip
        """Wait for the next message, which is opened if it may be an envelope; ``others`` are moved on."""
        known: Any = self.channel
        while known.lost.looking:
            with known.lost.lock:
                matched = self.user.Improbe(source, tag, status)
                if matched is not None:
                    return self.open(matched, status) if opens(status) else matched
            interrupts.check()
            if others:
                wait(*others, limit=0.0)
            sched_yield()
        known.lost.posted.append(posted := (known.rank_of(source), tag))
        try:
            probe = _engine.Probe(self.user, source, tag, status)
            wait(probe, others=others)
            return self.open(probe.message, status) if opens(status) else probe.message
        finally:
            known.lost.posted.remove(posted)

    def receive(
        self, message: Message, source: int, tag: int, status: MPI.Status | None, tally: Tally,
        others: Sequence[Any] = (),
    ) -> bool:  # fmt: skip
        """Receive the next message; whether it came compressed."""
        taken: Any = self.take(source, tag)
        if taken is None:
            arrived = MPI.Status()

            def opens(status: MPI.Status) -> bool:
                odd = status.Get_count(MPI.BYTE) % 2 == 1
                return odd and (message.dtype.itemsize > 1 or may_be_envelope(status))

            taken = self.next(source, tag, arrived, opens, others)
        if not isinstance(taken, Taken):
            _receive_plain(taken, message, status, others)
            check.check_whole(arrived, message)
            return False
        delivery = Delivery(self.channel, taken, message, status, tally)
        delivery.wait(others)
        return delivery.compressed

    def receive_later(
        self, message: Message, source: int, tag: int, sent: MPI.Request = MPI.REQUEST_NULL
    ) -> MPI.Request:
        """A request for the next message, completed by the engine; ``sent`` completes with it."""
        return Receive(self, message, source, tag, sent).request


def _receive_plain(
    matched: MPI.Message, message: Message, status: MPI.Status | None, others: Sequence[Any]
) -> None:
    """Receive an uncompressed message, that of a GPU through the host."""
    if message.device is None:
        wait(_engine.Request(matched.Irecv(message.whole()), status), others=others)
        message.finish()
        return
    into: Any = message.target(0).view(np.uint8)
    scratch = np.empty(into.size, np.uint8)
    status = MPI.Status() if status is None else status
    wait(_engine.Request(matched.Irecv([scratch, MPI.BYTE]), status), others=others)
    nbytes = status.Get_count(MPI.BYTE)
    if nbytes > 0:
        with into.device.queue() as queue:
            queue.to_device(into.address, scratch[:nbytes])
            queue.wait()


class Receive:
    """A nonblocking receive: MPI's own into scratch memory, then a generalised request."""

    def __init__(self, inbox: Inbox, message: Message, source: int, tag: int, sent: MPI.Request):
        self.inbox, self.message = inbox, message
        self.channel: Any = inbox.channel
        self.status = MPI.Status()
        self.error: Exception | None = None
        # What the caller has started comes first; another thread will not know its streams.
        device: Any = message.device
        self.marks = {} if device is None else {device: device.mark()}
        self.scratch = np.empty(max(message.nbytes, LARGEST_CHUNK) + ROOM, np.uint8)
        self.arriving = MPI.REQUEST_NULL
        self.posted: tuple[int, int] | None = None
        self.taken = inbox.take(source, tag)
        if self.taken is None:
            with self.channel.lost.lock:
                self.arriving = inbox.user.Irecv([self.scratch, MPI.BYTE], source, tag)
                self.posted = self.channel.rank_of(source), tag
                self.channel.lost.posted.append(self.posted)
        self._missing, self._lock = 2, Lock()
        self.request = MPI.Grequest.Start(self._query, None, self._cancel)
        _leave(_engine.Request(sent), self._part_done)
        self.landing = _engine.Request(self.arriving, self.status)
        _leave(self.landing, self._arrived)

    def _part_done(self, end: int) -> None:
        """The message was received, or the one that goes with it was sent."""
        with self._lock:
            self._missing -= 1
            missing = self._missing
        if not missing:
            self.request.Complete()

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._part_done(_engine.DONE)

    def _arrived(self, end: int) -> None:
        """The message, or its envelope, is there."""
        try:
            with self.channel.lost.lock:
                if self.posted is not None:
                    self.channel.lost.posted.remove(self.posted)
                self.landing.check()
                if self.status.Is_cancelled():
                    self._part_done(end)
                    return
                if self.taken is None:
                    nbytes = self.status.Get_count(MPI.BYTE)
                    self.taken = Taken(self.scratch[:nbytes], self.status.source, self.status.tag)
                    self.inbox.note(self.taken)
            if self.message.device is None:
                self._deliver()
            else:  # which takes its time, and moves on by itself
                Thread(target=self._deliver, daemon=True).start()
        except Exception as error:
            self._fail(error)

    def _deliver(self) -> None:
        try:
            assert self.taken is not None
            delivery = Delivery(self.channel, self.taken, self.message, self.status, Tally(), self.marks)
            if self.message.device is not None:
                delivery.wait()
                self._part_done(_engine.DONE)
            elif delivery.tasks:
                _leave(delivery.tasks[0], lambda end: self._delivered(delivery))
            else:
                self._delivered(delivery)
        except Exception as error:
            self._fail(error)

    def _delivered(self, delivery: Delivery) -> None:
        try:
            delivery.finish()
        except Exception as error:
            self._fail(error)
        else:
            self._part_done(_engine.DONE)

    def _query(self, status: MPI.Status) -> None:
        if self.error is not None:
            raise self.error
        status.source, status.tag = self.status.source, self.status.tag
        status.Set_elements(MPI.BYTE, self.status.Get_elements(MPI.BYTE))
        status.Set_cancelled(self.status.Is_cancelled())

    def _cancel(self, completed: bool) -> None:
        if not completed and self.arriving:
            self.arriving.Cancel()


def _leave(task: _engine.Task, finished: Callable[[int], None]) -> None:
    """Have a task moved on; ``finished`` is called at once where there is nothing to wait for."""
    if isinstance(task, _engine.Request) and task.request == MPI.REQUEST_NULL:
        finished(_engine.DONE)
    else:
        _engine.leave(task, finished)

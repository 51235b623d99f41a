"""Compressed point-to-point messages, on their way out and on their way in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.codecs.decoding import decode
from compcoll.core.errors import FrameError
from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine
from compcoll.engine.call import begin_message, n_chunks, wait
from compcoll.engine.decision import Decision
from compcoll.engine.layout import LaidOut
from compcoll.engine.shaping import inner_of_message
from compcoll.frame import inspect
from compcoll.mpi import check, lost
from compcoll.mpi.buffers import Message
from compcoll.mpi.channel import Channel
from compcoll.mpi.envelopes import LARGEST_CHUNK, Taken, cut, seal
from compcoll.schedule import planes
from compcoll.schedule.trace import chunk_step

__all__ = ["Delivery", "Outgoing", "Tally"]

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
    error : Exception or None
        What kept this rank from encoding.
    """

    def __init__(
        self, channel: Channel, decision: Decision, message: Message, dest: int, tag: int, tally: Tally,
        synchronous: bool = False,
    ):  # fmt: skip
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
        send = channel.user.Issend if synchronous else channel.user.Isend
        self.tasks: list[Any] = [_engine.Request(send([envelope, MPI.BYTE], dest, tag), None, envelope.size)]
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

    @property
    def question(self) -> tuple | None:
        """What to ask a receiver who takes long, as the engine takes it; None for a short message."""
        if not self.chunks:
            return None
        text, there = lost.question(self.stream, self.chunks, self.tag), self.channel.rank_of(self.dest)
        return text, self.channel.handle, there, self.channel.control, lost.STUCK

    def wait(self) -> None:
        """Wait until all is sent. Where that takes long, ask the receiver once what became of the message."""
        if not wait(*self.tasks, limit=lost.STUCK if self.chunks else float("inf")):
            text, _, there, control, _ = self.question  # type: ignore[misc]
            wait(_engine.Request(self.channel.comm.Isend([text, MPI.BYTE], there, control)), *self.tasks)
        self.finish()

    def finish(self) -> None:
        """All tasks are done: count what they did, and raise what went wrong."""
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

"""A schedule under way on memory of a GPU: what is ready together is asked of the device together.

It takes the place of the compiled engine where any block of a call lies on a GPU. Work that the device does
is a `Request`, looked at again and again beside MPI's requests.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan, prod
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.core import environment
from compcoll.devices.memory import DeviceArray
from compcoll.engine import interrupts
from compcoll.engine.device.host import POISON, Frame
from compcoll.engine.device.pool import Pool
from compcoll.engine.device.requests import Request
from compcoll.engine.device.work import CudaWork
from compcoll.frame import HEADER_NBYTES
from compcoll.schedule import planes
from compcoll.schedule.graph import NONE, Kind, Schedule

__all__ = ["DeviceRun", "Patience"]

#: Seconds of waiting after which a rank sleeps between two looks: yielding leaves others half of a core only.
SPINNING = 1e-3
#: Messages whose memory is one piece, at most.
_SLAB = 16
_MESSAGES = (Kind.SEND, Kind.RECV)
_POOL = Pool()
#: The number of what is no operation of the schedule.
_BESIDES = -1
#: What MPI may still write to.
_abandoned: list[Any] = []


def _has_come(event: Any) -> bool:
    """Whether an event needs no more waiting for; one that cannot be asked is its requests' affair."""
    try:
        return event is None or event.done
    except Exception:
        return True


class Patience:
    """Rests between two looks at what is under way: yields, then sleeps, and at last gives up.

    Parameters
    ----------
    spinning : float
        Seconds of waiting after which it sleeps.
    """

    def __init__(self, spinning: float = SPINNING) -> None:
        self._since, self._most, self._spinning = 0.0, environment.timeout(), spinning

    def moved(self) -> None:
        """Something has come."""
        self._since = 0.0

    def rest(self) -> None:
        """Leave the core to others; TimeoutError where nothing has come for too long."""
        now = perf_counter()
        self._since = self._since or now
        waited = now - self._since
        if waited < self._spinning:
            os.sched_yield()
            return
        sleep(min(waited / 16, 1e-4))
        interrupts.check()
        if waited > self._most:
            raise TimeoutError(
                f"waited for messages for more than COMPCOLL_TIMEOUT = {self._most:g} s; the communicator "
                "cannot be used any more"
            )


class DeviceRun:
    """A schedule under way.

    Parameters
    ----------
    schedule : Schedule
    codec : Codec
    dtype : numpy.dtype
        Of the blocks.
    comm : MPI.Comm
        A communicator that carries nothing else.
    tags : tuple of int
        First tag of the call, and how many it has.
    buffers : list of array
        The caller's, in the order of the schedule.
    direct : bool
        Whether MPI takes frames in device memory.
    problem : Exception, optional
        What keeps this rank from giving values; the others learn that there is something.
    """

    def __init__(
        self, schedule: Schedule, codec: Codec, dtype: np.dtype, comm: MPI.Comm, tags: tuple[int, int],
        buffers: list[Any], direct: bool = False, problem: Exception | None = None,
    ):  # fmt: skip
        self.schedule, self.comm, self.tags = schedule, comm, tags
        self.work = CudaWork(codec, _POOL)
        self.work.direct = direct
        self.error = problem
        self.end: int | None = None
        self.raw_nbytes = self.wire_nbytes = self.messages = 0
        self.stages = {"encode": 0.0, "decode": 0.0, "wait": 0.0, "total": 0.0}
        self._dtype, self._buffers = dtype, [*buffers, *([None] * len(schedule.scratch))]
        self._device = next(b.device for b in buffers if isinstance(b, DeviceArray))
        self._ops = schedule.ops.tolist()  # plain numbers are quicker than records
        self._bounds = [*schedule.ops["first"].tolist(), len(schedule.waiting)]
        self._waiting = schedule.waiting.tolist()
        self._waits = schedule.ops["waits"].tolist()
        self._blocks: dict[int, Any] = {}
        self._frames: list[Frame | None] = [None] * schedule.n_frames
        self._errors: dict[int, float] = {}
        self._ready: list[int] = []
        self._idle: list[int] = []
        self._remaining = len(self._ops)
        self._requests: list[MPI.Request] = []
        self._owners: list[tuple[int, Any]] = []
        self._statuses: list[MPI.Status] = []
        self._slab = np.empty(0, np.uint8)
        self._asked: list[tuple[int, Request]] = []
        self._under_way: dict[Any, list[tuple[int, Request]]] = {}  # by what they wait for
        self._start = perf_counter()
        for op, waits in enumerate(self._waits):
            if not waits:
                self._make_ready(op)

    # -- what came of it, as of `compcoll.engine._engine.Outcome`

    @property
    def outcome(self) -> DeviceRun:
        return self

    @property
    def bound(self) -> float | None:
        """Largest absolute error of any value of the result, None where it is not known."""
        return None if isnan(self.work.bound) else self.work.bound

    @property
    def fallbacks(self) -> int:
        """Frames that went lossless because their lossy codec could not carry them."""
        return self.work.fallbacks

    @property
    def codecs(self) -> Counter[str]:
        """Frames encoded, by the codec that they name."""
        return self.work.used

    @property
    def dimensions(self) -> Counter[int]:
        """Frames encoded, by the number of dimensions of their blocks."""
        return self.work.dimensions

    # -- moving on

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return not self._remaining

    @property
    def launched(self) -> bool:
        """Whether all that is left was given to devices: what is put behind `ends` finds the results."""
        if not self._remaining:
            return True
        if self._ready or self._idle or self._requests or self._asked:
            return False
        under_way = [request for waiting in self._under_way.values() for _, request in waiting]
        return len(under_way) == self._remaining and all(request.last for request in under_way)

    @property
    def ends(self) -> list[tuple[Any, Any]]:
        """Once it is `launched`: devices, and events behind what they still have to do."""
        lasts = {request.last for waiting in self._under_way.values() for _, request in waiting}
        return [(last.device, last.event) for last in lasts if last is not None]

    def order(self, marks: Mapping[Any, Sequence[Any]]) -> None:
        """Have it come after these events of devices, in place of what is in the current streams of whoever
        moves it on first; before that.
        """
        self.work.marks.update(marks)

    def follow_caller(self) -> None:
        """Come behind what this thread has started on its devices; where another one moves it on."""
        for device in {b.device for b in self._buffers if isinstance(b, DeviceArray)}:
            self.work.marks.setdefault(device, device.mark())

    def fail(self, problem: Exception) -> None:
        """Take part without values: the others learn that something went wrong here, which `check` raises."""
        self._fail(problem)

    def check(self) -> None:
        """Raise the first error that came up."""
        if self.error is not None:
            raise self.error

    def step(self) -> bool:
        """Begin what is ready, look at what is under way; whether anything moved."""
        if not self._remaining:
            return False
        try:
            moved = self._step()
        except BaseException:
            _abandoned.append(self)
            raise
        if not self._remaining:
            self.end = 0
            self.stages["total"] = perf_counter() - self._start
        return moved

    def _step(self) -> bool:
        moved = bool(self._ready)
        while self._ready:
            self._begin(heapq.heappop(self._ready))
        self._slab = self._slab[:0]
        self.work.turn.begin()
        asked, self._asked = self._asked, []
        for op, request in asked:
            self._look(op, request)
        moved |= self._poll()
        if moved or not self._idle:
            return moved
        while self._idle:
            self._begin(heapq.heappop(self._idle))
        return True

    def _make_ready(self, op: int) -> None:
        heapq.heappush(self._idle if self._ops[op][10] else self._ready, op)

    def _finish(self, op: int) -> None:
        for later in self._waiting[self._bounds[op] : self._bounds[op + 1]]:
            self._waits[later] -= 1
            if not self._waits[later]:
                self._make_ready(later)
        self._remaining -= 1

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error

    def _poll(self) -> bool:
        moved = False
        if self._requests:
            done = MPI.Request.Testsome(self._requests, self._statuses)
            if done:
                moved = True
                self._retire(done)
        for event in list(self._under_way):
            if _has_come(event):
                moved = True
                for op, request in self._under_way.pop(event):
                    self._look(op, request)
        return moved

    def _look(self, op: int, request: Request) -> None:
        """Take what has come of an operation, or wait for what it waits for now."""
        if request.done:
            self._complete(op, request)
        else:
            self._under_way.setdefault(request.event, []).append((op, request))

    def _retire(self, done: list[int]) -> None:
        owners = [self._owners[i] for i in done]
        for i in sorted(done, reverse=True):
            del self._requests[i], self._owners[i]
        for (op, data), status in zip(owners, self._statuses, strict=False):
            if data is None:
                self._finish(op)
            else:
                self._work("decode", op, self.work.received, data[: status.Get_count(MPI.BYTE)])

    # -- operations

    def also_decode(self, data: np.ndarray, block: Any) -> None:
        """Decode a frame besides, of bytes that somebody else has received."""
        self._remaining += 1
        self._work("decode", _BESIDES, self.work.decode, self.work.received(data), block)

    def _begin(self, op: int) -> None:
        kind, block, into, frame, other, *_ = self._ops[op]
        if kind in _MESSAGES:
            self._post(op)
            return
        work, block = self.work, self._block(block)
        if kind == Kind.ENCODE or kind == Kind.ADD:
            if self.error is not None:
                self._note(op, POISON)
                return
            if kind == Kind.ENCODE:
                carried = self._errors.get(self._ops[op][1], 0.0)
                self._work("encode", op, work.encode, block, carried, None, op)
            else:
                self._work("encode", op, work.add, self._frames[frame], self._frames[other], block)
        elif kind == Kind.DECODE:
            self._work("decode", op, work.decode, self._frames[frame], self._place(op, block))
        elif kind == Kind.DECODE_ADD:
            self._work("decode", op, work.decode_add, self._frames[frame], block)
        else:
            self._copy(op, kind, block, self._block(into), frame)

    def _copy(self, op: int, kind: int, block: Any, into: Any, frame: int) -> None:
        made = self._frames[frame] if kind == Kind.SETTLE else None
        if made is not None and made.info is None:
            self._note(op, None)
        elif made is not None and not (self.work.codec.lossless or made.exact):
            self._work("decode", op, self.work.decode, made, into)
        elif self.work.is_same(block, into):
            self._note(op, None)
        else:
            self._work("decode", op, self.work.copy, into, block)

    def _work(self, stage: str, op: int, function: Any, *args: Any) -> None:
        """Ask for something, whose result may come later."""
        start = perf_counter()
        try:
            result = function(*args)
        except Exception as error:
            self._fail(error)
            result = self._poison(op)
        self.stages[stage] += perf_counter() - start
        if isinstance(result, Request):
            self._asked.append((op, result))
        else:
            self._note(op, result)

    def _complete(self, op: int, request: Request) -> None:
        try:
            result = request.wait()
        except Exception as error:
            self._fail(error)
            result = self._poison(op)
        self._note(op, result)

    def _poison(self, op: int) -> Frame | None:
        """What is left of an operation that failed."""
        makes_frame = op != _BESIDES and self._ops[op][0] in (Kind.ENCODE, Kind.ADD, Kind.RECV)
        return POISON if makes_frame else None

    def _note(self, op: int, result: Any) -> None:
        """An operation has done its work."""
        if op == _BESIDES:
            self._remaining -= 1
            return
        kind, block, into, frame, _, total, *_ = self._ops[op]
        errors = self._errors
        if kind == Kind.ENCODE:
            self._frames[frame] = result
            self.work.count(result)
        elif kind == Kind.RECV:
            self._frames[frame] = result
        elif kind == Kind.ADD:
            self._frames[total] = result
        elif kind == Kind.DECODE:
            errors[block] = result or 0.0
            self._note_result(block)
        elif kind == Kind.DECODE_ADD:
            errors[block] = errors.get(block, 0.0) + (result or 0.0)
        else:
            lossy = kind == Kind.SETTLE and not self.work.codec.lossless and not self._exact(frame)
            errors[into] = (0.0 if lossy else errors.get(block, 0.0)) + (result or 0.0)
            self._note_result(into)
        self._finish(op)

    def _exact(self, frame: int) -> bool:
        made = self._frames[frame]
        return made is None or made.exact

    def _note_result(self, block: int) -> None:
        if self.schedule.blocks[block]["buffer"] < self.schedule.n_buffers:
            self.work.note_bound(self._errors[block])

    # -- messages

    def _post(self, op: int) -> None:
        kind, block, _, frame, _, _, peer, tag, *_ = self._ops[op]
        tag = self.tags[0] + tag % self.tags[1]
        if kind == Kind.SEND:
            made: Any = self._frames[frame]
            self.raw_nbytes += made.info.nbytes if made.info else 0
            self.wire_nbytes += made.data.size
            self.messages += 1
            self._expect(self.comm.Isend([made.data, MPI.BYTE], peer, tag), op, None)
            return
        like = self._block(block)
        room = HEADER_NBYTES + int(self.schedule.blocks[block]["most"]) * max(like.itemsize, 4)
        on_device = self.work.direct and isinstance(like, DeviceArray)
        data = like.device.scratch(room) if on_device else self._room(room)
        self._expect(self.comm.Irecv([data, MPI.BYTE], peer, tag), op, data)

    def _room(self, nbytes: int) -> np.ndarray:
        """Memory for what arrives, beside that of other messages of this step, for one copy of all."""
        step = -(-nbytes // 16) * 16
        if self._slab.size < step:
            n = 1 + sum(self._ops[op][0] == Kind.RECV for op in self._ready)
            self._slab = self.work.pool.get(min(n, _SLAB) * step)
        data, self._slab = self._slab[:nbytes], self._slab[step:]
        return data

    def _expect(self, request: MPI.Request, op: int, data: Any) -> None:
        self._requests.append(request)
        self._owners.append((op, data))
        if len(self._statuses) < len(self._requests):
            self._statuses.append(MPI.Status())

    # -- memory

    def _block(self, index: int) -> Any:
        found = self._blocks.get(index)
        if found is None:
            buffer, wide, start, n, *_ = self.schedule.blocks[index].tolist()
            if self._buffers[buffer] is None:
                self._buffers[buffer] = self._scratch(buffer - self.schedule.n_buffers, bool(wide))
            found = self._blocks[index] = self._buffers[buffer][start : start + n]
        return found

    def _place(self, op: int, block: Any) -> Any:
        """Where a frame's values belong, whose sender may have moved the ends of its chunks (`planes`)."""
        frame, chunk = self._frames[self._ops[op][3]], self.schedule.blocks[self._ops[op][1]]
        info = frame.info if frame is not None else None
        if chunk["of"] == NONE or info is None or len(info.shape) < 2:
            return block
        whole, plane = self._block(int(chunk["of"])), prod(info.shape[1:])
        if not 0 < plane <= whole.size:
            return block
        ends = planes.ends(whole.size, int(chunk["count"]), plane)
        return whole[ends[chunk["number"]] : ends[chunk["number"] + 1]]

    def _scratch(self, index: int, wide: bool) -> DeviceArray:
        dtype = accumulator_dtype(self._dtype) if wide else self._dtype
        n = int(self.schedule.scratch[index]["n"])
        return self._device.scratch(n * dtype.itemsize)[: n * dtype.itemsize].view(dtype)

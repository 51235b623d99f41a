"""The operations of a schedule that have to do with memory of GPUs, as callbacks of the compiled engine.

The engine has the schedule, its messages and its progress; here are kernels, copies and events. Operations
that are ready together are launched together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from compcoll.codecs import Codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.devices.memory import DeviceArray
from compcoll.engine._engine import memory_at
from compcoll.engine.device.futures import DeviceFuture, Last
from compcoll.engine.device.launches import Frame
from compcoll.engine.device.work import CudaWork
from compcoll.frame import inspect
from compcoll.schedule.graph import NONE, Kind, Schedule

__all__ = ["DeviceOperations"]

#: Frames that arrive in one piece of memory, at most.
_SLAB = 16


class DeviceOperations:
    """Device callbacks of `compcoll.engine._engine.Running`, for calls with any buffer on a device.

    It begins after what the caller has started on the devices when this is made.

    Parameters
    ----------
    schedule : Schedule
    codec : Codec
    dtype : numpy.dtype
        Of the blocks.
    buffers : list of array
        The caller's, in the order of the schedule.
    direct : bool
        Whether MPI takes frames in device memory.
    inside : Codec, optional
        For what stays in a node; else ``codec``.
    """

    def __init__(
        self,
        schedule: Schedule,
        codec: Codec,
        dtype: np.dtype,
        buffers: Sequence[Any],
        direct: bool = False,
        inside: Codec | None = None,
    ):
        self.direct, self._schedule, self._dtype = direct, schedule, dtype
        self._work, self._inside = CudaWork(codec, direct), inside or codec
        self._buffers = [*buffers, *([None] * len(schedule.scratch))]
        devices = dict.fromkeys(block.device for block in buffers if isinstance(block, DeviceArray))
        self._work.marks.update({device: device.mark() for device in devices})
        self._device = next(iter(devices))
        names = {one.name for chosen in (codec, self._inside) for one in chosen.attempts(dtype)}
        for device in devices:  # not in a callback, during which this rank looks at no messages
            device.prepare(names)
        self._frames: list[Any] = [None] * schedule.n_frames  # or the memory of one that arrives
        self._begun: list[tuple[int, int, DeviceFuture]] = []
        self._under_way: dict[
            Any, list[tuple[int, int, DeviceFuture]]
        ] = {}  # by the event that each waits for

    def order(self, marks: Mapping[Any, Sequence[Any]]) -> None:
        """Come after these events of devices, in place of what the caller has started there."""
        self._work.marks.update(marks)

    @property
    def is_last(self) -> bool:
        """Whether nothing is started behind any operation under way."""
        return all(type(event) is Last for event in self._under_way)

    @property
    def ends(self) -> list[tuple[Any, Any]]:
        """Devices, and events behind the last operations that they have begun."""
        return [(event.device, event.event) for event in self._under_way if type(event) is Last]

    def receive(self, rooms: Sequence[tuple[int, int, int]]) -> list[Any]:
        """Memory for frames that arrive, each given by its number, its block's buffer, and bytes; that on the
        host is as much as possible in one piece, for one copy of all.
        """
        if self.direct:
            found = [self._buffer(buffer).device.scratch(nbytes) for _, buffer, nbytes in rooms]
        else:
            step = -(-max(nbytes for *_, nbytes in rooms) // 16) * 16
            found = []
            for i in range(0, len(rooms), _SLAB):
                some = rooms[i : i + _SLAB]
                slab = self._device.host(len(some) * step)
                found += [slab[k * step : k * step + nbytes] for k, (*_, nbytes) in enumerate(some)]
        for (frame, *_), memory in zip(rooms, found, strict=True):
            self._frames[frame] = memory
        return found

    def step(self, begun: Sequence[tuple], released: Iterable[int]) -> list[tuple]:
        """Begin operations, and drop frames; the operations that have ended, each with an error or None, the
        frame that it made, and what it adds to its block's error.
        """
        for index in released:
            self._frames[index] = None
        done: list[tuple] = []
        fresh, self._begun = self._begun, []
        for op, kind, made, *operands in begun:
            try:
                fresh.append((op, made, self._begin(op, kind, *operands)))
            except Exception as error:
                done.append((op, error, None, 0.0))
        self._work.batcher.launch()
        for one in fresh:
            self._look(one, done)
        for event in list(self._under_way):
            if _has_come(event):
                for one in self._under_way.pop(event):
                    self._look(one, done)
        return done

    def _begin(
        self, op: int, kind: Kind, block: Any, into: Any, frame: Any, other: Any, carried: float
    ) -> DeviceFuture:
        work = self._work
        if kind == Kind.RECV:
            index, _, nbytes = frame
            return work.received(self._frames[index][:nbytes])
        block = self._block(block)
        if kind == Kind.ENCODE:
            return work.encode(block, carried, self._inside if self._schedule.ops[op]["inside"] else None)
        if kind == Kind.COPY:
            return work.copy(self._block(into), block)
        if kind == Kind.ADD:
            return work.add(self._frame(*frame), self._frame(*other), block)
        decode: Callable = work.decode if kind == Kind.DECODE else work.decode_add
        return decode(self._frame(*frame), block)

    def _look(self, one: tuple[int, int, DeviceFuture], done: list[tuple]) -> None:
        """Take the result, or wait for the next event."""
        op, made, future = one
        if not future.done:
            self._under_way.setdefault(future.event, []).append(one)
            return
        try:
            result = future.result()
        except Exception as error:
            done.append((op, error, None, 0.0))
            return
        if made == NONE:
            done.append((op, None, None, result))
        else:
            self._frames[made] = result
            done.append((op, None, result, 0.0))

    def _frame(self, index: int, address: int, nbytes: int) -> Frame:
        """A frame that was made here, has arrived, or was made by compiled code."""
        found = self._frames[index]
        if not isinstance(found, Frame):
            data = self._pinned(memory_at(address, nbytes)) if found is None else found[:nbytes]
            found = self._frames[index] = Frame(data, inspect(data))
        return found

    def _pinned(self, data: np.ndarray) -> np.ndarray:
        """A copy from which a device can fetch the data while the host goes on."""
        copy = self._device.host(data.size)
        copy[:] = data
        return copy

    def _block(self, place: tuple[int, int, int]) -> Any:
        buffer, start, n = place
        return self._buffer(buffer)[start : start + n]

    def _buffer(self, index: int) -> Any:
        """One of the caller's, or scratch memory, which is on a device."""
        found = self._buffers[index]
        if found is None:
            n, wide = self._schedule.scratch[index - self._schedule.n_buffers].tolist()
            dtype = accumulator_dtype(self._dtype) if wide else self._dtype
            found = self._device.scratch(n * dtype.itemsize)[: n * dtype.itemsize].view(dtype)
            self._buffers[index] = found
        return found


def _has_come(event: Any) -> bool:
    """Whether an event needs no more waiting for; one that cannot be asked is its futures' affair."""
    try:
        return event is None or event.done
    except Exception:
        return True

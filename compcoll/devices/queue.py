"""A CUDA stream for one piece of work: its memory, copies, launches and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compcoll.devices.kernels import Kernel

__all__ = ["Event", "Queue"]

_NOT_READY = 600  # cudaErrorNotReady, which CuPy has no name for
#: The largest distance between the rows of one copy: the memPitch of all GPUs.
_MAX_PITCH = (1 << 31) - 1


class Event:
    """Behind all that is in a queue so far; it remembers what it has once been told."""

    __slots__ = ("_device", "_error", "_event", "_fired")

    def __init__(self, queue: Queue):
        device = self._device = queue.device
        try:
            self._event = device._events.pop()
        except IndexError:
            self._event = device.cupy.cuda.Event(disable_timing=True)
        self._fired = False
        self._error: Exception | None = None
        device._runtime.eventRecord(self._event.ptr, queue.stream.ptr)

    @property
    def ptr(self) -> int:
        """CUDA's handle."""
        return self._event.ptr

    @property
    def done(self) -> bool:
        """Whether the stream has come so far; raises where the device has failed, which is never done."""
        if not self._fired:
            if self._error is not None:
                raise self._error
            status = self._device._runtime.eventQuery(self._event.ptr)
            if status not in (0, _NOT_READY):
                self._error = self._device._runtime.CUDARuntimeError(status)
                raise self._error
            self._fired = status == 0
        return self._fired

    def synchronize(self) -> None:
        if not self._fired:
            self._event.synchronize()

    def retire(self, error: Exception | None) -> None:
        """The queue is done, or has failed: what was recorded can be used for another one."""
        if error is None:
            self._fired = True
            self._device._events.append(self._event)
        elif not self._fired:
            self._error = self._error or error


class _Control:
    """Both sides of a batch's control memory; `compcoll.devices.batch.Control`."""

    def __init__(self, host: np.ndarray, address: int):
        self.host, self.address = host, address


class Queue:
    """A stream for one piece of work, and the memory that it needs meanwhile.

    `device` is the `compcoll.devices.cuda.Device` that makes it. A context manager: at its end the memory
    goes back, once everything is done. It implements `compcoll.devices.batch.Launcher`.
    """

    def __init__(self, device: Any, after: Sequence[Any]):
        self.device, self.max_grid = device, device.max_grid
        self._runtime = device._runtime
        try:
            self.stream = device._streams.pop()
        except IndexError:
            with device.current():
                self.stream = device.cupy.cuda.Stream(non_blocking=True)
        self._keep: list[Any] = []
        self._events: list[Event] = []
        self._open = True
        try:
            self.after(after)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def after(self, events: Sequence[Any]) -> None:
        """Have later work of the queue wait for these events, of any device."""
        for event in events:
            self.stream.wait_event(event)

    def close(self) -> None:
        """Give back the stream and the memory, when everything is done, or the device has failed."""
        if not self._open:
            return
        self._open = False
        error: Exception | None = None
        try:
            if not self.stream.done:
                self.wait()
        except Exception as problem:
            error = problem
            raise
        finally:
            for event in self._events:
                event.retire(error)
            self._events.clear()
            self._keep.clear()
            self.device._streams.append(self.stream)

    def scratch(self, nbytes: int) -> int:
        """Address of device memory for as long as this queue is open."""
        self._keep.append(self.device.scratch(nbytes))
        return self._keep[-1].address

    def to_device(self, address: int, data: np.ndarray) -> None:
        self._keep.append(data)
        self._copy(address, data.ctypes.data, data.nbytes, self._runtime.memcpyHostToDevice)

    def to_host(self, data: np.ndarray, address: int) -> None:
        self._keep.append(data)
        self._copy(data.ctypes.data, address, data.nbytes, self._runtime.memcpyDeviceToHost)

    def rows_to_host(self, data: np.ndarray, address: int, pitch: int) -> None:
        """Copy what begins every ``pitch`` bytes from an address on to the rows of ``data``."""
        self._rows(data.ctypes.data, data.strides[0], address, pitch, data, self._runtime.memcpyDeviceToHost)

    def rows_to_device(self, address: int, pitch: int, data: np.ndarray) -> None:
        """Copy the rows of ``data``, each without gaps, to what begins every ``pitch`` bytes."""
        self._rows(address, pitch, data.ctypes.data, data.strides[0], data, self._runtime.memcpyHostToDevice)

    def _rows(self, to: int, to_pitch: int, address: int, pitch: int, data: np.ndarray, kind: int) -> None:
        self._keep.append(data)
        n, nbytes = data.shape
        if n == 1 or max(to_pitch, pitch) > _MAX_PITCH:
            for i in range(n):
                self._copy(to + i * to_pitch, address + i * pitch, nbytes, kind)
            return
        with self.device.current():
            self._runtime.memcpy2DAsync(to, to_pitch, address, pitch, nbytes, n, kind, self.stream.ptr)

    def copy(self, to: int, address: int, nbytes: int) -> None:
        self._copy(to, address, nbytes, self._runtime.memcpyDeviceToDevice)

    def zero(self, address: int, nbytes: int) -> None:
        with self.device.current():
            self._runtime.memsetAsync(address, 0, nbytes, self.stream.ptr)

    def _copy(self, to: int, address: int, nbytes: int, kind: int) -> None:
        if nbytes:
            with self.device.current():
                self._runtime.memcpyAsync(to, address, nbytes, kind, self.stream.ptr)

    def control(self, nbytes: int) -> _Control:
        host = self.device.host(nbytes)
        host[:] = 0
        memory = self.device.scratch(nbytes)
        self._keep.append(memory)
        return _Control(host, memory.address)

    def upload(self, control: _Control) -> None:
        self.to_device(control.address, control.host)

    def download(self, control: _Control, nbytes: int) -> None:
        self.to_host(control.host[:nbytes], control.address)

    def launch(self, kernel: Kernel, grid: tuple[int, int], jobs: int) -> None:
        with self.device.current(), self.stream:
            self.device.function(kernel)(grid, (kernel.threads,), (np.uint64(jobs),))

    def event(self) -> Event:
        """An event behind all that is in the queue; its ``done`` tells whether that is so."""
        with self.device.current():
            self._events.append(Event(self))
        return self._events[-1]

    def wait(self) -> None:
        self.stream.synchronize()

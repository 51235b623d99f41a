"""NVIDIA GPUs through CuPy: memory, streams, pinned host memory, and the kernels of csrc/cuda.

Nothing here synchronises a whole device. A `Queue` is a stream for one piece of work: it starts after what
the caller has put into its current streams, and whoever needs its results asks
an event whether they are there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.devices.kernels import Kernel
from compcoll.devices.memory import DeviceArray
from compcoll.devices.nvrtc import OPTIONS, cubin_path, source

__all__ = ["Device", "Queue", "available", "pinned"]

_HERE: Any = nullcontext()
_DEFAULT_STREAM = 1  # cudaStreamLegacy, which CuPy calls 0
_NOT_READY = 600  # cudaErrorNotReady, which CuPy has no name for


@cache
def available() -> bool:
    """Whether CuPy is installed and sees a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except Exception:  # a broken driver is no GPU, and must not break what runs without
        return False


def pinned(nbytes: int) -> np.ndarray:
    """Pinned host memory, uint8, from CuPy's pool."""
    import cupy

    return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)


class Device:
    """One GPU, made by `of`; its modules are compiled once in a process, and cached on disk by CuPy.

    Attributes
    ----------
    max_grid : int
        Blocks of threads that fill it.
    """

    def __init__(self, index: int):
        import cupy

        self.cupy, self.index = cupy, index
        self._runtime = cupy.cuda.runtime
        self._streams: list[Any] = []
        self._events: list[Any] = []
        with cupy.cuda.Device(index):
            # Nothing runs on it: it names a part of CuPy's pool for memory that nobody uses any more.
            self._private = cupy.cuda.Stream(non_blocking=True)
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        properties = self._runtime.getDeviceProperties(index)
        self.max_grid = 16 * properties["multiProcessorCount"]
        self._arch = f"sm_{properties['major']}{properties['minor']}"

    @staticmethod
    @cache
    def of(index: int) -> Device:
        """The device of this number."""
        return Device(index)

    def empty(self, nbytes: int) -> DeviceArray:
        """Memory for the caller, contents undefined, allocated in the order of CuPy's current stream."""
        with self.current():
            return self._allocate(nbytes)

    def scratch(self, nbytes: int) -> DeviceArray:
        """Memory of no stream: whoever lets go of it has waited for all that was done with it."""
        with self.current(), self._private:
            return self._allocate(nbytes)

    def current(self) -> Any:
        """A context in which this is the current device."""
        return _HERE if self._runtime.getDevice() == self.index else self.cupy.cuda.Device(self.index)

    def _allocate(self, nbytes: int) -> DeviceArray:
        memory = self.cupy.cuda.alloc(max(nbytes, 1))  # a multiple of 512 bytes
        return DeviceArray(self, memory.ptr, np.uint8, nbytes, memory)

    def host(self, nbytes: int) -> np.ndarray:
        """Pinned host memory, uint8."""
        return pinned(nbytes)

    def queue(self, after: Sequence[Any] | None = None) -> Queue:
        """A stream that begins after these events; else after all that the caller has started so far."""
        return Queue(self, self.mark() if after is None else after)

    def mark(self) -> list[Any]:
        """Events behind what the caller, on this thread, has put into its current streams."""
        events = []
        with self.cupy.cuda.Device(self.index):
            for handle in self.current_streams():
                events.append(self.cupy.cuda.Event(disable_timing=True))
                self._runtime.eventRecord(events[-1].ptr, handle)
        return events

    def follow(self, handle: int) -> None:
        """Have the caller's current stream come after what has been put into another one.

        The handle is as `__cuda_array_interface__` has it from version 3 on: 1 is the default stream.
        """
        with self.cupy.cuda.Device(self.index):
            stream = self.cupy.cuda.get_current_stream()
            if (stream.ptr or _DEFAULT_STREAM) != (handle or _DEFAULT_STREAM):
                event = self.cupy.cuda.Event(disable_timing=True)
                self._runtime.eventRecord(event.ptr, handle or _DEFAULT_STREAM)
                stream.wait_event(event)

    def function(self, kernel: Kernel) -> Any:
        """A kernel, compiled when it is first needed."""
        if kernel.name not in self._functions:
            if kernel.module not in self._modules:
                self._modules[kernel.module] = self._load(kernel.module)
            self._functions[kernel.name] = self._modules[kernel.module].get_function(kernel.name)
        return self._functions[kernel.name]

    def _load(self, name: str) -> Any:
        """A module: as ``COMPCOLL_CUBINS`` has it for this source and GPU, else compiled, or from CuPy's cache."""
        if folder := os.environ.get("COMPCOLL_CUBINS"):
            path = cubin_path(Path(folder), name, self._arch)
            if path.is_file():
                return self.cupy.RawModule(path=str(path))
        return self.cupy.RawModule(code=source(name), options=OPTIONS)

    def current_streams(self) -> set[int]:
        """CuPy's current stream, in whose order `empty` allocates, and torch's."""
        handles = {self.cupy.cuda.get_current_stream().ptr}
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            handles.add(torch.cuda.current_stream(self.index).cuda_stream)
        return handles


class _Event:
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

    A context manager: at its end the memory goes back, once everything is done. It implements
    `compcoll.devices.batch.Launcher`.
    """

    def __init__(self, device: Device, after: Sequence[Any]):
        self.device, self.max_grid = device, device.max_grid
        self._runtime = device._runtime
        try:
            self.stream = device._streams.pop()
        except IndexError:
            with device.current():
                self.stream = device.cupy.cuda.Stream(non_blocking=True)
        self._keep: list[Any] = []
        self._events: list[_Event] = []
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
        """What is put into the queue from here on comes after these events, of any device."""
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
        self._keep.append(data)
        n, nbytes = data.shape
        with self.device.current():
            self._runtime.memcpy2DAsync(
                data.ctypes.data, data.strides[0], address, pitch, nbytes, n, self._runtime.memcpyDeviceToHost,
                self.stream.ptr,
            )  # fmt: skip

    def rows_to_device(self, address: int, pitch: int, data: np.ndarray) -> None:
        """Copy the rows of ``data``, each without gaps, to what begins every ``pitch`` bytes."""
        self._keep.append(data)
        n, nbytes = data.shape
        with self.device.current():
            self._runtime.memcpy2DAsync(
                address, pitch, data.ctypes.data, data.strides[0], nbytes, n,
                self._runtime.memcpyHostToDevice, self.stream.ptr,
            )  # fmt: skip

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

    def event(self) -> _Event:
        """An event behind all that is in the queue; its ``done`` tells whether that is so."""
        with self.device.current():
            self._events.append(_Event(self))
        return self._events[-1]

    def wait(self) -> None:
        self.stream.synchronize()

"""NVIDIA GPUs through CuPy: memory, streams, pinned host memory, and the kernels of csrc/cuda.

Nothing here synchronises a whole device. A `Queue` is a stream for one piece of work: it starts after what
the caller has put into its current streams, and whoever needs its results asks
an event whether they are there.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.devices import driver, kernels
from compcoll.devices.kernels import Kernel
from compcoll.devices.memory import DeviceArray
from compcoll.devices.nvrtc import OPTIONS, cubin_path, source
from compcoll.devices.pinned import PinnedPool
from compcoll.devices.queue import Queue

__all__ = ["Device", "available"]

_HERE: Any = nullcontext()
_DEFAULT_STREAM = 1  # cudaStreamLegacy, which CuPy calls 0


@cache
def available() -> bool:
    """Whether CuPy is installed and sees a GPU."""
    driver.ask_for_channels()
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except Exception:  # a broken driver is no GPU, and must not break what runs without
        return False


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
        self._prepared: set[str] = set()  # names of codecs
        self._pinned = PinnedPool(self._pin)
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
        """Memory of no stream: before it is freed, all work on it has been waited for."""
        torch = _torch()
        if torch is not None:
            memory = _OfTorch(torch, max(nbytes, 1), self.index, self._private.ptr)
            return DeviceArray(self, memory.ptr, np.uint8, nbytes, memory)
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
        return self._pinned.take(nbytes)

    def _pin(self, nbytes: int) -> Any:
        """Pinned memory for all devices, allocated in the context of this one: another one may have none."""
        cuda = self.cupy.cuda
        with self.current():
            return cuda.PinnedMemoryPointer(cuda.PinnedMemory(nbytes, self._runtime.hostAllocPortable), 0)

    def queue(self, after: Sequence[Any] | None = None) -> Queue:
        """A stream that begins after these events; else after all that the caller has started so far."""
        return Queue(self, self.mark() if after is None else after)

    def mark(self, streams: Iterable[int] | None = None) -> list[Any]:
        """Events after all work of these streams, else of the caller's current ones."""
        events = []
        with self.cupy.cuda.Device(self.index):
            for handle in self.current_streams() if streams is None else streams:
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

    def order(self, handle: int, events: Iterable[Any]) -> None:
        """Have what is put into a stream from here on come after these events, of any device."""
        for event in events:
            self._runtime.streamWaitEvent(handle, event.ptr)

    def prepare(self, codecs: Iterable[str]) -> None:
        """Load the kernels of codecs, which may take seconds, before anything waits for them."""
        missing = set(codecs) - self._prepared
        if missing:
            with self.current():
                for name in kernels.modules(missing):
                    self._module(name)
            self._prepared |= missing

    def function(self, kernel: Kernel) -> Any:
        """A kernel, compiled when it is first needed."""
        if kernel.name not in self._functions:
            with self.current():
                self._functions[kernel.name] = self._module(kernel.module).get_function(kernel.name)
        return self._functions[kernel.name]

    def _module(self, name: str) -> Any:
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Any:
        """A module, as ``COMPCOLL_CUBINS`` has it for this source and GPU, or compiled, or CuPy's cache."""
        if folder := os.environ.get("COMPCOLL_CUBINS"):
            path = cubin_path(Path(folder), name, self._arch)
            if path.is_file():
                module = self.cupy.RawModule(path=str(path))
                try:
                    module.compile()
                    return module
                except Exception as error:
                    warnings.warn(
                        f"{path} cannot be loaded ({error}), so {name} is compiled", RuntimeWarning, 2
                    )
        module = self.cupy.RawModule(code=source(name), options=OPTIONS)
        module.compile()
        return module

    def current_streams(self) -> set[int]:
        """CuPy's current stream, in whose order `empty` allocates, and torch's."""
        handles = {self.cupy.cuda.get_current_stream().ptr}
        torch = _torch()
        if torch is not None:
            handles.add(torch.cuda.current_stream(self.index).cuda_stream)
        return handles


class _OfTorch:
    """Memory of torch's allocator, which may have reserved all that CuPy's could ask the driver for."""

    def __init__(self, torch: Any, nbytes: int, index: int, stream: int):
        self._delete = torch.cuda.caching_allocator_delete
        self.ptr: int = torch.cuda.caching_allocator_alloc(nbytes, index, stream)

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            self._delete(self.ptr)


def _torch() -> Any:
    """The module torch where it has begun to use GPUs, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None

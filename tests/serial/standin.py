"""Stand-in for CuPy, as far as the library and its tests use it, for machines without a GPU.

`installed` replaces CuPy by it, on the GPUs of standin_driver.py.
"""

import ctypes
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
from standin_driver import (
    Array,
    Device,
    Driver,
    DriverError,
    Event,
    Memory,
    Stream,
    current_index,
    device_of,
    layout_at,
    load,
)

__all__ = [
    "Array",
    "Device",
    "Driver",
    "DriverError",
    "Event",
    "Memory",
    "Stream",
    "cupy",
    "device_of",
    "installed",
    "load",
]


class PinnedMemory:
    """Memory of the host that the driver allocates in the current device's context."""

    def __init__(self, size, flags=0):
        self.device, self.size = device_of(current_index()), size
        self.ptr = self.device.made("cuMemHostAlloc", size, flags)

    def __del__(self):
        if hasattr(self, "ptr"):
            self.device.try_call("cuMemFreeHost", self.ptr)


def _buffer_of(memory, offset):
    """Like `cupy.cuda.PinnedMemoryPointer`: a buffer that keeps its memory alive."""
    buffer = (ctypes.c_uint8 * (memory.size - offset)).from_address(memory.ptr + offset)
    buffer.owner = memory
    return buffer


class CupyDevice:
    def __init__(self, device=None):
        self.id = current_index() if device is None else int(device)

    def __enter__(self):
        before = load().made(None, "cuCtxGetCurrent")
        self.__dict__.setdefault("_before", []).append(before)
        return self.use()

    def __exit__(self, *exc):
        load().call(None, "cuCtxSetCurrent", self._before.pop())

    def use(self):
        load().call(None, "cuCtxSetCurrent", load().primary(self.id))
        return self

    def synchronize(self):
        device_of(self.id).synchronize()

    @property
    def compute_capability(self):
        return "90"


class CupyStream(Stream):
    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        super().__init__(device_of(current_index()), 0 if null else 2 if ptds else None, non_blocking)
        self.device_id = -1 if null else self.device.index

    def __enter__(self):
        if self.device_id not in (-1, current_index()):
            raise RuntimeError(f"a stream of device {self.device_id} while {current_index()} is current")
        return super().__enter__()

    def use(self):
        self.device.use(self)
        return self

    def record(self, event=None):
        event = event or CupyEvent()
        event.record(self)
        return event


class CupyEvent(Event):
    def __init__(self, block=False, disable_timing=False, interprocess=False):
        super().__init__(None, device_of(current_index()))


class ndarray(Array):
    @property
    def __cuda_array_interface__(self) -> dict:
        stream = self.device.current.ptr or 1
        return {**super().__cuda_array_interface__, "descr": self.dtype.descr, "stream": stream}


def asarray(a, dtype=None):
    """The array itself, a view of GPU memory, or a copy of a host array on the current device."""
    if isinstance(a, ndarray):
        return a
    if not hasattr(a, "__cuda_array_interface__"):
        return device_of(current_index()).array(np.asarray(a, dtype), ndarray)
    about = a.__cuda_array_interface__
    dtype = getattr(a, "dtype", None) or about["typestr"]
    layout = layout_at(about["data"][0], about["shape"], np.dtype(dtype), about.get("strides"))
    index = current_index()
    if layout.size:
        index = ctypes.c_int.from_buffer(ctypes.c_uint64(_attribute(9, about["data"][0]))).value
    return ndarray(device_of(index), layout, a)


def _memcpy_async(to, source, nbytes, kind, stream):
    device_of(current_index()).call("cuMemcpyAsync", to, source, nbytes, stream)


def _memset_async(to, value, nbytes, stream):
    device_of(current_index()).call("cuMemsetD8Async", to, value, nbytes, stream)


def _attribute(which: int, address: int) -> int:
    return load().made(None, "cuPointerGetAttribute", which, address)


class RawModule:
    """A module: a file, or, for any source code, the executor."""

    compiled: ClassVar = []  # the devices for which modules were loaded

    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc"):
        assert (code is None) != (path is None)
        self._path, self._modules = path, {}

    def _call(self, name, *args) -> int:
        """Result of a function of the driver, called as CuPy does, in the current device's context."""
        driver, index, result = load(), current_index(), ctypes.c_uint64()
        driver.call(None, "cuCtxPushCurrent_v2", driver.primary(index))
        try:
            driver.check(name, ctypes.byref(result), *args)
        finally:
            driver.call(None, "cuCtxPopCurrent_v2", None)
        return result.value

    def compile(self, log_stream=None) -> int:
        index = current_index()
        if index not in self._modules:
            self.compiled.append(index)
            name = "cuModuleLoad" if self._path else "cuModuleLoadData"
            self._modules[index] = self._call(name, self._path.encode() if self._path else load().image)
        return self._modules[index]

    def get_function(self, name):
        return RawKernel(self, name)


class RawKernel:
    def __init__(self, module, name):
        self.name, self._module, self._functions = name, module, {}

    @property
    def kernel(self):
        """The function for the current device."""
        index = current_index()
        if index not in self._functions:
            ptr = self._module._call("cuModuleGetFunction", self._module.compile(), self.name.encode())
            self._functions[index] = SimpleNamespace(ptr=ptr)
        return self._functions[index]

    def __call__(self, grid, block, args, *, shared_mem=0):
        (jobs,) = args
        jobs = ctypes.c_uint64(int(jobs))
        device = device_of(current_index())
        grid, block = ((*sizes, 1, 1)[:3] for sizes in (grid, block))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(jobs))
        stream = device.current.ptr
        device.call("cuLaunchKernel", self.kernel.ptr, *grid, *block, shared_mem, stream, pointers, None)


def _contiguous(a):
    return a if a.layout.flags.c_contiguous else a.device.array(a.get(), ndarray)


def _made_by(make):
    return lambda *args, **names: device_of(current_index()).array(make(*args, **names), ndarray)


def cupy() -> ModuleType:
    """A module like CuPy's on the stand-in."""
    module = ModuleType("cupy")
    runtime = SimpleNamespace(
        hostAllocPortable=1,
        memcpyAsync=_memcpy_async,
        memsetAsync=_memset_async,
        getDeviceCount=lambda: load().made(None, "cuDeviceGetCount"),
        driverGetVersion=lambda: load().made(None, "cuDriverGetVersion"),
        runtimeGetVersion=lambda: 13000,
        getDeviceProperties=lambda index: {
            "name": b"stand-in",
            "multiProcessorCount": 1,
            "major": 9,
            "minor": 0,
            "totalGlobalMem": load().made(None, "cuDeviceTotalMem_v2", index),
        },
    )
    module.cuda = SimpleNamespace(
        Device=CupyDevice,
        Stream=CupyStream,
        Event=CupyEvent,
        PinnedMemory=PinnedMemory,
        PinnedMemoryPointer=_buffer_of,
        get_elapsed_time=lambda start, end: 1.0,
        runtime=runtime,
        is_available=lambda: True,
        get_current_stream=lambda index=-1: device_of(index if index >= 0 else current_index()).current,
    )
    module.__version__ = "14.2.0"
    module.ndarray, module.asarray, module.RawModule = ndarray, asarray, RawModule
    module.empty = lambda shape, dtype=float: device_of(current_index()).allocate(shape, dtype, ndarray)
    module.asnumpy = Array.get
    module.ascontiguousarray = _contiguous
    for make in (np.zeros, np.full):
        setattr(module, make.__name__, _made_by(make))
    return module


def _caches() -> list:
    """Caches of the library that depend on CuPy."""
    try:
        from compcoll.devices import cuda
    except ImportError:
        return []
    found = getattr(cuda, "available", None), getattr(getattr(cuda, "Device", None), "of", None)
    return [one for one in found if hasattr(one, "cache_clear")]


@contextmanager
def installed():
    """Replace CuPy by the stand-in."""
    caches = _caches()
    before = sys.modules.get("cupy")
    load().call(None, "cuInit", 0)
    sys.modules["cupy"] = module = cupy()
    for one in caches:
        one.cache_clear()
    try:
        yield module
    finally:
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before
        for one in caches:
            one.cache_clear()

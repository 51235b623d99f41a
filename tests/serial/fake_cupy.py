"""What compcoll uses of CuPy, on the host: its names and signatures, two devices, the executor's kernels.

Everything happens at once. What belongs to a device may be used only while it is current, as CUDA has it.
"""

import ctypes
import os
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
from executor import Executor

from compcoll.devices.kernels import JOB

N_DEVICES = 2
_state = threading.local()


def _current() -> int:
    return getattr(_state, "device", 0)


class Device:
    def __init__(self, device=None):
        self.id = _current() if device is None else int(device)

    def __enter__(self):
        self._before = _current()
        return self.use()

    def __exit__(self, *exc):
        _state.device = self._before

    def use(self):
        assert 0 <= self.id < N_DEVICES
        _state.device = self.id
        return self

    def synchronize(self):
        pass


class Stream:
    """The null stream where ``non_blocking`` is not given: of all devices."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self.device_id = _current() if non_blocking else -1
        self.ptr = id(self) if non_blocking else 0
        self.done = True

    def __enter__(self):
        if self.device_id not in (-1, _current()):
            raise RuntimeError(f"a stream of device {self.device_id} while {_current()} is current")
        _stack().append(self)
        return self

    def __exit__(self, *exc):
        _stack().pop()

    def synchronize(self):
        pass

    def wait_event(self, event):
        assert _events[event.ptr].recorded
        self.after = [*getattr(self, "after", ()), _events[event.ptr].stream]


def _stack() -> list:
    if not hasattr(_state, "streams"):
        _state.streams = [Stream()]
    return _state.streams


class Event:
    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.device_id, self.recorded = _current(), False
        self.ptr = id(self)
        _events[self.ptr] = self

    def record(self, stream=None):
        _event_record(self.ptr, (_stack()[-1] if stream is None else stream).ptr)

    def synchronize(self):
        assert self.recorded


_events: dict = {}


def _event_record(event, stream):
    assert isinstance(stream, int)
    assert _events[event].device_id == _current()
    _events[event].recorded, _events[event].stream = True, stream


def _stream_wait_event(stream, event, flags=0):
    assert isinstance(stream, int)
    assert _events[event].recorded


class Memory:
    """An aligned piece of it, poisoned, of the arena of the current stream."""

    arenas: ClassVar = Counter()

    def __init__(self, size):
        self.arenas[id(_stack()[-1])] += 1
        whole = np.full(size + 512, 0xA5, np.uint8)
        start = -whole.ctypes.data % 512
        self.data, self.device_id = whole[start : start + size], _current()
        self.ptr = self.data.ctypes.data


class PinnedMemory:
    """Of the host, allocated in the context of the current device."""

    made: ClassVar = []  # (device, bytes)

    def __init__(self, size, flags=0):
        assert flags == 1
        self.made.append((_current(), size))
        self.size = size


def _memcpy(dst, src, size, kind, stream):
    assert all(isinstance(x, int) for x in (dst, src, size, kind, stream))
    assert kind in (1, 2, 3)
    ctypes.memmove(dst, src, size)


def _memcpy_2d(dst, dpitch, src, spitch, width, height, kind, stream):
    assert width <= min(dpitch, spitch)
    for i in range(height):
        _memcpy(dst + i * dpitch, src + i * spitch, width, kind, stream)


class ndarray:
    """As far as tests and compcoll look at one."""

    def __init__(self, values, owner=None):
        self.values, self.owner = values, owner
        self.dtype, self.shape, self.size = values.dtype, values.shape, values.size

    @property
    def __cuda_array_interface__(self):
        v = self.values
        strides = None if v.flags.c_contiguous else v.strides
        return {
            "shape": v.shape,
            "typestr": v.dtype.str,
            "descr": v.dtype.descr,
            "stream": 1,
            "version": 3,
            "strides": strides,
            "data": (v.ctypes.data if v.size else 0, False),
        }

    def __getitem__(self, key):
        return ndarray(self.values[key], self.owner)

    def __setitem__(self, key, value):
        self.values[key] = getattr(value, "values", value)

    def __iadd__(self, other):
        self.values += other
        return self

    def get(self):
        return self.values.copy()

    def set(self, values):
        self.values[...] = values

    def view(self, dtype):
        return ndarray(self.values.view(dtype), self.owner)

    def reshape(self, *shape):
        return ndarray(self.values.reshape(*shape), self.owner)


def asarray(a):
    if isinstance(a, ndarray):
        return a
    if not hasattr(a, "__cuda_array_interface__"):
        return ndarray(np.array(a))
    about = a.__cuda_array_interface__
    dtype = np.dtype(about["typestr"])
    size = int(np.prod(about["shape"])) * dtype.itemsize
    memory = (ctypes.c_uint8 * size).from_address(about["data"][0])
    return ndarray(np.frombuffer(memory, dtype).reshape(about["shape"]), a)


def _fault(kernel):
    """What ``FAKE_CUPY_FAULTS`` has of a kernel: ``hang=NAME``, ``fail=NAME``, or ``race=NAME``, with commas
    between; of the last, whether the kernel is to be wrong where it has several blocks of threads."""
    races = False
    for fault in filter(None, os.environ.get("FAKE_CUPY_FAULTS", "").split(",")):
        what, name = fault.split("=")
        if name == kernel and what == "hang":
            time.sleep(600)
        if name == kernel and what == "fail":
            raise RuntimeError(f"{kernel}: an illegal address")
        races = races or (name == kernel and what == "race")
    return races


class RawModule:
    library = None  # of the executor

    compiled: ClassVar = []  # the devices for which modules were compiled or loaded

    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc"):
        assert (code is None) != (path is None)
        assert code is None or "__global__" in code
        assert isinstance(options, tuple)
        self._executor, self._code, self._path = Executor(self.library), code, path

    def compile(self, log_stream=None):
        if self._path is not None:
            raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU")
        self.compiled.append(_current())

    def get_function(self, name):
        assert name.split("_")[0] in self._code

        def launch(grid, block, args, *, shared_mem=0):
            assert [type(x) for x in (*grid, *block)] == [int] * 3
            (jobs,) = args
            assert isinstance(jobs, np.uint64)
            races = _fault(name)
            kernel = SimpleNamespace(name=name, threads=block[0])
            self._executor.launch(kernel, grid, int(jobs))
            if races and grid[0] > 1:
                job = np.frombuffer((ctypes.c_uint8 * JOB.itemsize).from_address(int(jobs)), JOB)[0]
                ctypes.c_uint8.from_address(int(job["dst"]) + 7).value ^= 1

        launch.kernel = object()  # which is compiled when it is asked for
        return launch


def _module(library) -> ModuleType:
    module = ModuleType("cupy")
    runtime = SimpleNamespace(
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
        memcpyAsync=_memcpy,
        memcpy2DAsync=_memcpy_2d,
        getDevice=_current,
        memsetAsync=lambda ptr, value, size, stream: ctypes.memset(ptr, value, size),
        eventRecord=_event_record,
        streamWaitEvent=_stream_wait_event,
        eventQuery=lambda event: 0 if _events[event].recorded else 600,
        CUDARuntimeError=RuntimeError,
        cudaErrorNotReady=600,
        hostAllocPortable=1,
        getDeviceCount=lambda: N_DEVICES,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        pointerGetAttributes=lambda ptr: SimpleNamespace(device=_current()),
        getDeviceProperties=lambda i: {
            "name": b"fake",
            "multiProcessorCount": 1,
            "major": 9,
            "minor": 0,
            "totalGlobalMem": 1 << 30,
        },
    )
    module.cuda = SimpleNamespace(
        Device=Device,
        Stream=Stream,
        Event=Event,
        alloc=Memory,
        runtime=runtime,
        PinnedMemory=PinnedMemory,
        PinnedMemoryPointer=lambda memory, offset: bytearray(memory.size),
        is_available=lambda: True,
        get_current_stream=lambda device_id=-1: _stack()[-1],
        get_elapsed_time=lambda start, end: 1.0,
    )
    module.__version__ = "14.2.0"
    module.ndarray, module.asarray, module.RawModule = ndarray, asarray, RawModule
    module.ascontiguousarray = lambda a: ndarray(np.ascontiguousarray(a.values))
    module.asnumpy = lambda a: a.get()
    for make in (np.zeros, np.ones, np.full):
        setattr(module, make.__name__, lambda *args, make=make: ndarray(make(*args)))
    return module


@contextmanager
def installed(library):
    """CuPy is this one."""
    from compcoll.devices import cuda

    caches = cuda.available, cuda.Device.of
    before = sys.modules.get("cupy")
    RawModule.library = library
    sys.modules["cupy"] = module = _module(library)
    for cache in caches:
        cache.cache_clear()
    try:
        yield module
    finally:
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before
        for cache in caches:
            cache.cache_clear()

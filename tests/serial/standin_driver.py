"""GPUs for machines without one: a stand-in for NVIDIA's driver library, tests/native/cuda.cpp.

`load` builds and loads it; libraries that load libcuda.so.1 later get it too. Operations of streams run when
a caller asks whether they are done, in an order drawn from a seed. Calls of the classes here are a test's
own: they are not counted, do not fail, and wait for no other streams.
"""

import ctypes
import hashlib
import threading
import traceback
from collections import Counter
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
from executor import build, compiler, library_path, make_once, run

SOURCES = sorted((Path(__file__).parents[1] / "native").glob("cuda*"))
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread"]

_LETTERS = {
    "p": ctypes.c_void_p,
    "a": ctypes.c_uint64,
    "z": ctypes.c_size_t,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "l": ctypes.c_long,
    "s": ctypes.c_char_p,
}
#: The functions, and one letter for each parameter.
_SIGNATURES = """
    cuInit:u cuDriverGetVersion:p cuDeviceGetCount:p cuDeviceGet:pi cuDeviceGetAttribute:pii
    cuDeviceTotalMem_v2:pi cuDevicePrimaryCtxRetain:pi cuDevicePrimaryCtxGetState:ipp cuCtxPushCurrent_v2:p
    cuCtxPopCurrent_v2:p cuCtxGetCurrent:p cuCtxSetCurrent:p cuCtxGetDevice:p cuPointerGetAttribute:pia
    cuPointerGetAttributes:uppa cuMemAlloc_v2:pz cuMemFree_v2:a cuMemAllocManaged:pzu cuMemHostAlloc:pzu
    cuMemHostRegister_v2:pzu cuMemFreeHost:p cuMemcpyHtoDAsync_v2:apzp cuMemcpyDtoHAsync_v2:pazp
    cuMemcpyDtoDAsync_v2:aazp cuMemcpyAsync:aazp cuMemcpy2DAsync_v2:pp cuMemsetD8Async:auzp cuStreamCreate:pu
    cuStreamDestroy_v2:p cuStreamWaitEvent:ppu cuStreamQuery:p cuStreamSynchronize:p cuStreamIsCapturing:pp
    cuStreamBeginCapture_v2:pi cuStreamEndCapture:pp cuThreadExchangeStreamCaptureMode:p cuLaunchHostFunc:ppp
    cuEventCreate:pu cuEventRecord:pp cuEventQuery:p cuEventSynchronize:p cuEventDestroy_v2:p cuModuleLoad:ps
    cuModuleLoadData:ps cuModuleGetFunction:pps cuLaunchKernel:puuuuuuuppp cuGetErrorName:ip
    standin_set_seed:a standin_eager:i standin_stub:p standin_fail_on_fresh:i standin_fail_from:li
    standin_fail_launch:si standin_quiet:i standin_hold:p standin_release:p standin_budget:il
    standin_register:ii standin_list:ipl standin_copies:ii standin_live:i standin_drain:ii standin_sound:
"""
_LONG = {f"standin_{name}" for name in ("list", "copies", "live")}


class DriverError(RuntimeError):
    """A function of the driver has failed."""

    def __init__(self, name: str, code: int):
        super().__init__(f"{name}: error {code}")
        self.code = code


class Driver:
    """The stand-in for NVIDIA's driver library; ``lib`` has its functions and controls for ctypes.

    Attributes
    ----------
    lib : ctypes.CDLL
    image : bytes
        Path of the executor, the image of every module.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        for name, letters in (word.split(":") for word in _SIGNATURES.split()):
            function = getattr(self.lib, name)
            function.argtypes = [_LETTERS[letter] for letter in letters]
            function.restype = ctypes.c_long if name in _LONG else ctypes.c_int
        self._contexts: dict[int, int] = {}

    @property
    def image(self) -> bytes:
        return bytes(build())

    def check(self, name: str, *args) -> None:
        """Call a function as the library does: the call is counted, and may fail."""
        if code := getattr(self.lib, name)(*args):
            raise DriverError(name, code)

    def try_call(self, context: int | None, name: str, *args) -> int:
        """Call a function in a context, as a test's own call; return its error code."""
        self.lib.standin_quiet(1)
        try:
            if context is not None:
                self.lib.cuCtxPushCurrent_v2(context)
            code = getattr(self.lib, name)(*args)
            if context is not None:
                self.lib.cuCtxPopCurrent_v2(None)
            return code
        finally:
            self.lib.standin_quiet(-1)

    def call(self, context: int | None, name: str, *args) -> None:
        if code := self.try_call(context, name, *args):
            raise DriverError(name, code)

    def made(self, context: int | None, name: str, *args) -> int:
        """The value that a function writes to its first argument."""
        result = ctypes.c_uint64()
        self.call(context, name, ctypes.byref(result), *args)
        return result.value

    def primary(self, index: int) -> int:
        """A device's primary context, which is retained until the process ends."""
        if index not in self._contexts:
            self.call(None, "cuInit", 0)
            self._contexts[index] = self.made(None, "cuDevicePrimaryCtxRetain", index)
        return self._contexts[index]

    def listed(self, device: int = -1) -> Counter[str]:
        """Count of launches of each kernel on a device; without a device, of calls of each function."""
        room = self.lib.standin_list(device, None, -1) + 4096
        text = ctypes.create_string_buffer(room)
        n = self.lib.standin_list(device, text, room)
        lines = text.raw[:n].decode().splitlines()
        return Counter({name: int(n) for name, n in map(str.split, lines)})


@cache
def load() -> Driver:
    """Build the stand-in if needed, and load it."""
    executor = library_path()  # the first test that launches a kernel builds it
    assert executor is not None, "there is no compiler for x86-64"
    key = hashlib.sha256(" ".join([*compiler(), *FLAGS]).encode())
    for path in SOURCES:
        key.update(path.read_bytes())
    library = executor.parent / f"{key.hexdigest()[:20]}.libcuda.so"

    def make(scratch: Path) -> Path:
        units = [str(path) for path in SOURCES if path.suffix == ".cpp"]
        link = ["-shared", "-Wl,-soname,libcuda.so.1", *units, "-o", str(scratch / "libcuda.so"), "-ldl"]
        run([*compiler(), *FLAGS, *link])
        return scratch / "libcuda.so"

    make_once(library, make)
    return Driver(library)


_state = threading.local()
_functions: dict = {}  # host functions that streams will call
_numbers = count(1)
_failures: list = []  # exceptions of host functions
_kept: list = []  # memory that operations read


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _call_function(number):
    try:
        _functions.pop(number)()
    except BaseException as error:  # for `Device.sound`
        _failures.append(error)


class Stream:
    """A stream of a device; the current stream inside a ``with`` block.

    Attributes
    ----------
    ptr, handle : int
    """

    def __init__(self, device: "Device", handle: int | None = None, non_blocking: bool = True):
        self.device, self._owned = device, handle is None
        if handle is None:
            handle = device.made("cuStreamCreate", int(non_blocking))
        self.ptr = self.handle = handle

    def __enter__(self):
        if not hasattr(_state, "before"):
            _state.before = []
        _state.before.append((self.device, self.device.current))
        self.device.use(self)
        return self

    def __exit__(self, *exc):
        device, stream = _state.before.pop()
        device.use(stream)

    def hold(self) -> None:
        """Append an operation that completes at `release`."""
        self.device.call("standin_hold", self.ptr)

    def release(self) -> None:
        self.device.call("standin_release", self.ptr)

    def call(self, function) -> None:
        """Append a host function."""
        number = next(_numbers)
        _functions[number] = function
        self.device.call("cuLaunchHostFunc", self.ptr, _call_function, number)

    def event(self) -> "Event":
        return Event(self)

    def wait(self, event: "Event") -> None:
        """Order later operations of the stream after an event."""
        self.device.call("cuStreamWaitEvent", self.ptr, event.ptr, 0)

    wait_event = wait

    def synchronize(self) -> None:
        self.device.call("cuStreamSynchronize", self.ptr)

    @property
    def done(self) -> bool:
        return self.device.ready("cuStreamQuery", self.ptr)

    def __del__(self):
        if getattr(self, "ptr", 0) and self._owned:
            self.device.try_call("standin_release", self.ptr)
            self.device.try_call("cuStreamDestroy_v2", self.ptr)


class Event:
    """A point in a stream."""

    def __init__(self, stream: Stream | None, device: "Device | None" = None):
        self.device = device or stream.device
        self.ptr = self.device.made("cuEventCreate", 2)
        if stream is not None:
            self.record(stream)

    def record(self, stream: Stream | None = None) -> None:
        self.device.call("cuEventRecord", self.ptr, (stream or self.device.current).ptr)

    @property
    def done(self) -> bool:
        return self.device.ready("cuEventQuery", self.ptr)

    def synchronize(self) -> None:
        self.device.call("cuEventSynchronize", self.ptr)

    def __del__(self):
        if hasattr(self, "ptr"):
            self.device.try_call("cuEventDestroy_v2", self.ptr)


class Memory:
    """Memory of a device; like a caching allocator, allocating and freeing wait for no stream."""

    def __init__(self, device: "Device", nbytes: int):
        self.device, self.nbytes = device, nbytes
        self.ptr = device.made("cuMemAlloc_v2", nbytes) if nbytes else 0

    def __del__(self):
        if getattr(self, "ptr", 0):
            self.device.try_call("cuMemFree_v2", self.ptr)


class Array:
    """An array on a device. ``layout`` is a NumPy array at its addresses, which only tests may read."""

    def __init__(self, device: "Device", layout: np.ndarray, owner):
        self.device, self.layout, self.owner = device, layout, owner
        self.dtype, self.shape, self.size = layout.dtype, layout.shape, layout.size
        self.nbytes, self.ndim = layout.nbytes, layout.ndim
        self.address = layout.ctypes.data if layout.size else 0

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None if self.layout.flags.c_contiguous else self.layout.strides,
            "version": 3,
        }

    def _arrive(self) -> None:
        """Wait for the device's current stream, as a synchronous copy does."""
        if self.size:
            byte = ctypes.create_string_buffer(1)
            self.device.call("cuMemcpyDtoHAsync_v2", byte, self.address, 1, self.device.current.ptr)

    def get(self) -> np.ndarray:
        """A copy on the host."""
        self._arrive()
        return self.layout.copy()

    def set(self, values) -> None:
        self._arrive()
        self.layout[...] = values

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.get() if dtype is None else self.get().astype(dtype)

    def __len__(self) -> int:
        return len(self.layout)

    def _of(self, layout):
        return type(self)(self.device, layout, self.owner)

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        return self._of(self.layout[(*key, ...)])

    def __setitem__(self, key, values):
        self[key].set(np.asarray(values))

    def __iadd__(self, other):
        self.set(self.get() + np.asarray(other))
        return self

    def view(self, dtype):
        return self._of(self.layout.view(dtype))

    def reshape(self, *shape):
        return self._of(self.layout.reshape(*shape))


class Device:
    """One of the virtual GPUs. Counts start when the object is made, on this thread's null stream.

    Attributes
    ----------
    current : Stream
        This thread's stream: the null stream until `use` sets another one.
    launches, counts : Counter
        Launches of each kernel on this device, and calls of each function of the driver.
    copies, pageable : int
        Copies between host and device, and those of them with unpinned host memory.
    nbytes : tuple of int
        Bytes copied to the host, to the device, and between devices, in this device's streams.
    """

    def __init__(self, index: int = 0, seed: int = 0):
        self.driver, self.index = load(), index
        self.lib = self.driver.lib
        self.context = self.driver.primary(index)
        self._null = Stream(self, 0)
        self.lib.standin_set_seed(seed)
        self.use(self._null)
        self.reset()

    @property
    def id(self) -> int:
        return self.index

    def call(self, name: str, *args) -> None:
        self.driver.call(self.context, name, *args)

    def try_call(self, name: str, *args) -> int:
        return self.driver.try_call(self.context, name, *args)

    def made(self, name: str, *args) -> int:
        return self.driver.made(self.context, name, *args)

    def ready(self, name: str, handle: int) -> bool:
        code = self.try_call(name, handle)
        if code not in (0, 600):
            raise DriverError(name, code)
        return not code

    @property
    def current(self) -> Stream:
        return _currents().get(self.index, self._null)

    def use(self, stream: Stream) -> None:
        """Make a stream the calling thread's current one."""
        _currents()[self.index] = stream

    def reset(self) -> None:
        """Restart all counts at zero."""
        self._launches, self._counts = self.driver.listed(self.index), self.driver.listed()
        self._copies = [self.lib.standin_copies(self.index, k) for k in range(5)]

    @property
    def launches(self) -> Counter[str]:
        return self.driver.listed(self.index) - self._launches

    @property
    def counts(self) -> Counter[str]:
        return self.driver.listed() - self._counts

    @property
    def copies(self) -> int:
        return self.lib.standin_copies(self.index, 0) - self._copies[0]

    @property
    def pageable(self) -> int:
        return self.lib.standin_copies(self.index, 1) - self._copies[1]

    @property
    def nbytes(self) -> tuple[int, ...]:
        return tuple(self.lib.standin_copies(self.index, k) - self._copies[k] for k in (2, 3, 4))

    def allocate(self, shape, dtype, kind=Array) -> Array:
        dtype = np.dtype(dtype)
        shape = tuple(np.atleast_1d(shape).tolist()) if shape != () else ()
        memory = Memory(self, int(np.prod(shape)) * dtype.itemsize)
        return kind(self, layout_at(memory.ptr, shape, dtype), memory)

    def empty(self, nbytes: int) -> Array:
        """An array of so many bytes, with undefined contents."""
        return self.allocate(nbytes, np.uint8)

    def array(self, values, kind=Array) -> Array:
        """A copy of a NumPy array, made at once."""
        values = np.asarray(values)
        result = self.allocate(values.shape, values.dtype, kind)
        result.layout[...] = values
        return result

    def fill_later(self, array: Array, values) -> None:
        """Fill an array asynchronously in the current stream."""
        source = self.array(np.asarray(values).reshape(-1).view(np.uint8))
        _kept.append(source)
        self.call("cuMemcpyDtoDAsync_v2", array.address, source.address, source.nbytes, self.current.ptr)

    def synchronize(self) -> None:
        """Wait for all streams."""
        self.lib.standin_drain(self.index, 1)

    def drain(self) -> None:
        """Run all operations, except those behind held ones."""
        self.lib.standin_drain(self.index, 0)

    def sound(self) -> bool:
        """True if, on all devices, no operation is left, none failed, and none wrote out of bounds.

        Errors are printed to stderr, and then forgotten.
        """
        sound = bool(self.lib.standin_sound())
        for error in _failures:
            traceback.print_exception(error)
        sound = sound and not _failures
        _failures.clear()
        if not self.lib.standin_live(2):
            _kept.clear()
        return sound


def _currents() -> dict[int, Stream]:
    if not hasattr(_state, "currents"):
        _state.currents = {}
    return _state.currents


def layout_at(address: int, shape, dtype: np.dtype, strides=None) -> np.ndarray:
    if not address:
        return np.empty(shape, dtype)
    span = dtype.itemsize * int(np.prod(shape))
    if strides is not None:
        span = dtype.itemsize + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_uint8 * span).from_address(address)
    return np.ndarray(shape, dtype, memory, strides=strides)


# The parts of CuPy that tests and compcoll use.


def current_index() -> int:
    index = ctypes.c_int()
    code = load().try_call(None, "cuCtxGetDevice", ctypes.byref(index))
    if code not in (0, 201):
        raise DriverError("cuCtxGetDevice", code)
    return index.value


@cache
def device_of(index: int) -> Device:
    device = Device.__new__(Device)  # keeps counts, the seed and the current stream
    device.driver, device.index = load(), index
    device.lib, device.context = load().lib, load().primary(index)
    device._null = Stream(device, 0)
    return device

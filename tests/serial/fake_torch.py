"""The part of torch.cuda that the backend uses, on the stand-in driver (standin.py).

Tensors are torch's CPU tensors in memory of the driver's devices. An operation of torch on one runs at once,
unless the backend launches it: then it runs as a host function in a stream.
"""

import ctypes
import weakref
from collections import defaultdict, deque
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import ClassVar
from unittest import mock

import numpy as np
import standin
import torch

from compcoll.torch import gpu


def _device(device=None) -> standin.Device:
    """The device for an argument as torch takes it: None for the first, a number, or a `torch.device`."""
    if isinstance(device, standin.Device):
        return device
    return standin.device_of(getattr(device, "index", device) or 0)


class Event(standin.Event):
    def __init__(self, enable_timing=False):
        super().__init__(None, _device())
        self.cuda_event = self.ptr

    def query(self):
        return self.done


class Stream(standin.Stream):
    """A stream that is reused once it is idle, since destroying one would wait for it."""

    _idle: ClassVar = defaultdict(deque)  # handles by device

    def __init__(self, device=None, ptr=None):
        own, self._returns = _device(device), ptr is None
        if ptr is None and self._idle[own.index] and own.ready("cuStreamQuery", self._idle[own.index][0]):
            ptr = self._idle[own.index].popleft()
        super().__init__(own, ptr)
        self._owned, self.cuda_stream = False, self.ptr

    def record_event(self):
        event = Event.__new__(Event)
        standin.Event.__init__(event, self)
        event.cuda_event = event.ptr
        return event

    def wait_event(self, event):
        self.wait(event)

    def __del__(self):
        if getattr(self, "ptr", 0) and self._returns:
            self._idle[self.device.index].append(self.ptr)


def current_stream(device=None) -> Stream:
    """The calling thread's current stream."""
    stream = _device(device).current
    return stream if isinstance(stream, Stream) else Stream(stream.device, stream.ptr)


class Pool:
    """Memory pool like torch's caching allocator: the next tensor of a stream gets freed memory at once.

    Reused memory is overwritten. Other streams that use it have to be recorded.
    """

    def __init__(self, device: standin.Device):
        self._device = device
        self._idle: defaultdict = defaultdict(deque)  # by stream and size
        self._used: deque = deque()  # memory that other streams may still use

    def take(self, nbytes: int) -> "Block":
        for _ in range(len(self._used)):
            events, key, memory = self._used.popleft()
            if all(event.done for event in events):
                self._idle[key].append(memory)
            else:
                self._used.append((events, key, memory))
        stream = self._device.current
        key = stream.ptr, nbytes
        if not self._idle[key]:
            return Block(self, key, standin.Memory(self._device, nbytes))
        memory = self._idle[key].pop()
        self._device.call("cuMemsetD8Async", memory.ptr, 0x5A, nbytes, stream.ptr)
        return Block(self, key, memory)

    def put(self, key, memory, streams) -> None:
        if streams:
            self._used.append(([stream.event() for stream in streams], key, memory))
        else:
            self._idle[key].append(memory)


class Block:
    """Memory of one tensor and its views."""

    def __init__(self, pool, key, memory):
        self._pool, self._key, self._memory, self.streams = pool, key, memory, {}
        self.address = memory.ptr
        data = memory.ptr, False
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (memory.nbytes,), "data": data}

    def __del__(self):
        self._pool.put(self._key, self._memory, self.streams.values())


#: Blocks by address.
_blocks: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _block(tensor) -> Block | None:
    if tensor.layout != torch.strided:
        return None
    return _blocks.get(tensor.untyped_storage().data_ptr())


def record_stream(tensor, stream) -> None:
    """Delay the reuse of a tensor's memory until a stream has finished with it, too."""
    if (block := _block(tensor)) is not None and stream.ptr != block._key[0]:
        block.streams[stream.ptr] = stream


def _borrowed(value):
    """A view of a tensor's memory that does not keep it alive; other values unchanged."""
    if not isinstance(value, torch.Tensor) or (block := _block(value)) is None:
        return value
    memory = (ctypes.c_uint8 * value.untyped_storage().nbytes()).from_address(block.address)
    whole = torch.frombuffer(memory, dtype=torch.uint8).view(value.dtype)
    same = whole.as_strided(value.shape, value.stride(), value.storage_offset())
    same = same.conj() if value.is_conj() else same
    return torch._neg_view(same) if value.is_neg() else same


def put(stream, run) -> None:
    """Append an operation of torch to a stream, without keeping the operation's tensors alive."""
    cells = tuple(CellType(_borrowed(cell.cell_contents)) for cell in run.__closure__ or ())
    borrowing = FunctionType(run.__code__, run.__globals__, closure=cells)

    def later():
        with torch.inference_mode():
            borrowing()

    stream.call(later)


class Gpu(gpu.Gpu):
    """The backend's `Gpu`, except where that needs real GPU memory.

    Attributes
    ----------
    device : standin.Device
    """

    def __init__(self, index=0):
        super().__init__(index)
        self.device = standin.device_of(index)
        self._pool = Pool(self.device)

    def of(self, tensor):
        """Replacement of `compcoll.torch.gpu.of`."""
        block = _block(tensor)
        return gpu.HOST if block is None or block._pool is not self._pool else self

    def empty(self, n, dtype):
        nbytes = n * torch.empty((), dtype=dtype).element_size()
        block = self._pool.take(max(nbytes, 16))
        _blocks[block.address] = block
        return torch.from_numpy(np.asarray(block)).view(dtype)[:n]

    def do(self, run):
        put(current_stream(self.place), run)

    def do_after(self, run):
        stream = Stream(self.device)
        put(stream, run)
        stream.synchronize()

    def tensor(self, values):
        """A copy of a tensor, filled asynchronously in the caller's current stream."""
        result, copied = self.empty(values.numel(), values.dtype), values.detach().clone().reshape(-1)
        self.do(lambda: result.copy_(copied))
        return result.view(values.shape)


def _names(mine):
    return {
        (torch.cuda, "Stream"): Stream,
        (torch.cuda, "Event"): Event,
        (torch.cuda, "stream"): lambda stream: stream,
        (torch.cuda, "current_stream"): current_stream,
        (torch.cuda, "synchronize"): lambda device=None: _device(device).synchronize(),
        (torch.Tensor, "record_stream"): record_stream,
        (gpu, "of"): mine.of,
    }


@contextmanager
def installed(mine):
    """Treat tensors in memory of a `Gpu` as tensors of a GPU."""
    patches = [mock.patch.object(*where, what) for where, what in _names(mine).items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


_installed: list = []


def install():
    """Like `installed`, for the rest of the process, and with synchronous streams."""
    standin.load().lib.standin_eager(1)
    _installed.append(mine := Gpu())
    _installed.append(installed(mine))
    _installed[-1].__enter__()


def tensor(values):
    """A copy of a tensor, in memory of the GPU of `install`."""
    return _installed[0].tensor(values)

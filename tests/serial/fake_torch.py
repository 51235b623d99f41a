"""What the backend uses of torch.cuda, over the tests' CuPy: its names and signatures.

Everything happens at once.
"""

import weakref
from contextlib import contextmanager

import fake_cupy
import torch

from compcoll.devices.cuda import Device
from compcoll.torch import gpu


class Event:
    def __init__(self, enable_timing=False):
        self._event = fake_cupy.Event()
        self.cuda_event = self._event.ptr

    def record(self, stream=None):
        handle = (stream or _current[-1]).cuda_stream
        fake_cupy._event_record(self.cuda_event, handle)

    def query(self):
        assert self._event.recorded
        return True

    def synchronize(self):
        assert self._event.recorded

    def elapsed_time(self, other):
        return 1.0


class Stream:
    handles = 0

    def __init__(self, device=None):
        Stream.handles += 1
        self.device, self.cuda_stream = torch.device("cuda", 0), Stream.handles

    def record_event(self):
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event):
        assert event.query()

    def wait_stream(self, stream):
        assert isinstance(stream, Stream)

    def synchronize(self):
        pass


_current: list = []


@contextmanager
def _stream(stream):
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


class Gpu(gpu.Gpu):
    """The backend's own, but for what needs memory of a GPU."""

    def empty(self, n, dtype):
        return tensor(torch.empty(n, dtype=dtype))

    def to_host(self, values):
        return values.clone()


_memory: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def tensor(values):
    """A copy of a tensor, in what passes for memory of a GPU."""
    result = values.clone()
    _memory[result.untyped_storage().data_ptr()] = result
    return result


def install():
    """For the rest of the process."""
    _current.append(Stream())
    mine = Gpu(Device.of(0))
    torch.cuda.Stream, torch.cuda.Event, torch.cuda.stream = Stream, Event, _stream
    torch.cuda.current_stream = lambda device=None: _current[-1]
    torch.cuda.synchronize = lambda device=None: None
    torch.Tensor.record_stream = lambda self, stream: None
    gpu.of = lambda one: mine if one.untyped_storage().data_ptr() in _memory else None

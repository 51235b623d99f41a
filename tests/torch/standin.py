"""A GPU for the backend where there is none: tensors of the host in memory of the tests' device.

Nothing happens on it before somebody asks whether it is done (tests/serial/executor.py), what torch does on
it neither: so an order that is not kept shows in the values.
"""

import sys
import weakref
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1] / "serial"))
from executor import Device, Owned, Stream


class Memory:
    """What a tensor keeps of a device's memory."""

    def __init__(self, owned):
        self.owned, self.__array_interface__ = owned, owned.data.__array_interface__


class StreamEvent:
    """`compcoll.torch.gpu.StreamEvent`, and an event as the device's queues take it."""

    def __init__(self, device, stream):
        self.device, self.stream, self.event = device, stream, stream.event()

    @property
    def fired(self):
        return self.event.fired

    @property
    def done(self):
        return self.event.done

    def wait(self):
        self.device.current.wait(self.event)

    def stream_context(self):
        self.event.synchronize()  # a future of the host's tensors has no streams
        return torch.inference_mode(False)


class SideStream:
    """`compcoll.torch.gpu.SideStream`."""

    def __init__(self, device, events):
        self.device, self.stream = device, Stream(device)
        for event in events:
            self.stream.wait(event)

    def do(self, run, *tensors):
        put(self.stream, run)

    def record(self):
        return StreamEvent(self.device, self.stream)


def put(stream, run):
    def later():
        with torch.inference_mode():
            run()

    stream.do(later)


class Gpu:
    """`compcoll.torch.gpu.Gpu`.

    Attributes
    ----------
    copies : int
        Tensors that were copied to the host.
    """

    def __init__(self, library, seed):
        self.device, self.copies = Device(library, seed), 0
        self._memory = weakref.WeakValueDictionary()

    def of(self, tensor):
        """What takes the place of `compcoll.torch.gpu.of`."""
        if tensor.layout != torch.strided:
            return None
        return self if tensor.untyped_storage().data_ptr() in self._memory else None

    def empty(self, n, dtype):
        nbytes = n * torch.empty((), dtype=dtype).element_size()
        owned = Owned(self.device, max(nbytes, 16))
        self._memory[owned.address] = owned
        return torch.from_numpy(np.asarray(Memory(owned))).view(dtype)[:n]

    def do(self, run):
        put(self.device.current, run)

    def mark(self):
        return self.device.mark()

    def to_host(self, values):
        self.copies += 1
        self.synchronize()
        return values.clone()

    def side_stream(self, events):
        return SideStream(self.device, events)

    # -- the tests' side

    def tensor(self, values):
        """A copy of a tensor, which gets its values later, in the caller's stream."""
        result = self.empty(values.numel(), values.dtype)
        given = values.detach().clone().reshape(-1)
        self.do(lambda: result.copy_(given))
        return result.view(values.shape)

    def other_stream(self):
        """Make another stream the caller's; the one that it was."""
        before, self.device.current = self.device.current, Stream(self.device)
        return before

    def drain(self):
        """Run all that can run: later operations come after it, and ask other devices alone."""
        with self.device.lock:
            while any(stream.runnable() for stream in self.device.streams):
                self.device.advance()

    def synchronize(self):
        """Wait for the caller's stream, and for nothing else."""
        with self.device.lock:
            while self.device.current.operations:
                self.device.current.step()

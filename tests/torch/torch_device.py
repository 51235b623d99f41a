"""A GPU for the backend: this machine's, or host tensors in memory of the stand-in's driver.

The latter runs a stream's work, torch's included, only when the stream is queried or waited for
(tests/serial/standin.py). A wrong order therefore shows in the values.
"""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "serial"))
import fake_torch
import standin
import torch

from compcoll.engine import _engine
from compcoll.torch import groups

#: Cycles of a GPU's clock, some 200 ms.
CYCLES = 400_000_000


class Gpu(fake_torch.Gpu):
    """`compcoll.torch.gpu.Gpu` whose streams tests can see."""

    def __init__(self, index, seed):
        super().__init__(index)
        self.device = standin.Device(index, seed)
        self._others = [fake_torch.Stream(self.device) for _ in range(4)]

    def other_stream(self):
        """Make another stream the caller's; returns the one before."""
        before = self.device.current
        self.device.use(fake_torch.Stream(self.device))
        return before

    @property
    def launched(self):
        """True if a kernel was launched; None if that is not known."""
        return bool(self.device.launches)

    def drain(self):
        """Wait for all streams."""
        self.device.synchronize()

    def synchronize(self):
        """Wait for the caller's stream alone."""
        self.device.current.synchronize()

    def copy_later(self, tensor):
        """A tensor's values on the host, valid once the caller's stream has reached this copy."""
        into = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.do(lambda: into.copy_(tensor))
        return into

    def delay(self):
        """Give other streams slow work, before or after the work that the library started."""
        for stream in self._others:
            stream.call(lambda: time.sleep(0.01))

    def finish(self):
        """Complete all work, including work that is started meanwhile, as after an error."""
        flush()
        end = time.monotonic() + 30
        while time.monotonic() < end and _engine._in_flight:
            time.sleep(1e-3)
        for index in range(
            int(os.environ["COMPCOLL_STANDIN_DEVICES"])
        ):  # marks of calls that failed on one may wait on others
            self.device.lib.standin_drain(index, 1)


class RealGpu:
    """GPU of this machine, with the methods that tests use; ``device`` is the GPU itself."""

    launched = None

    def __init__(self, index):
        self.place, self.device = torch.device("cuda", index), self
        torch.cuda.set_device(self.place)
        self._others = [torch.cuda.Stream() for _ in range(4)]

    @property
    def current(self):
        """The caller's stream."""
        return RealStream(torch.cuda.current_stream())

    def use(self, stream):
        """Make a stream the caller's."""
        torch.cuda.set_stream(stream.stream)

    def other_stream(self):
        before = self.current
        torch.cuda.set_stream(torch.cuda.Stream())
        return before

    def tensor(self, values):
        return values.detach().to(self.place)

    def copy_later(self, tensor):
        into = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return into.copy_(tensor, non_blocking=True)

    def synchronize(self):
        torch.cuda.current_stream().synchronize()

    def drain(self):
        torch.cuda.synchronize()

    def delay(self):
        for stream in self._others:
            RealStream(stream).hold(CYCLES // 20)

    def finish(self):
        flush()
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.default_stream())


class RealStream:
    """Stream of torch that can be held: it is busy with a kernel that waits."""

    def __init__(self, stream):
        self.stream = stream

    def hold(self, cycles=CYCLES):
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(cycles)

    def release(self):
        self.stream.synchronize()

    @property
    def done(self):
        return self.stream.query()


def flush():
    """Make all groups complete what they have started."""
    for group in groups.all_groups():
        group.flush()

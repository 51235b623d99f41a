"""A GPU for the backend where there is none: tensors of the host in memory of the tests' driver.

Nothing happens on it before somebody asks whether it is done (tests/serial/standin.py), what torch does on
it neither: so an order that is not kept shows in the values.
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
from compcoll.torch import peers


class Gpu(fake_torch.Gpu):
    """`compcoll.torch.gpu.Gpu`, of which tests see the streams."""

    def __init__(self, index, seed):
        super().__init__(index)
        self.device = standin.Device(index, seed)
        self._others = [fake_torch.Stream(self.device) for _ in range(4)]

    def other_stream(self):
        """Make another stream the caller's; the one that it was."""
        before = self.device.current
        self.device.use(fake_torch.Stream(self.device))
        return before

    def drain(self):
        """Wait for all streams."""
        self.device.synchronize()

    def synchronize(self):
        """Wait for the caller's stream, and for nothing else."""
        self.device.current.synchronize()

    def copy_later(self, tensor):
        """A tensor's values on the host, once the caller's stream comes to this."""
        into = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.do(lambda: into.copy_(tensor))
        return into

    def delay(self):
        """Have other streams do something that takes its time, before or after what the library started."""
        for stream in self._others:
            stream.call(lambda: time.sleep(0.01))

    def finish(self):
        """Run all that is left, and all that is started meanwhile, as after an error."""
        for group in peers.cores():
            group.flush()
        end = time.monotonic() + 30
        while time.monotonic() < end and _engine._started:
            time.sleep(1e-3)
        for index in range(
            int(os.environ["COMPCOLL_STANDIN_DEVICES"])
        ):  # marks of calls that failed on one may wait on others
            self.device.lib.standin_drain(index, 1)

"""Several frames on a device in one go: their blocks, and the memory that tells kernels what to do with each.

It knows addresses, not arrays, so that the same code runs on a GPU (cuda.py) and, in tests, on the CPU's
executor of the same kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from compcoll.core import dtypes
from compcoll.devices import kernels
from compcoll.devices.kernels import JOB, RESULT, Kernel

__all__ = ["Batch", "Block", "Control", "Launcher"]


@dataclass(frozen=True)
class Block:
    """A contiguous array on a device."""

    address: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.reals * dtypes.real_dtype(self.dtype).itemsize

    @property
    def reals(self) -> int:
        """Real numbers: two for a complex one."""
        return math.prod(self.shape) * (2 if self.dtype.kind == "c" else 1)


class Control(Protocol):
    """A batch's results and jobs, in host memory and, after `Launcher.upload`, on the device."""

    host: np.ndarray
    address: int


class Launcher(Protocol):
    """A device, as far as a batch needs it. Everything happens in the order of the calls."""

    #: Blocks of threads of one launch that suffice to keep the device busy.
    max_grid: int

    def control(self, nbytes: int) -> Control:
        """Memory of a batch, zeroed on the host's side."""

    def upload(self, control: Control) -> None:
        """Copy the host's side to the device."""

    def scratch(self, nbytes: int) -> int:
        """Address of memory that is kept until all is done."""

    def zero(self, address: int, nbytes: int) -> None:
        """Zero memory of the device."""

    def download(self, control: Control, nbytes: int) -> None:
        """Start to copy the first bytes back."""

    def launch(self, kernel: Kernel, grid: tuple[int, int], jobs: int) -> None:
        """Start a kernel on the job array at this device address."""


class Batch:
    """Results and jobs of ``n`` frames in one piece of memory, so that one copy brings them over."""

    def __init__(self, device: Launcher, n: int):
        self.device, self.n = device, n
        self._first_job = n * RESULT.itemsize
        self.memory = device.control(self._first_job + n * JOB.itemsize)
        self.results = self.memory.host[: self._first_job].view(RESULT)
        self.jobs = self.memory.host[self._first_job :].view(JOB)
        self.jobs["result"] = np.arange(n, dtype=np.uint64) * RESULT.itemsize + self.memory.address

    @property
    def headers(self) -> np.ndarray:
        """A row of 80 bytes for each frame: its header, as far as it is known before."""
        return self.results["header"]

    @property
    def carried(self) -> np.ndarray:
        """The errors in these headers, float64."""
        return self.headers[:, 64:72].view("<f8")[:, 0]

    def job_address(self, i: int) -> int:
        return self.memory.address + self._first_job + i * JOB.itemsize

    def add_scratch(self, codec: str, words: int = 1) -> None:
        """Give each job the zeroed memory that its kernels need besides: `kernels.scratch_nbytes`."""
        if not kernels.scratch_nbytes(codec, 0):
            return
        sizes = [kernels.scratch_nbytes(codec, n, words) for n in self.jobs["n"].tolist()]
        address = self.device.scratch(sum(sizes))
        self.device.zero(address, sum(sizes))
        self.jobs["scratch"] = np.cumsum([address, *sizes[:-1]], dtype=np.uint64)

    def launch(self, kernel: Kernel, size: str = "n") -> None:
        """Start a kernel on all of the batch's jobs, of which a field says how large they are."""
        grid = kernel.grid(int(self.jobs[size].max()), max(self.device.max_grid // self.n, 1))
        for i in range(0, self.n, kernels.MAX_JOBS):
            self.device.launch(kernel, (grid, min(self.n - i, kernels.MAX_JOBS)), self.job_address(i))

    def finish(self) -> None:
        """Start to fetch the results."""
        self.device.download(self.memory, self._first_job)

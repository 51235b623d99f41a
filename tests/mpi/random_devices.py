"""GPU memory in random programs, on some of the ranks: of the stand-in, with late streams, or of CuPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import compcoll.devices.cuda
from compcoll.policy import choices

__all__ = ["Devices", "Gpus"]


class _Memory:
    """GPU memory of CuPy; ``layout`` is a NumPy array at its addresses, which the host cannot read."""

    def __init__(self, device: Any, size: int, dtype: np.dtype):
        self.device, self._values = device, device.cupy.empty(size * dtype.itemsize, np.uint8)
        address = self._values.__cuda_array_interface__["data"][0]
        self.layout = np.ndarray(size, dtype, (ctypes.c_uint8 * self._values.nbytes).from_address(address))

    def read(self) -> np.ndarray:
        """Copy by a stream that waits for no other: a call's results must be complete when it returns."""
        with self.device.aside:
            return self._values.get().view(self.layout.dtype)

    def write(self, values: np.ndarray) -> None:
        """Write ``values`` in the current stream."""
        self._values.set(values.view(np.uint8))


class _Gpu:
    """A rank's GPU of CuPy, with the methods of `standin.Device` that random programs use."""

    def __init__(self, rank: int):
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
        self.aside = cupy.cuda.Stream(non_blocking=True)

    def use(self, own: bool) -> None:
        """Make a new stream, or the null stream, the current one."""
        self.cupy.cuda.Stream(null=not own, non_blocking=own).use()

    def allocate(self, size: int, dtype: np.dtype) -> _Memory:
        return _Memory(self, size, dtype)

    def fill_later(self, memory: _Memory, values: np.ndarray) -> None:
        memory.write(values)

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()


class Devices:
    """Two GPUs, in whose memory some of a program's buffers lie; `standin.installed` must be entered.

    Parameters
    ----------
    rank : int
    """

    def __init__(self, rank: int):
        self._rank, self._kept = rank, []
        self._devices = self._found()
        self._share, self._rng = 0.0, np.random.default_rng()
        self._before = compcoll.devices.cuda.is_usable, choices.PLAIN_NBYTES

    def _found(self) -> list[Any]:
        import standin

        self._standin = standin
        return [standin.Device(i) for i in range(2)]

    def _order(self) -> None:
        """Draw another order for the work of streams, and another current stream for each device."""
        self._devices[0].lib.standin_set_seed(int(self._rng.integers(1 << 31)))
        for device in self._devices:
            own = self._rng.random() < 0.5
            device.use(self._standin.Stream(device) if own else self._standin.Stream(device, 0))

    def begin(self, seed: list[int], size: int) -> None:
        """Begin a program: draw whether one rank, some or all have GPU memory, and in which stream."""
        rng = np.random.default_rng([*seed, 77])
        chosen = rng.random(size) < (0.5, 0.8, 1)[rng.integers(3)]
        if rng.random() < 0.4:
            chosen = np.arange(size) == rng.integers(size)
        share = (0.3, 0.7, 1)[rng.integers(3)]
        # In every other program, all ranks are known to have GPUs, and the engine then handles uncompressed
        # calls with GPU memory. In every second one of these, all buffers are in GPU memory.
        if rng.integers(2):
            compcoll.devices.cuda.is_usable = lambda: True
            if rng.integers(2):
                chosen[:], share = True, 1
        choices.PLAIN_NBYTES = (1, 1000, 1 << 16)[rng.integers(3)]
        self._share = share * chosen[self._rank]
        self._rng = np.random.default_rng([*seed, 77, self._rank])
        self._order()

    def allocate(self, size: int, dtype: np.dtype) -> Any:
        """Array in GPU memory, or None if the buffer is to be in host memory."""
        if not size or self._rng.random() >= self._share:
            return None
        # The second GPU is used less often.
        other = self._rng.random() < 0.2 and len(self._devices) > 1
        self._kept.append(self._devices[other].allocate(size, dtype))
        return self._kept[-1]

    def end(self) -> str:
        """End a program; returns what is wrong with the GPUs, or an empty string."""
        compcoll.devices.cuda.is_usable, choices.PLAIN_NBYTES = self._before
        for device in self._devices:
            device.synchronize()
        sound = [device.sound() for device in self._devices]
        self._kept.clear()
        return "" if all(sound) else f"rank {self._rank}: a GPU is not sound, see the standard error output"

    def __str__(self) -> str:
        copies = sum(device.copies for device in self._devices)
        launches = sum(sum(device.launches.values()) for device in self._devices)
        return f"on rank {self._rank} {copies} copies between host and GPUs, {launches} launches of kernels"


class Gpus(Devices):
    """Like `Devices`, but on the GPU that CuPy finds for the rank."""

    def _found(self) -> list[Any]:
        return [_Gpu(self._rank)]

    def _order(self) -> None:
        self._devices[0].use(self._rng.random() < 0.5)

    def end(self) -> str:
        compcoll.devices.cuda.is_usable, choices.PLAIN_NBYTES = self._before
        self._devices[0].synchronize()
        self._kept.clear()
        return ""

    def __str__(self) -> str:
        return f"on rank {self._rank} GPU {self._devices[0].cupy.cuda.Device().id}"

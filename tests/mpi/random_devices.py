"""Memory of GPUs in random programs, on some of the ranks: the stand-in's, with late streams, or CuPy's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import compcoll.devices.cuda
from compcoll.policy import choices

__all__ = ["Devices", "Gpus"]


class _Memory:
    """Memory of a GPU of CuPy's; ``layout`` is a NumPy array at its addresses, which the host cannot read."""

    def __init__(self, device: Any, size: int, dtype: np.dtype):
        self.device, self._values = device, device.cupy.empty(size * dtype.itemsize, np.uint8)
        address = self._values.__cuda_array_interface__["data"][0]
        self.layout = np.ndarray(size, dtype, (ctypes.c_uint8 * self._values.nbytes).from_address(address))

    def read(self) -> np.ndarray:
        """A copy by a stream that waits for no other: what a call has left, it has left when it ends."""
        with self.device.aside:
            return self._values.get().view(self.layout.dtype)

    def write(self, values: np.ndarray) -> None:
        """Give it its values in the current stream."""
        self._values.set(values.view(np.uint8))


class _Gpu:
    """A rank's GPU of CuPy's, as `standin.Device` as far as random programs know it."""

    def __init__(self, rank: int):
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
        self.aside = cupy.cuda.Stream(non_blocking=True)

    def use(self, own: bool) -> None:
        """Make another stream the caller's, or the null stream."""
        self.cupy.cuda.Stream(null=not own, non_blocking=own).use()

    def allocate(self, size: int, dtype: np.dtype) -> _Memory:
        return _Memory(self, size, dtype)

    def fill_later(self, memory: _Memory, values: np.ndarray) -> None:
        memory.write(values)

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()


class Devices:
    """Two GPUs, on which some of a program's buffers lie; `standin.installed` has to be entered.

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
        """Another order of what streams do, and of each device another stream."""
        self._devices[0].lib.standin_set_seed(int(self._rng.integers(1 << 31)))
        for device in self._devices:
            own = self._rng.random() < 0.5
            device.use(self._standin.Stream(device) if own else self._standin.Stream(device, 0))

    def begin(self, seed: list[int], size: int) -> None:
        """A program begins: one rank, some or all have memory of GPUs, in the null stream or another one."""
        rng = np.random.default_rng([*seed, 77])
        chosen = rng.random(size) < (0.5, 0.8, 1)[rng.integers(3)]
        if rng.random() < 0.4:
            chosen = np.arange(size) == rng.integers(size)
        share = (0.3, 0.7, 1)[rng.integers(3)]
        # In every other program all ranks are known to have GPUs, where the engine has uncompressed calls of
        # their memory: that of all buffers in every second one of these.
        if rng.integers(2):
            compcoll.devices.cuda.is_usable = lambda: True
            if rng.integers(2):
                chosen[:], share = True, 1
        choices.PLAIN_NBYTES = (1, 1000, 1 << 16)[rng.integers(3)]
        self._share = share * chosen[self._rank]
        self._rng = np.random.default_rng([*seed, 77, self._rank])
        self._order()

    def allocate(self, size: int, dtype: np.dtype) -> Any:
        """An array of a GPU, or None where the buffer is to be the host's."""
        if not size or self._rng.random() >= self._share:
            return None
        # The other GPU is less usual.
        other = self._rng.random() < 0.2 and len(self._devices) > 1
        self._kept.append(self._devices[other].allocate(size, dtype))
        return self._kept[-1]

    def end(self) -> str:
        """What is wrong with the GPUs when a program has ended, or nothing."""
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
    """Buffers on the GPU that CuPy finds for the rank."""

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

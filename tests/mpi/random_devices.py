"""Memory of GPUs in random programs: of the stand-in, whose streams are late, on some of the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import standin

__all__ = ["Devices"]


class Devices:
    """Two GPUs, on which some of a program's buffers lie; `standin.installed` has to be entered.

    Parameters
    ----------
    rank : int
    """

    def __init__(self, rank: int):
        self._rank, self._kept = rank, []
        self._devices = [standin.Device(i) for i in range(2)]
        self._share, self._rng = 0.0, np.random.default_rng()

    def begin(self, seed: list[int], size: int) -> None:
        """A program begins: one rank, some or all have memory of GPUs, in the null stream or another one."""
        rng = np.random.default_rng([*seed, 77])
        chosen = rng.random(size) < (0.5, 0.8, 1)[rng.integers(3)]
        if rng.random() < 0.4:
            chosen = np.arange(size) == rng.integers(size)
        self._share = (0.3, 0.7, 1)[rng.integers(3)] * chosen[self._rank]
        self._rng = np.random.default_rng([*seed, 77, self._rank])
        self._devices[0].lib.standin_set_seed(int(self._rng.integers(1 << 31)))
        for device in self._devices:
            device.use(standin.Stream(device) if self._rng.random() < 0.5 else standin.Stream(device, 0))

    def allocate(self, size: int, dtype: np.dtype) -> Any:
        """An array of a GPU, or None where the buffer is to be the host's."""
        if not size or self._rng.random() >= self._share:
            return None
        # The other GPU is less usual.
        self._kept.append(self._devices[self._rng.random() < 0.2].allocate(size, dtype))
        return self._kept[-1]

    def end(self) -> str:
        """What is wrong with the GPUs when a program has ended, or nothing."""
        for device in self._devices:
            device.synchronize()
        sound = [device.sound() for device in self._devices]
        self._kept.clear()
        return "" if all(sound) else f"rank {self._rank}: a GPU is not sound, see the standard error output"

    def __str__(self) -> str:
        copies = sum(device.copies for device in self._devices)
        launches = sum(sum(device.launches.values()) for device in self._devices)
        return f"on rank {self._rank} {copies} copies between host and GPUs, {launches} launches of kernels"

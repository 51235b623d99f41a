"""Arrays on a device as collectives see them: one dimension, an address, a dtype, and nothing to compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.core import dtypes

__all__ = ["DeviceArray"]


class DeviceArray:
    """Contiguous memory of a device.

    Attributes
    ----------
    device : Device
        `compcoll.devices.cuda.Device`, or what stands for it in tests.
    address : int
    dtype : numpy.dtype
    size : int
    """

    __slots__ = ("address", "device", "dtype", "owner", "size")

    def __init__(self, device: Any, address: int, dtype, size: int, owner: Any):
        self.device, self.address, self.size = device, address, size
        self.dtype = np.dtype(dtype)
        self.owner = owner  # keeps the memory

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def is_aligned(self) -> bool:
        """Whether kernels can read and write the real numbers where they lie."""
        return self.address % dtypes.real_dtype(self.dtype).itemsize == 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> DeviceArray:
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError(f"a step of {step} leaves no contiguous array")
        address = self.address + start * self.itemsize
        return DeviceArray(self.device, address, self.dtype, max(stop - start, 0), self.owner)

    def view(self, dtype) -> DeviceArray:
        dtype = np.dtype(dtype)
        size, rest = divmod(self.nbytes, dtype.itemsize)
        if rest:
            raise ValueError(f"{self.nbytes} bytes are no whole number of {dtype}")
        return DeviceArray(self.device, self.address, dtype, size, self.owner)

    def copy(self) -> DeviceArray:
        """A copy, complete when this returns."""
        result = self.device.empty(self.nbytes).view(self.dtype)
        with self.device.queue() as queue:
            queue.copy(result.address, self.address, self.nbytes)
            queue.wait()
        return result

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        result = self.device.host(self.nbytes)
        with self.device.queue() as queue:
            queue.to_host(result, self.address)
            queue.wait()
        values = result.view(self.dtype)
        return values if dtype is None else values.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict:
        typestr = self.dtype.str if self.dtype.kind in "biufc" else f"|V{self.itemsize}"
        return {"shape": (self.size,), "typestr": typestr, "data": (self.address, False), "version": 3}

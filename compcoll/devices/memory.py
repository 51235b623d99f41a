"""Arrays on a GPU as collectives see them: one dimension, an address, a dtype, and nothing to compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.core import _gpu, dtypes

__all__ = ["DeviceArray"]


class DeviceArray:
    """Contiguous memory of a GPU.

    Attributes
    ----------
    gpu : int
        Its number.
    address : int
    dtype : numpy.dtype
    size : int
    """

    __slots__ = ("address", "dtype", "gpu", "owner", "size")

    def __init__(self, gpu: int, address: int, dtype, size: int, owner: Any):
        self.gpu, self.address, self.size = gpu, address, size
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
        return DeviceArray(self.gpu, address, self.dtype, max(stop - start, 0), self.owner)

    def view(self, dtype) -> DeviceArray:
        dtype = np.dtype(dtype)
        size, rest = divmod(self.nbytes, dtype.itemsize)
        if rest:
            raise ValueError(f"{self.nbytes} bytes are no whole number of {dtype}")
        return DeviceArray(self.gpu, self.address, dtype, size, self.owner)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """A copy, of what the caller's current streams leave there."""
        values = np.empty(self.size, self.dtype)
        if self.nbytes:
            host = values.ctypes.data, _gpu.NO_GPU
            _gpu.Operation(self.gpu).copy(*host, self.address, self.gpu, self.nbytes)
        return values if dtype is None else values.astype(dtype)

    def write(self, values: np.ndarray) -> None:
        """Overwrite it with bytes of the host."""
        if self.nbytes:
            host = values.ctypes.data, _gpu.NO_GPU
            _gpu.Operation(self.gpu).copy(self.address, self.gpu, *host, self.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict:
        typestr = self.dtype.str if self.dtype.kind in "biufc" else f"|V{self.itemsize}"
        return {"shape": (self.size,), "typestr": typestr, "data": (self.address, False), "version": 3}

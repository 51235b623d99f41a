"""Memory of GPUs: an address, a dtype and a size, of arrays of any library."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.core import _gpu, dtypes
from compcoll.devices import arrays

__all__ = ["DeviceArray", "streams_of", "wrap"]


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
            raise ValueError(f"{self.nbytes} bytes are not a whole number of {dtype}")
        return DeviceArray(self.gpu, self.address, dtype, size, self.owner)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """Copy the values to the host, after the work in the caller's current streams."""
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


def wrap(array: Any) -> DeviceArray | None:
    """View the memory of a GPU array, in the order of memory; empty ones lie on no GPU.

    None if it is not contiguous, of a type that frames do not hold, or a view of torch's that is computed
    when it is read.
    """
    if isinstance(array, DeviceArray):
        return array
    if arrays.is_torch(array):
        if not array.is_contiguous() or array.is_conj() or array.is_neg():
            return None
        name = str(array.dtype).removeprefix("torch.")
        dtype: Any = dtypes.BFLOAT16 if name == "bfloat16" else _dtype_or_none(name)
        address, size = array.data_ptr(), array.numel()
    else:
        about = array.__cuda_array_interface__
        size = int(np.prod(about["shape"], dtype=np.int64))
        dtype, address = getattr(array, "dtype", None), about["data"][0] or 0
        if not isinstance(dtype, np.dtype):  # the interface has no name for bfloat16
            dtype = np.dtype(about["typestr"])
        if not _contiguous(about, dtype):
            return None
    if dtype not in dtypes.CODES:
        return None
    gpu = _gpu.gpu_of(address) if size else _gpu.NO_GPU
    return DeviceArray(gpu, address, dtype, size, array)


def streams_of(*things: Any) -> list[int]:
    """List the streams that arrays name, in which their values are made."""
    found = []
    for array in things:
        if not arrays.is_torch(array) and hasattr(array, "__cuda_array_interface__"):
            stream = array.__cuda_array_interface__.get("stream")
            if stream is not None:
                found.append(int(stream))
    return found


def _dtype_or_none(name: str) -> np.dtype | None:
    try:
        return np.dtype(name)
    except TypeError:
        return None


def _contiguous(about: dict, dtype: np.dtype) -> bool:
    strides, expected = about.get("strides"), dtype.itemsize
    if strides is None:
        return True
    for n, stride in zip(reversed(about["shape"]), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True

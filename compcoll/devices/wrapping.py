"""GPU arrays of other libraries as `DeviceArray`."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.core import _gpu, dtypes
from compcoll.devices import arrays
from compcoll.devices.memory import DeviceArray

__all__ = ["streams_of", "wrap"]


def wrap(array: Any) -> DeviceArray | None:
    """A GPU array's memory, in the order of memory; empty ones lie on no GPU.

    None where it is not contiguous, of a type that frames do not hold, or a view of torch's that is computed
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
    """The streams that arrays name, in which their values come."""
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

"""GPU arrays of other libraries as `DeviceArray`."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.core import dtypes
from compcoll.devices import arrays, cuda
from compcoll.devices.memory import DeviceArray

__all__ = ["device_of", "on_device", "wrap"]


def on_device(array: Any) -> DeviceArray | None:
    """A GPU array's memory; None where it has gaps, or nothing here can reach it."""
    if isinstance(array, DeviceArray):
        return array
    return wrap(array) if cuda.available() else None


def device_of(array: Any) -> Any:
    """The device of any GPU array; None where CuPy does not reach it, or the array is empty."""
    if isinstance(array, DeviceArray):
        return array.device
    if not cuda.available():
        return None
    if arrays.is_torch(array):
        return cuda.Device.of(array.device.index)
    import cupy

    address = array.__cuda_array_interface__["data"][0]
    return cuda.Device.of(
        cupy.cuda.runtime.pointerGetAttributes(address).device if address else cupy.cuda.Device().id
    )


def wrap(array: Any) -> DeviceArray | None:
    """A GPU array's memory, in the order of memory.

    None where it is not contiguous, of an unknown type, or a view of torch's that is computed when it is
    read.
    Where the array names the stream that its values come from, the caller's current one comes after that.
    """
    if arrays.is_torch(array):
        if not array.is_contiguous() or array.is_conj() or array.is_neg():
            return None
        name = str(array.dtype).removeprefix("torch.")
        dtype: Any = dtypes.BFLOAT16 if name == "bfloat16" else np.dtype(name)
        address, size, index = array.data_ptr(), array.numel(), array.device.index
    else:
        about = array.__cuda_array_interface__
        size = int(np.prod(about["shape"], dtype=np.int64))
        dtype, address = getattr(array, "dtype", None), about["data"][0]
        if not isinstance(dtype, np.dtype):  # the interface has no name for bfloat16
            dtype = np.dtype(about["typestr"])
        if not _contiguous(about, dtype):
            return None
        import cupy

        index = cupy.cuda.runtime.pointerGetAttributes(address).device if size else 0
        if size and about.get("stream") is not None:
            cuda.Device.of(index).follow(int(about["stream"]))
    if dtype is None:
        return None
    return DeviceArray(cuda.Device.of(index), address, dtype, size, array)


def _contiguous(about: dict, dtype: np.dtype) -> bool:
    strides, expected = about.get("strides"), dtype.itemsize
    if strides is None:
        return True
    for n, stride in zip(reversed(about["shape"]), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True

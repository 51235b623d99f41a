"""NumPy, CuPy and torch arrays seen as one: what crosses the border of the library."""

from __future__ import annotations

import sys

import numpy as np

from compcoll import dtypes
from compcoll.devices.memory import DeviceArray

__all__ = ["host_view", "is_torch", "to_host"]


def is_torch(array) -> bool:
    """Whether this is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_cuda(array) -> bool:
    """Whether the array lives on a GPU."""
    if is_torch(array):  # whose interface is an error for bfloat16
        return array.is_cuda
    return isinstance(array, DeviceArray) or hasattr(array, "__cuda_array_interface__")


def host_view(array) -> np.ndarray:
    """The same memory as a NumPy array, of any strides; TypeError where that cannot be had."""
    if isinstance(array, np.ndarray):
        return array
    if is_torch(array) and array.device.type == "cpu":
        return _torch_view(array.detach())
    if is_cuda(array):
        raise TypeError(f"{type(array).__name__} lies on a GPU, and host memory is needed here")
    return np.asarray(array)


def to_host(array) -> np.ndarray:
    """The values as a C-contiguous NumPy array in host memory, copied only where they have to be."""
    if is_cuda(array):
        array = (
            array.cpu() if is_torch(array) else array.get() if hasattr(array, "get") else np.asarray(array)
        )
    view = host_view(array)
    return view if view.flags.c_contiguous else view.copy()


def _torch_view(tensor) -> np.ndarray:
    torch = sys.modules["torch"]
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    if dtypes.BFLOAT16 is None:
        raise TypeError("bfloat16 in NumPy needs the package ml_dtypes: pip install ml_dtypes")
    return tensor.view(torch.int16).numpy().view(dtypes.BFLOAT16)

"""Host memory of NumPy and torch arrays, and of other objects that MPI accepts as buffers."""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np

from compcoll.core import _gpu, dtypes

__all__ = ["host_view", "is_cuda", "is_torch", "to_host"]


def is_torch(array) -> bool:
    """True if this is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_cuda(array) -> bool:
    """True if the array is in GPU memory.

    An object with Python's buffer interface is in host memory, whatever else it has, and so is
    everything in a process without a GPU.
    """
    if is_torch(array):  # its interface raises an error for bfloat16
        return array.is_cuda
    if not hasattr(array, "__cuda_array_interface__") or _has_buffer(array):
        return False
    address = array.__cuda_array_interface__["data"][0]
    return _gpu.gpu_of(address) != _gpu.NO_GPU if address else _gpu.has_driver()


def host_view(array) -> np.ndarray:
    """View host memory as a NumPy array, of any strides; TypeError or BufferError if that cannot be."""
    if isinstance(array, np.ndarray):  # masked arrays as their data, matrices as plain arrays
        return array if type(array) is np.ndarray else array.view(np.ndarray)
    if is_torch(array) and array.device.type == "cpu":
        return _torch_view(array)
    if is_cuda(array):
        raise TypeError(f"{type(array).__name__} is in GPU memory, but host memory is needed here")
    if not _has_buffer(array):
        if _is_of_host(array):
            return np.from_dlpack(array)
        if hasattr(array, "__cuda_array_interface__"):
            return np.asarray(_Interface(array))
    return np.asarray(array)


def to_host(array) -> np.ndarray:
    """Get the values as a C-contiguous NumPy array in host memory, copied only if necessary."""
    if is_torch(array):
        array = array.detach().resolve_conj().resolve_neg().cpu()
    elif is_cuda(array):
        array = array.get() if hasattr(array, "get") else np.asarray(array)
    view = host_view(array)
    return view if view.flags.c_contiguous else view.copy()


#: DLPack's devices whose memory the processor reads: its own, pinned and managed memory.
_HOST = {1, 3, 11, 13}


def _is_of_host(array) -> bool:
    """True if an object describes memory by DLPack that the processor reads."""
    return hasattr(array, "__dlpack__") and int(array.__dlpack_device__()[0]) in _HOST


class _Interface:
    """Host memory described by an interface like that of GPU arrays."""

    def __init__(self, array):
        self.owner, self.__array_interface__ = array, {**array.__cuda_array_interface__, "version": 3}


def _has_buffer(array) -> bool:
    """True if an object has Python's buffer interface."""
    with suppress(TypeError, BufferError, ValueError, NotImplementedError):
        memoryview(array).release()
        return True
    return False


def _check_tensor(tensor) -> None:
    """Raise BufferError for a torch tensor that requires grad, or whose memory does not hold its values."""
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        raise BufferError(f"a tensor has the layout {tensor.layout}, not {torch.strided}")
    if tensor.requires_grad:
        raise BufferError("a tensor requires a gradient: use tensor.detach()")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError("a tensor is a conjugate or negative view: use resolve_conj() or resolve_neg()")


def _torch_view(tensor) -> np.ndarray:
    _check_tensor(tensor)
    torch = sys.modules["torch"]
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(dtypes.BFLOAT16)

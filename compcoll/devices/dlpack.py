"""The type of the elements that an object describes by DLPack, without taking them over.

The structures are those of dlpack.h, version 1.1: https://github.com/dmlc/dlpack. NumPy's own reader takes a
capsule over, which not every exporter of host memory survives, and calls its memory read-only where it is
not.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from compcoll.core import dtypes

__all__ = ["element_type", "on_host"]

#: Devices whose memory the processor reads: its own, pinned and managed memory.
_HOST = {1, 3, 11, 13}
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_BFLOAT = 4


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def on_host(array: Any) -> bool:
    """Whether an object describes memory that the processor reads."""
    return hasattr(array, "__dlpack__") and int(array.__dlpack_device__()[0]) in _HOST


def element_type(array: Any) -> np.dtype | None:
    """The dtype of an object's elements; None where NumPy has none for it."""
    try:
        capsule = array.__dlpack__(max_version=(1, 0), copy=False)
    except TypeError:  # before version 1
        capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if _is(capsule, b"dltensor_versioned"):
        tensor = _Versioned.from_address(pointer(capsule, b"dltensor_versioned")).tensor
    else:
        tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    kind, lanes, nbytes = _KINDS.get(tensor.code, ""), tensor.lanes, tensor.bits // 8
    if (tensor.code, tensor.bits, lanes) == (_BFLOAT, 16, 1):
        return dtypes.BFLOAT16
    if kind == "f" and lanes == 2:  # as complex numbers are written that are too long for ``bits``
        kind, lanes, nbytes = "c", 1, 2 * nbytes
    try:
        return np.dtype(f"{kind}{nbytes}") if kind and lanes == 1 and not tensor.bits % 8 else None
    except TypeError:
        return None


def _is(capsule: Any, name: bytes) -> bool:
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    return bool(valid(capsule, name))

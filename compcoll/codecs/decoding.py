"""Decoding of frames of any codec, which the header names, on the host and on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.codecs import gpu
from compcoll.codecs.registry import DECODER
from compcoll.core import dtypes
from compcoll.devices import arrays
from compcoll.frame import as_bytes

__all__ = ["accumulator_dtype", "decode", "decode_add"]


def decode(frame: Any, out: Any = None) -> Any:
    """Decompress a frame.

    Parameters
    ----------
    frame : array or bytes-like
        A frame as `Codec.encode` returns it; bytes after its end are ignored.
    out : array, optional
        C-contiguous, of the frame's dtype and number of elements; NumPy, CuPy or torch.

    Returns
    -------
    array
        ``out``, or a new array of the frame's dtype and shape: of NumPy, or of the library of a frame on a
        GPU.

    Raises
    ------
    FrameError
        If header or payload are damaged.
    ValueError, TypeError
        If ``out`` does not fit the frame.
    """
    return _decode(frame, out, adding=False)


def decode_add(frame: Any, out: Any) -> Any:
    """Add the values of a frame to an array: ``out += decode(frame)``.

    Parameters
    ----------
    frame : array or bytes-like
    out : array
        C-contiguous, of the frame's number of elements. Its dtype is the frame's, or float32 for
        frames of float16 and bfloat16.

    Returns
    -------
    array
        ``out``. After a `FrameError` from a damaged payload without checksum its values are undefined.
    """
    return _decode(frame, out, adding=True)


def accumulator_dtype(dtype: np.dtype) -> np.dtype:
    """The type of accumulators: float32 for 16-bit floats, else the type itself."""
    return np.dtype(np.float32) if dtype in dtypes.FLOATS and dtype.itemsize == 2 else dtype


def _decode(frame: Any, out: Any, adding: bool) -> Any:
    if not isinstance(frame, np.ndarray) or not (out is None or isinstance(out, np.ndarray)):
        if gpu.takes(frame, out):
            if out is None or arrays.is_cuda(out):
                return gpu.decode(frame, out, adding)
            frame = gpu.to_host(frame)
        frame = as_bytes(frame)
    values = DECODER.decode(frame, None if out is None else arrays.host_view(out), adding)
    return values if out is None else out

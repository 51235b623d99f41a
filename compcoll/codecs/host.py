"""Frames in host memory back to values: decoding, and adding to sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.codecs.registry import of_frame
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays
from compcoll.frame import FrameInfo, verify

__all__ = [
    "NO_BASE",
    "STATUS",
    "accumulator_dtype",
    "add_into",
    "check_out",
    "decode_into",
    "output",
    "payload_error",
    "status_error",
]

#: Statuses of the functions of csrc/abi.h in words.
STATUS = {
    _cpu.NONFINITE: "a NaN or an infinity",
    _cpu.UNREPRESENTABLE: "a value that the codec cannot represent",
    _cpu.TOO_LARGE: "a payload larger than the array",
    _cpu.BAD_STREAM: "not a stream of this codec",
    _cpu.UNSUPPORTED: "a dtype or parameter that the codec does not take",
}

NO_BASE = (
    "the frame holds differences to values that are not here, or are not the ones that it names: after an "
    "error or a restart the transfer has to be prepared again by all its ranks"
)


def decode_into(data: np.ndarray, info: FrameInfo, dst: np.ndarray) -> None:
    """Decode a frame into a contiguous array of its dtype and size, without a check of these."""
    status = of_frame(info.codec).decode_payload(info, verify(data, info), dst)
    if status != 0:
        raise payload_error(info, status)


def add_into(data: np.ndarray, info: FrameInfo, dst: np.ndarray) -> None:
    """Add a frame's values to a contiguous array of `accumulator_dtype`, without a check of that."""
    codec, payload = of_frame(info.codec), verify(data, info)
    status = codec.decode_add_payload(info, payload, dst)
    if status is None:
        term = np.empty(info.size, info.dtype)
        status = codec.decode_payload(info, payload, term)
        if status == 0:
            codes = dtypes.code_of(info.dtype), dtypes.code_of(dst.dtype)
            _cpu.accumulate(*codes, term.view(np.uint8), dst.reshape(-1).view(np.uint8), term.size)
    if status != 0:
        raise payload_error(info, status)


def accumulator_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which sums are formed: float32 for 16-bit floats, else the type itself."""
    return np.dtype(np.float32) if dtype in dtypes.FLOATS and dtype.itemsize == 2 else dtype


def output(info: FrameInfo, out: Any = None, adding: bool = False) -> np.ndarray:
    """The host memory of ``out``, which has to fit a frame's values, or a new array without it."""
    if out is None:
        return np.empty(info.shape, info.dtype)
    dst = arrays.host_view(out)
    check_out(dst.dtype, dst.size, info, adding)
    if not dst.flags.c_contiguous or not dst.flags.writeable:
        raise ValueError("out has to be C-contiguous and writable")
    return dst


def check_out(dtype: np.dtype, size: int, info: FrameInfo, adding: bool) -> None:
    """Raise where an array of this dtype and size cannot take a frame's values, or have them added."""
    needed = accumulator_dtype(info.dtype) if adding else info.dtype
    if dtype != needed:
        raise TypeError(f"out has dtype {dtype}, and the frame needs {needed}")
    if size != info.size:
        raise ValueError(f"out has {size} elements, and the frame {info.size}")


def payload_error(info: FrameInfo, status: int) -> FrameError | RuntimeError:
    """The exception for a status of a decoder; RuntimeError for a value that is no status."""
    if status not in STATUS:
        return status_error(info.codec, "decode_payload", status, "0")
    if status == _cpu.UNSUPPORTED and info.codec == "delta":
        return FrameError(NO_BASE)
    return FrameError(f"the {info.codec} payload of {info.payload_nbytes} bytes is {STATUS[status]}")


def status_error(codec: str, method: str, value: object, expected: str) -> RuntimeError:
    """The exception for a value that a faulty codec returns in place of a status."""
    statuses = f"{min(STATUS)} to {max(STATUS)}"
    return RuntimeError(
        f"codec {codec!r}: {method} returned {value}, which is neither {expected} nor a status, {statuses}"
    )

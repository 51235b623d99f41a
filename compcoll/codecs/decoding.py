"""Frames back to values, of any codec: the header says which. Decoding, adding to sums, adding frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from compcoll.codecs.base import SLACK, Codec
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays
from compcoll.frame import HEADER_NBYTES, FrameInfo, as_bytes, inspect, pack_header, verify

__all__ = ["accumulator_dtype", "add", "add_into", "alike", "decode", "decode_add", "decode_into"]

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


def decode(frame: Any, out: Any = None) -> Any:
    """Decompress a frame.

    Parameters
    ----------
    frame : array or bytes-like
        As `Codec.encode` returns it; bytes behind its end are ignored.
    out : array, optional
        C-contiguous, of the frame's dtype and number of elements; NumPy or torch.

    Returns
    -------
    array
        ``out``, or a new NumPy array of the frame's dtype and shape.

    Raises
    ------
    FrameError
        Where header or payload are damaged.
    ValueError, TypeError
        Where ``out`` does not fit the frame.
    """
    if arrays.is_cuda(frame) or arrays.is_cuda(out):
        from compcoll.codecs import gpu

        if gpu.takes(frame, out):
            return gpu.decode(frame, out)
    data = as_bytes(frame)
    info = inspect(data)
    if out is None:
        dst = np.empty(info.shape, info.dtype)
    else:
        dst = arrays.host_view(out)
        _check_out(dst, info, info.dtype)
    decode_into(data, info, dst)
    return dst if out is None else out


def decode_into(data: np.ndarray, info: FrameInfo, dst: np.ndarray) -> None:
    """`decode` without its checks of ``dst``."""
    codec = _of_frame(info)
    _raise(codec.decode_payload(info, verify(data, info), dst), info)


def decode_add(frame: Any, out: Any, *, scratch: np.ndarray | None = None) -> Any:
    """Add the values of a frame to an array: ``out += decode(frame)``.

    Parameters
    ----------
    frame : array or bytes-like
    out : array
        C-contiguous, of the frame's number of elements. Its dtype is the frame's, or float32 for
        frames of float16 and bfloat16.
    scratch : array, optional
        uint8, at least as many bytes as the decoded frame; used by codecs that cannot add in place.

    Returns
    -------
    array
        ``out``. After a `FrameError` from a damaged payload without checksum its values are undefined.
    """
    if arrays.is_cuda(frame) or arrays.is_cuda(out):
        from compcoll.codecs import gpu

        if gpu.takes(frame, out):
            return gpu.decode(frame, out, adding=True)
    data = as_bytes(frame)
    info = inspect(data)
    dst = arrays.host_view(out)
    _check_out(dst, info, accumulator_dtype(info.dtype))
    codec, payload = _of_frame(info), verify(data, info)
    status = codec.decode_add_payload(info, payload, dst)
    if status is None:
        term = np.empty(info.nbytes, np.uint8) if scratch is None else scratch[: info.nbytes]
        term = term.view(info.dtype)
        status = codec.decode_payload(info, payload, term)
        if status == 0:
            add_into(term, dst)
    _raise(status, info)
    return out


def add(a, b, out=None):
    """The frame of the sum of two frames, formed without decoding them.

    Parameters
    ----------
    a, b : array or bytes-like
        Frames of one codec with equal parameters, dtype and shape.
    out : array, optional
        uint8, at least ``HEADER_NBYTES + SLACK`` bytes more than the decoded array.

    Returns
    -------
    array or None
        A frame whose bound is the sum of theirs, and what its codec adds; None where these two cannot
        be summed so.

    Raises
    ------
    FrameError
        Where a header or payload is damaged.
    """
    data = as_bytes(a), as_bytes(b)
    first, second = map(inspect, data)
    codec = _of_frame(first)
    if not alike(first, second) or not _cpu.can_add(codec._index):
        return None
    if out is None:
        out = np.empty(HEADER_NBYTES + first.nbytes + SLACK, np.uint8)
    payloads = verify(data[0], first), verify(data[1], second)
    code, shape = dtypes.code_of(first.dtype), first.shape or (1,)
    nbytes, bound, params = _cpu.add(codec._index, code, shape, first.params, *payloads, out[HEADER_NBYTES:])
    if nbytes == _cpu.BAD_STREAM:
        _raise(nbytes, first)
    if not 0 <= nbytes <= first.nbytes:
        return None
    frame = out[: HEADER_NBYTES + nbytes]
    bound += first.bound + second.bound
    checksum = first.checksum is not None
    pack_header(frame, first.codec, first.dtype, first.shape, params, nbytes, bound, False, checksum)
    return frame


def alike(a: FrameInfo, b: FrameInfo) -> bool:
    """Whether two frames differ in their values alone, so that they may be added."""
    return all(getattr(a, key) == getattr(b, key) for key in ("codec", "dtype", "shape", "params"))


def add_into(src: np.ndarray, dst: np.ndarray) -> None:
    """``dst += src`` for contiguous arrays, 16-bit floats into float32; without the GIL."""
    codes = dtypes.code_of(src.dtype), dtypes.code_of(dst.dtype)
    flat = src.reshape(-1).view(np.uint8), dst.reshape(-1).view(np.uint8)
    if not _cpu.accumulate(*codes, *flat, src.size):
        raise TypeError(f"{src.dtype} cannot be added to {dst.dtype}")


def accumulator_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which sums are formed: float32 for 16-bit floats, else the type itself."""
    return np.dtype(np.float32) if dtype in dtypes.FLOATS and dtype.itemsize == 2 else dtype


def index_of(info: FrameInfo) -> int:
    """The place of a frame's codec in the table of compiled ones; negative where it is not there."""
    return _of_frame(info)._index


def _of_frame(info: FrameInfo) -> Codec:
    from compcoll.codecs.registry import of_frame

    return of_frame(info.codec)


def _check_out(dst: np.ndarray, info: FrameInfo, dtype: np.dtype) -> None:
    if dst.dtype != dtype:
        raise TypeError(f"out has dtype {dst.dtype}, and the frame needs {dtype}")
    if dst.size != info.size:
        raise ValueError(f"out has {dst.size} elements, and the frame {info.size}")
    if not dst.flags.c_contiguous or not dst.flags.writeable:
        raise ValueError("out has to be C-contiguous and writable")


def _raise(status: int, info: FrameInfo) -> None:
    if status == _cpu.UNSUPPORTED and info.codec == "delta":
        raise FrameError(NO_BASE)
    if status:
        raise FrameError(f"the {info.codec} payload of {info.payload_nbytes} bytes is {STATUS[status]}")

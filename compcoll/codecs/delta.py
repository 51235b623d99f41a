"""``delta``: differences to the values that the same transfer carried last, which both its ends have kept."""

from __future__ import annotations

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.codecs.host import NO_BASE, decode_into, output, payload_error
from compcoll.codecs.registry import codec
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, SLACK, FrameInfo, as_bytes, inspect, pack_header, verify

__all__ = ["Delta", "decode", "encode"]

VERSION = 1


class Delta(Codec):
    """Lossless compression of values of which few have changed, or by little.

    Notes
    -----
    Persistent messages and collectives that do not reduce keep what they carried, on both ends, and send
    differences to it; other calls, a first one, and chunks that ``lossless`` makes smaller are coded by that.
    A sample says whether differences are those of integers or the exclusive or. The byte layout stands in
    ``csrc/delta.h``.
    The first word of the frame header's two is the version of that layout, plus 256 for differences of
    integers; the second one names the base: its checksum, and 2**32 times its number.
    """

    name = "delta"
    lossless = True
    has_base = True

    def attempts(self, dtype: np.dtype) -> tuple[Codec, ...]:
        return (self, codec("lossless"))

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (VERSION, 0)


def encode(array: np.ndarray, base: np.ndarray | None, number: int = 1) -> np.ndarray:
    """Compress an array into a frame of its differences to another one.

    Parameters
    ----------
    array : numpy.ndarray
        C-contiguous, of up to 3 dimensions and any dtype of frames.
    base : numpy.ndarray or None
        C-contiguous, of the same dtype and shape; None where there is none: the frame is ``lossless``.
    number : int
        Which one of several bases it is, 1 to 2**32 - 1; stands in the frame, besides its checksum.

    Returns
    -------
    numpy.ndarray
        The frame, uint8: of ``delta``, or of ``lossless`` where that is smaller.
    """
    if base is None:
        return codec("lossless").encode(array)
    if (base.dtype, base.shape) != (array.dtype, array.shape):
        raise ValueError(f"the base is {base.shape} {base.dtype}, and the array {array.shape} {array.dtype}")
    if not 0 < number < 1 << 32:
        raise ValueError(f"number = {number} is not between 1 and 2**32 - 1")
    values, known = (np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (array, base))
    out = np.empty(HEADER_NBYTES + values.nbytes + SLACK, np.uint8)
    code, shape = dtypes.code_of(array.dtype), array.shape or (1,)
    params = (VERSION, _name(known, number))
    nbytes, bound, params = _cpu.encode(Delta._index, code, shape, params, values, out[HEADER_NBYTES:], known)
    if not 0 <= nbytes <= values.nbytes:
        return codec("lossless").encode(array)
    info = FrameInfo(Delta.name, array.dtype, array.shape, params, nbytes, bound)
    pack_header(out, info)
    return out[: info.frame_nbytes]


def decode(frame, base: np.ndarray | None, out: np.ndarray | None = None) -> np.ndarray:
    """Decompress a frame of `encode`.

    Parameters
    ----------
    frame : array or bytes-like
    base : numpy.ndarray or None
        The array whose differences the frame holds; not looked at for frames of other codecs.
    out : numpy.ndarray, optional
        C-contiguous, of the frame's dtype and number of elements; may be the base.

    Returns
    -------
    numpy.ndarray
        ``out``, or a new array.

    Raises
    ------
    FrameError
        Where the frame is damaged, or its base is another one.
    """
    data = as_bytes(frame)
    info = inspect(data)
    out = output(info, out)
    if info.codec != Delta.name:
        decode_into(data, info, out)
        return out
    if base is None or (base.dtype, base.size) != (info.dtype, info.size):
        raise FrameError(NO_BASE)
    known = np.ascontiguousarray(base).reshape(-1).view(np.uint8)
    if _name(known, info.params[1] >> 32) != info.params[1]:
        raise FrameError(NO_BASE)
    code, shape, values = dtypes.code_of(info.dtype), info.shape or (1,), out.reshape(-1).view(np.uint8)
    status = _cpu.decode(Delta._index, code, shape, info.params, verify(data, info), values, known)
    if status:
        raise payload_error(info, status)
    return out


def _name(known: np.ndarray, number: int) -> int:
    return number << 32 | _cpu.checksum(known)

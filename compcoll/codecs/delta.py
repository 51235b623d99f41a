"""``delta``: differences from the values that the same transfer carried last, which both ends keep."""

from __future__ import annotations

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.codecs.registry import DECODER, default_codec
from compcoll.devices import arrays
from compcoll.frame import as_bytes

__all__ = ["Delta", "decode", "encode"]

VERSION = 1


class Delta(Codec):
    """Lossless compression of values that have changed rarely, or by little.

    Notes
    -----
    Persistent messages and collectives that do not reduce keep their values on both ends, and then send
    differences from these. Other calls, the first start, and chunks that ``lossless`` makes smaller use
    ``lossless``. A sample decides between differences of integers and the exclusive or. ``csrc/delta.h`` has
    the byte layout. The first word in the frame header is the version of that layout, plus 256 for
    differences of integers; the second one names the base: its checksum, plus 2**32 times its number.
    """

    name = "delta"
    lossless = True
    has_base = True

    def attempts(self, dtype: np.dtype) -> tuple[Codec, ...]:
        return (self, default_codec("lossless"))

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (VERSION, 0)


def encode(array: np.ndarray, base: np.ndarray | None, number: int = 1) -> np.ndarray:
    """Compress an array into a frame of its differences from another one.

    Parameters
    ----------
    array : numpy.ndarray
        C-contiguous, of up to 3 dimensions and any dtype of frames.
    base : numpy.ndarray or None
        C-contiguous, of the same dtype and shape; None makes a ``lossless`` frame.
    number : int
        Number of the base among several, 1 to 2**32 - 1; written to the frame beside the base's checksum.

    Returns
    -------
    numpy.ndarray
        The frame, uint8: of ``delta``, or of ``lossless`` if that is smaller.
    """
    if base is None:
        return default_codec("lossless").encode(array)
    if (base.dtype, base.shape) != (array.dtype, array.shape):
        raise ValueError(f"the base is {base.shape} {base.dtype}, and the array {array.shape} {array.dtype}")
    if not 0 < number < 1 << 32:
        raise ValueError(f"number = {number} is not between 1 and 2**32 - 1")
    return Delta().coding(array.dtype).encode(array, base=np.ascontiguousarray(base), number=number)


def decode(frame, base: np.ndarray | None, out: np.ndarray | None = None) -> np.ndarray:
    """Decompress a frame of `encode`.

    Parameters
    ----------
    frame : array or bytes-like
    base : numpy.ndarray or None
        The array that the frame has differences from; ignored for frames of other codecs.
    out : numpy.ndarray, optional
        C-contiguous, of the frame's dtype and number of elements; may be the base.

    Returns
    -------
    numpy.ndarray
        ``out``, or a new array.

    Raises
    ------
    FrameError
        If the frame is damaged, or its base is another one.
    """
    known = None if base is None else np.ascontiguousarray(base)
    return DECODER.decode(as_bytes(frame), None if out is None else arrays.host_view(out), base=known)

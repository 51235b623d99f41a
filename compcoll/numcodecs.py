"""Frames as a codec of numcodecs, for Zarr's format 2 and other users of numcodecs.

The entry point ``compcoll`` of the group ``numcodecs.codecs`` names it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numcodecs.abc
import numcodecs.compat
import numpy as np

from compcoll.codecs import codec as codec_of
from compcoll.codecs import decode
from compcoll.codecs.views import as_frame_array, is_supported

__all__ = ["Compcoll"]


class Compcoll(numcodecs.abc.Codec):
    """A compressor for arrays; each chunk is one frame, with the bytes that a message would have.

    Parameters
    ----------
    codec : str
        A spec, such as ``"szp:abs=1e-4"``.

    Raises
    ------
    ValueError
        For an unknown codec or parameter.
    """

    codec_id: ClassVar[str] = "compcoll"

    def __init__(self, codec: str = "lossless"):
        self.codec = codec_of(codec).spec

    def encode(self, buf: Any) -> Any:
        """The frame of an array, uint8; other buffers, and dtypes that frames cannot hold, go as bytes."""
        array = numcodecs.compat.ensure_ndarray(buf)
        # numcodecs passes bytes in memory order.
        array = array.T if array.flags.f_contiguous else np.ascontiguousarray(array)
        if not (array.dtype.isnative and is_supported(array.dtype)):
            array = array.reshape(-1).view(np.uint8)
        return codec_of(self.codec).encode(as_frame_array(array))

    def decode(self, buf: Any, out: Any = None) -> Any:
        """The values of a frame; FrameError if it is damaged."""
        values = decode(numcodecs.compat.ensure_contiguous_ndarray(buf).view(np.uint8))
        return values if out is None else numcodecs.compat.ndarray_copy(values, out)

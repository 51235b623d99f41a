"""Frames as a codec of Zarr's format 3: ``zarr.create_array(..., serializer=Compcoll("szp:abs=1e-4"))``.

The entry point ``compcoll`` of the group ``zarr.codecs`` names it, so programs that read need no import.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr.abc.codec
import zarr.registry

from compcoll.codecs import codec as codec_of
from compcoll.codecs import decode
from compcoll.codecs.views import as_frame_array, is_supported
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, inspect

__all__ = ["Compcoll"]


@dataclass(frozen=True)
class Compcoll(zarr.abc.codec.ArrayBytesCodec):
    """A serializer for arrays; each chunk is one frame, with the bytes that a message would have.

    Lossy codecs take the blocks' dimensions from the chunk; of more than 3 dimensions the first ones are
    merged. Integers, booleans and times are coded losslessly.

    Parameters
    ----------
    codec : str
        A spec, such as ``"zfp:rate=8"``.

    Raises
    ------
    ValueError
        For an unknown codec or parameter.
    TypeError
        For arrays of a dtype that frames cannot hold, when they are created.
    """

    codec: str = "lossless"
    is_fixed_size = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", codec_of(self.codec).spec)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Compcoll:
        """A codec from its entry in an array's metadata."""
        return cls(**data.get("configuration", {}))

    def to_dict(self) -> dict[str, Any]:
        """The entry in an array's metadata."""
        return {"name": "compcoll", "configuration": {"codec": self.codec}}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """TypeError if frames cannot hold the dtype of an array."""
        native = dtype.to_native_dtype()
        if not is_supported(native.newbyteorder("=")):
            raise TypeError(f"a frame cannot hold {native}; it holds numbers, booleans and times")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """The size depends on the values."""
        raise NotImplementedError

    def _encode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        array = chunk_data.as_ndarray_like()
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
        frame = codec_of(self.codec).encode(as_frame_array(array))
        return chunk_spec.prototype.buffer.from_array_like(frame)

    def _decode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        dtype = chunk_spec.dtype.to_native_dtype()
        native, shape = dtype.newbyteorder("="), chunk_spec.shape
        info = inspect(chunk_data[:HEADER_NBYTES].to_bytes(), len(chunk_data))
        expected = as_frame_array(np.empty(0, native)).dtype
        if (info.dtype, info.size) != (expected, math.prod(shape)):
            raise FrameError(
                f"the chunk's frame has {info.size} values of {info.dtype}, "
                f"not {math.prod(shape)} of {expected}"
            )
        values = decode(chunk_data.as_array_like())
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(
            values.view(native).astype(dtype, copy=False).reshape(shape)
        )

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)


zarr.registry.register_codec("compcoll", Compcoll)

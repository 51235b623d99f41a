"""Codecs as the compiled engine takes them: places in the table, or functions that it calls."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from compcoll.codecs import Codec
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode_add, decode_into
from compcoll.core import dtypes
from compcoll.engine._engine import Coding, memory_at
from compcoll.frame import HEADER_NBYTES, inspect

__all__ = ["coding"]


@lru_cache(maxsize=256)
def coding(codec: Codec, dtype: np.dtype) -> Coding:
    """The `Coding` of a codec for blocks of a real type."""
    attempts = [one.table_entry(dtype) for one in codec.attempts(dtype)]

    def encode(code: int, shape: tuple[int, ...], src: int, carried: float, out: int) -> int:
        block = _array(code, prod(shape), src).reshape(shape)
        room = memory_at(out, HEADER_NBYTES + block.nbytes + SLACK)
        return codec.encode_into(block, room, carried).nbytes

    return Coding(dtypes.code_of(dtype), codec.lossless, attempts, encode, _decode)


def _decode(frame: np.ndarray, code: int, n: int, dst: int, adding: bool) -> None:
    values, info = _array(code, n, dst), inspect(frame)
    if adding:
        decode_add(frame, values)
    else:
        decode_into(frame, info, values)


def _array(code: int, n: int, address: int) -> np.ndarray:
    dtype = dtypes.dtype_of(code)
    return memory_at(address, n * dtype.itemsize).view(dtype)

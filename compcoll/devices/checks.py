"""The host's checks of payloads on a device: sound sizes, and the meaning of results."""

from __future__ import annotations

import math

import numpy as np

from compcoll.core import _cpu, dtypes
from compcoll.devices import kernels
from compcoll.frame import FrameInfo

__all__ = ["REFUSALS", "payload_nbytes", "problem", "size_is_sound"]

#: Results of an encoder that cannot represent the values.
REFUSALS = (_cpu.NONFINITE, _cpu.UNREPRESENTABLE)


def payload_nbytes(codec: str, dtype: np.dtype, size: int, params: tuple[int, int]) -> int:
    """Bytes that an encoder makes of so many elements; -1 where that depends on more than their number."""
    reals = size * (2 if dtype.kind == "c" else 1)
    real = dtypes.real_dtype(dtype).itemsize
    p0, p1 = params
    if codec == "raw":
        return reals * real if params == (0, 0) else -1
    if codec == "zfp":
        least, most = (12, 256) if real == 8 else (9, 128)
        return 8 * _ceil(_ceil(reals, 4) * p0, 64) if least <= p0 <= most and not p1 else -1
    if codec == "bfp":
        return bfp_nbytes(reals, 8 if real == 8 else 4, p0)
    block = p0 & 0xFFFFFFFF
    if codec in ("szp", "mpc", "float") or block not in (32, 64, 128, 256) or p0 >> 33:
        return -1
    return _ceil(reals, block) * max(real, 4) + (_ceil(reals, 2) if codec == "int4" else reals)


def bfp_nbytes(reals: int, word: int, p0: int) -> int:
    """Bytes of a payload of `bfp` (csrc/bfp.h) in words of 4 or 8 bytes; -1 where the parameters are none."""
    bits, dim = p0 & 0xFF, p0 >> 8 & 0xFF
    if not (2 <= bits <= (52 if word == 8 else 24) and 1 <= dim <= 32) or p0 >> 33 or p0 >> 16 & 0xFFFF:
        return -1
    tiles, rest = divmod(reals, 256 * word)
    rows = tiles * bits + _ceil(2 * _ceil(rest, 64) * bits, 8 * word)
    return 32 * word * rows + word * (_ceil(2 * _ceil(reals, 64), word) + dim * (tiles + (rest > 0)))


def size_is_sound(info: FrameInfo) -> bool:
    """Whether a payload has the size that its header asks for, and the kernels can count its blocks."""
    if info.nbytes >= kernels.LIMIT:
        return False
    if info.codec == "zfp" and len(info.shape) > 1:
        return _blocks_are_sound(info)
    if info.codec == "float":
        return info.params == (1, 0)
    if info.codec not in ("szp", "mpc"):
        return info.payload_nbytes == payload_nbytes(info.codec, info.dtype, info.size, info.params)
    # Their kernels look at the rest themselves.
    if info.codec == "szp":
        head = 4 * _ceil(_ceil(info.size * (2 if info.dtype.kind == "c" else 1), 32), 4)
    else:
        word = 8 if dtypes.real_dtype(info.dtype).itemsize == 8 else 4
        head = 8 + word * _ceil(_ceil(info.nbytes, word), 8 * word)
        if not 1 <= info.params[0] <= 32 or info.params[1]:
            return False
    return info.payload_nbytes >= head


def _blocks_are_sound(info: FrameInfo) -> bool:
    """`size_is_sound` for zfp in 2 and 3 dimensions; its kernels count values in 32 bits."""
    shape = (*info.shape[:-1], info.shape[-1] * (2 if info.dtype.kind == "c" else 1))
    bits, unused = info.params
    word, header = (64, 12) if dtypes.real_dtype(info.dtype).itemsize == 8 else (32, 9)
    if not header <= bits <= word * 4 ** len(shape) or unused or math.prod(shape) >= kernels.LIMIT:
        return False
    return info.payload_nbytes == 8 * _ceil(math.prod(_ceil(n, 4) for n in shape) * bits, 64)


def _ceil(n: int, parts: int) -> int:
    return (n + parts - 1) // parts


def problem(info: FrameInfo, result: np.void) -> str | None:
    """The fault of a decoded frame, or None."""
    if info.checksum is not None and int(result["checksum"]) != info.checksum:
        return f"the payload's checksum is not {info.checksum:#010x}: the payload is damaged"
    if result["bad"]:
        return f"the {info.codec} payload of {info.payload_nbytes} bytes is not a stream of this codec"
    return None

"""The parts of an array from which `lossless` chooses, where only these are in host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compcoll.core import _cpu, dtypes

__all__ = ["NBYTES", "Places", "choose", "choose_from", "places"]

#: The most that is taken, and of a large array at most one part in so many, as in csrc/cpu/lossless.cpp.
NBYTES = 32768
_SHARE = 32
_IS_SAMPLE = 1
_INDEX = _cpu.index("lossless")


@dataclass(frozen=True, slots=True)
class Places:
    """``n`` pieces of ``piece`` bytes that begin ``step`` bytes apart."""

    piece: int
    n: int
    step: int

    @property
    def nbytes(self) -> int:
        return self.n * self.piece


def places(nbytes: int, dtype: np.dtype) -> Places:
    """The slices that are the sample of an array of so many bytes."""
    piece = 1024 * (8 if dtypes.real_dtype(dtype).itemsize == 8 else 4)
    n = max(min(nbytes // (piece * _SHARE), NBYTES // piece), 1)
    piece = min(piece, nbytes)
    return Places(piece, n, (nbytes - piece) // (n - 1) // 16 * 16 if n > 1 else 0)


def choose(src: np.ndarray) -> tuple[int, int]:
    """The codec for an array, by its ordinal of ``csrc/cpu/lossless.cpp``, and that codec's parameter."""
    return _choose(src.dtype, src.shape or (1,), (0, 0), src.reshape(-1).view(np.uint8))


def choose_from(sample: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
    """The choice for an array of this dtype and shape whose `places` hold these bytes."""
    row = shape[-1] if len(shape) > 1 else 0
    return _choose(dtype, (sample.size // dtype.itemsize,), (_IS_SAMPLE, row), sample)


def _choose(
    dtype: np.dtype, shape: tuple[int, ...], params: tuple[int, int], data: np.ndarray
) -> tuple[int, int]:
    return _cpu.encode(_INDEX, dtypes.code_of(dtype), shape, params, data, np.empty(0, np.uint8))[2]

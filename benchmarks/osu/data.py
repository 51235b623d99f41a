"""Data of the benchmarks: message sizes, and values from a file or a smooth signal with noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.cli.load import load
from compcoll.core.sizes import nbytes_of

from .arrays import Library, library

__all__ = ["Source", "codec_list", "size_list", "source"]

_SYNTHETIC_VALUES = 1 << 20


@dataclass(frozen=True)
class Source:
    """Source of all benchmark data: arrays of one library, with the values of one rank.

    Attributes
    ----------
    base : numpy.ndarray
        The values, repeated if more are requested.
    arrays : Library
    """

    base: np.ndarray
    arrays: Library = field(default_factory=lambda: library("numpy"))

    @property
    def dtype(self) -> np.dtype:
        return self.base.dtype

    def __call__(self, n: int) -> Any:
        """An array of n values."""
        return self.arrays.put(np.resize(self.base, n))

    def empty(self, n: int) -> Any:
        """An array of n arbitrary values."""
        return self.arrays.put(np.empty(n, self.dtype))

    def spoil(self, array: Any) -> None:
        """Overwrite an array with bytes of 255, which are NaN or -1."""
        n = self.host(array).size
        self.arrays.write(array, np.full(n * self.dtype.itemsize, 0xFF, np.uint8).view(self.dtype))

    def host(self, array: Any) -> np.ndarray:
        """An array's values in host memory."""
        return self.arrays.get(array)


def size_list(text: str) -> list[int]:
    """Parse sizes: ``4:256M`` is 4, 8, ... 268435456; ``1K:1M:4`` has steps of four; ``1K,1M`` is a list."""
    if ":" not in text:
        return [_size(part) for part in text.split(",")]
    first, last, *rest = text.split(":")
    start, end, factor = _size(first), _size(last), _size(rest[0]) if rest else 2
    if len(rest) > 1 or factor < 2 or start > end:
        raise ValueError(f"sizes {text!r} are not FIRST:LAST or FIRST:LAST:FACTOR with FACTOR at least 2")
    sizes = []
    while start <= end:
        sizes.append(start)
        start *= factor
    return sizes


def _size(text: str) -> int:
    nbytes = nbytes_of(text)
    if nbytes < 1:
        raise ValueError(f"{text!r} is not a number of bytes above 0, such as 4, 64K or 1M")
    return nbytes


def codec_list(text: str) -> list[str]:
    """Split codec specs at commas, which separate options too: ``a:x=1,y=2,b`` is ``a:x=1,y=2`` and ``b``."""
    specs: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part:
            if not specs or ":" not in specs[-1]:
                raise ValueError(f"option {part!r} follows no codec in {text!r}")
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def source(file: Path | None, dtype: np.dtype | None, rank: int, arrays: str = "numpy") -> Source:
    """Values for one rank, repeated if more are requested than there are.

    Parameters
    ----------
    file : path or None
        A .npy file, or values without a header; every rank begins at another position in it. None makes a
        sine with Gaussian noise of a thousandth of its height, times 1000 for integers.
    dtype : numpy.dtype or None
        None: that of the .npy file, else float32.
    rank : int
    arrays : str
        Name of the library whose arrays are used.
    """
    if file is None:
        base = _synthetic(dtype or np.dtype("f4"), rank)
    else:
        kept = dtype if dtype is not None or file.suffix == ".npy" else np.dtype("f4")
        # An odd stride, so that no two ranks of a job send the same blocks.
        base = load(file, kept, None).reshape(-1)
        base = np.roll(base, -(rank * 10_007) % base.size)
    return Source(base, library(arrays))


def _synthetic(dtype: np.dtype, rank: int) -> np.ndarray:
    noise = np.random.default_rng(rank).normal(0.0, 1e-3, _SYNTHETIC_VALUES)
    values = np.sin(np.arange(_SYNTHETIC_VALUES) / 160.0 + rank) + noise
    if dtype.kind in "iu":
        # Small enough for sums over many ranks, and never negative for unsigned integers.
        values = np.rint((values + 2.0) * min(1000.0, np.iinfo(dtype).max / 64))
    return values.astype(dtype)

"""Data to compare codecs on: real fields and tensors if a folder has them, and synthetic values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compcoll.core import dtypes

__all__ = ["FOLDER", "Data", "real", "synthetic", "synthetic_grids"]

#: Folder of the real data, beside the clone.
FOLDER = Path(os.environ.get("COMPCOLL_SHARED", Path(__file__).parents[3] / "shared")) / "data"

#: Raw files, by name: name in tables, dtype, shape.
_FILES = {
    "vorticity.128_128_41": ("vorticity 3-D", "float32", (41, 128, 128)),
    "vorticity.512_512": ("vorticity 2-D", "float32", (512, 512)),
    "wmag91.float": ("wind speed 3-D", "float32", (91, 91, 91)),
    "transformer_weights.f32": ("weights", "float32", (524288,)),
    "transformer_gradients.f32": ("gradients", "float32", (524288,)),
    "transformer_weights.bf16": ("weights", "bfloat16", (1048576,)),
    "transformer_gradients.bf16": ("gradients", "bfloat16", (1048576,)),
}


@dataclass(frozen=True)
class Data:
    """An array and its name; `smooth` is True if neighbouring values are close."""

    name: str
    array: np.ndarray
    smooth: bool

    @property
    def label(self) -> str:
        dtype = self.array.dtype.name
        return f"{self.name}, {dtype}"


def real(folder: Path, most_nbytes: int | None = None) -> Iterator[Data]:
    """The known files that a folder has, each cut to `most_nbytes`."""
    for file, (name, kind, shape) in _FILES.items():
        dtype = dtypes.BFLOAT16 if kind == "bfloat16" else np.dtype(kind)
        if dtype is not None and (folder / file).exists():
            array = np.fromfile(folder / file, dtype).reshape(shape)
            yield Data(name, _start(array, most_nbytes), len(shape) > 1)


def synthetic(n: int) -> Iterator[Data]:
    """Four arrays of n values: waves with noise, and independent random numbers."""
    rng = np.random.default_rng(7)
    waves = np.sin(np.arange(n) / 160) + 1e-5 * rng.standard_normal(n)
    yield Data("smooth + noise", waves.astype("f4"), True)
    yield Data("smooth + noise", waves, True)
    yield Data("Gaussian", rng.standard_normal(n).astype("f4"), False)
    if dtypes.BFLOAT16 is not None:
        yield Data("normal * 0.02", (0.02 * rng.standard_normal(n)).astype(dtypes.BFLOAT16), False)


def synthetic_grids(n: int) -> Iterator[Data]:
    """Four grids of about n values in 2 and 3 dimensions: waves along each axis, with noise."""
    rng = np.random.default_rng(8)
    for ndim in (2, 3):
        side = max(4, round(n ** (1 / ndim)) // 4 * 4)
        wave = np.sin(np.arange(side) / 20)
        grid = sum(wave.reshape([-1 if i == axis else 1 for i in range(ndim)]) for axis in range(ndim))
        grid = grid + 1e-5 * rng.standard_normal(grid.shape)
        for dtype in ("f4", "f8"):
            yield Data(f"waves {ndim}-D", grid.astype(dtype), True)


def _start(array: np.ndarray, most_nbytes: int | None) -> np.ndarray:
    """The first planes along the slowest axis that fit, at least four."""
    if most_nbytes is None:
        return array
    return np.ascontiguousarray(array[: max(4, most_nbytes // array[:1].nbytes)])

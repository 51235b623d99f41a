"""Arrays of files: ``.npy`` and ``.npz``, and raw values with a dtype and a shape."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from zipfile import BadZipFile

import click
import numpy as np

from compcoll.core import dtypes

__all__ = ["DType", "Shape", "load"]


class DType(click.ParamType):
    """A dtype that frames can hold, such as f4, float32, <f4, >f8 or bf16."""

    name = "dtype"

    def convert(self, value, param, ctx) -> np.dtype:
        try:
            dtype = dtypes.BFLOAT16 if value in ("bf16", "bfloat16") else np.dtype(value)
        except TypeError:
            self.fail(f"{value!r} is not a dtype; examples are f4, f8, f2, bf16, i4, c8", param, ctx)
        if not dtypes.supported(dtype.newbyteorder("=")):
            self.fail(f"{value!r} is not supported; supported are {_supported()}", param, ctx)
        return dtype


class Shape(click.ParamType):
    """One to three dimensions, slowest first, such as 41x128x128."""

    name = "shape"

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        try:
            shape = tuple(int(word) for word in value.replace(",", "x").split("x"))
        except ValueError:
            self.fail(f"{value!r} is not a shape such as 41x128x128", param, ctx)
        if len(shape) > 3 or min(shape) < 1:
            self.fail(f"{value!r} is not 1 to 3 positive dimensions", param, ctx)
        return shape


def load(path: Path, dtype: np.dtype | None, shape: tuple[int, ...] | None) -> np.ndarray:
    """Load an array from a file: contiguous, in native byte order, not empty, with 1 to 3 dimensions.

    Parameters
    ----------
    path : Path
        A ``.npy`` file, a ``.npz`` file of one array, or raw values.
    dtype, shape : optional
        For raw values; other files' own have to agree with them.

    Returns
    -------
    numpy.ndarray
        Mapped from the file and read-only, if that needs no copy.

    Raises
    ------
    click.ClickException
        If the file holds no array, or one of an unsupported dtype, or one that does not fit ``dtype`` or
        ``shape``.
    """
    array = _load_numpy(path, dtype) if path.suffix in (".npy", ".npz") else _load_raw(path, dtype)
    if not array.size:
        raise click.ClickException(f"{path} has no elements")
    if shape is None:
        # Leading dimensions are merged: blocks are cut from the last three.
        shape = array.shape if 1 <= array.ndim <= 3 else (-1, *array.shape[-2:])
    elif math.prod(shape) != array.size:
        words = "x".join(map(str, shape))
        raise click.ClickException(
            f"{path} has {array.size} elements, and the shape {words} {math.prod(shape)}"
        )
    array = array.reshape(shape) if array.ndim else array.reshape(1)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _load_numpy(path: Path, dtype: np.dtype | None) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
        if not isinstance(array, np.ndarray):
            with array:
                if len(array.files) != 1:
                    names = ", ".join(array.files) or "none"
                    raise click.ClickException(f"{path} holds {len(array.files)} arrays, not one: {names}")
                array = array[array.files[0]]
    except (ValueError, EOFError, OSError, BadZipFile, zlib.error) as error:
        raise click.ClickException(f"{path} cannot be read as {path.suffix}: {error}") from None
    if dtype is not None and array.dtype != dtype:
        raise click.ClickException(f"{path} holds {array.dtype}, not {dtype}")
    if not dtypes.supported(array.dtype.newbyteorder("=")):
        text = f"{path} holds {array.dtype}, which is not supported; supported are {_supported()}"
        raise click.ClickException(text)
    return array


def _load_raw(path: Path, dtype: np.dtype | None) -> np.ndarray:
    if dtype is None:
        raise click.UsageError(
            f"{path} is not a .npy or .npz file: give the type of its elements with --dtype"
        )
    nbytes = path.stat().st_size
    if nbytes % dtype.itemsize:
        raise click.ClickException(
            f"{path} has {nbytes} bytes, which is not a multiple of the {dtype.itemsize} bytes of {dtype}"
        )
    return np.memmap(path, dtype, "r") if nbytes else np.empty(0, dtype)


def _supported() -> str:
    return ", ".join(map(str, dtypes.CODES))

"""Reading a user's array: ``.npy`` and ``.npz`` files, and raw ones with a dtype and a shape."""

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
        if isinstance(value, np.dtype):
            return value
        if value in ("bf16", "bfloat16"):
            return dtypes.BFLOAT16
        try:
            dtype = np.dtype(value)
        except TypeError:
            self.fail(f"{value!r} is not a dtype; examples are f4, f8, f2, bf16, i4, c8", param, ctx)
        if not dtypes.supported(dtype.newbyteorder("=")):
            names = ", ".join(str(d) for d in dtypes.CODES)
            self.fail(f"{value!r} is not supported; supported are {names}", param, ctx)
        return dtype


class Shape(click.ParamType):
    """One to three dimensions, slowest first, such as 41x128x128."""

    name = "shape"

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            shape = tuple(int(word) for word in value.replace(",", "x").split("x"))
        except ValueError:
            self.fail(f"{value!r} is not a shape such as 41x128x128", param, ctx)
        if len(shape) > 3 or min(shape) < 1:
            self.fail(f"{value!r} is not 1 to 3 positive dimensions", param, ctx)
        return shape


def load(
    path: Path, dtype: np.dtype | None, shape: tuple[int, ...] | None, member: str | None = None
) -> np.ndarray:
    """The array in a file: contiguous, in native byte order, of 1 to 3 dimensions and some elements.

    Parameters
    ----------
    path : Path
    dtype, shape : optional
        Of a raw file; those of others have to agree.
    member : str, optional
        An array of a ``.npz`` file that holds several.

    Returns
    -------
    numpy.ndarray
        Mapped from the file, and read-only, where that needs no copy.

    Raises
    ------
    click.ClickException
        For what is not an array, has no supported dtype or does not fit the dtype or shape.
    """
    if path.suffix in (".npy", ".npz"):
        array = _load_numpy(path, dtype, member)
    elif member is None:
        array = _load_raw(path, dtype)
    else:
        raise _no_archive(path, member)
    if not array.size:
        raise click.ClickException(f"{path} has no elements")
    if shape is not None and math.prod(shape) != array.size:
        words = "x".join(map(str, shape))
        raise click.ClickException(
            f"{path} has {array.size} elements, and the shape {words} {math.prod(shape)}"
        )
    if shape is None:
        # Leading dimensions are merged: blocks are cut from the last three.
        shape = array.shape if 1 <= array.ndim <= 3 else (-1, *array.shape[-2:])
    array = array.reshape(shape) if array.ndim else array.reshape(1)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _load_numpy(path: Path, dtype: np.dtype | None, member: str | None) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
        if not isinstance(array, np.ndarray):
            with array:
                array = array[_member(path, array.files, member)]
        elif member is not None:
            raise _no_archive(path, member)
    except (ValueError, EOFError, OSError, BadZipFile, zlib.error) as error:
        raise click.ClickException(f"{path} cannot be read as {path.suffix}: {error}") from None
    if dtype is not None and array.dtype != dtype:
        raise click.ClickException(f"{path} holds {array.dtype}, not {dtype}")
    if not dtypes.supported(array.dtype.newbyteorder("=")):
        raise click.ClickException(f"{path} holds {array.dtype}, which is not supported")
    return array


def _no_archive(path: Path, member: str) -> click.UsageError:
    return click.UsageError(f"{path} is not a .npz file: --member {member} names an array of one")


def _member(path: Path, names: list[str], member: str | None) -> str:
    """The array to take of a ``.npz`` file that holds these."""
    if member is None and len(names) != 1:
        raise click.UsageError(f"{path} holds {len(names)} arrays: --member takes one of {', '.join(names)}")
    if member is not None and member not in names:
        raise click.UsageError(f"{path} has no array {member!r}; it has {', '.join(names) or 'none'}")
    return member or names[0]


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

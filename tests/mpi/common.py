"""Helpers of the tests of collectives: data, layouts, and plain MPI as the oracle."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine


def few_or_many(few: int, many: int):
    """Parametrize ``count`` with ``few``, and in exhaustive runs with ``many`` as well."""
    longer = (pytest.mark.exhaustive, pytest.mark.timeout(600))
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=longer)])


BF16 = np.dtype(ml_dtypes.bfloat16)
#: NumPy types without a datatype in MPI: Open MPI 4 has no float16.
UNKNOWN = [np.dtype("f2")] * (MPI.Datatype.fromcode("e").handle in (0, MPI.DATATYPE_NULL.handle))
FLOATS = [np.dtype(c) for c in ("f4", "f8", "f2")] + [BF16, np.dtype("c8"), np.dtype("c16")]
INTEGERS = [np.dtype(f"{kind}{n}") for kind in "iu" for n in (1, 2, 4, 8)]
DTYPES = FLOATS + INTEGERS
#: Forms of collectives; Open MPI 4 has no persistent ones.
FORMS = ["blocking", "nonblocking", "persistent"][: 3 if MPI.Get_version() >= (4, 0) else 2]
#: Element counts: zero, one, an odd number, and several chunks of the smallest size.
COUNTS = [0, 1, 1023, 70001]


def data(n: int, dtype, seed: int) -> np.ndarray:
    """Smooth values with some noise, so that every codec has work to do; small enough to be summed."""
    return _data(n, np.dtype(dtype), seed).copy()


@lru_cache(100)
def _data(n: int, dtype: np.dtype, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.sin(np.arange(n) * 0.01 + seed) + 1e-3 * rng.standard_normal(n)
    if dtype.kind in "iu":
        return np.abs(x * 20).astype(dtype)
    if dtype.kind == "c":
        return (x + 1j * x[::-1]).astype(dtype)
    return x.astype(dtype)


def bits(array) -> bytes:
    """Bytes of an array, for comparisons in which NaN and signed zeros count."""
    return np.ascontiguousarray(array).tobytes()


def spec(array: np.ndarray):
    """Argument for plain mpi4py: the array, or its bits if mpi4py or MPI lacks its type."""
    return array.view(np.uint16) if array.dtype == BF16 or array.dtype in UNKNOWN else array


def typed(array: np.ndarray):
    """Argument for compcoll: the array, or a buffer specification if mpi4py or MPI lacks its type."""
    return compcoll.typed(array) if array.dtype == BF16 or array.dtype in UNKNOWN else array


def vspec(array: np.ndarray, counts, displs=None) -> list:
    """Buffer specification with a count and a displacement for each rank."""
    where = counts, offsets(counts) if displs is None else displs
    known = typed(array)
    return [array, where] if known is array else [known[0], where, known[1]]


def complete(comm, method: str, args) -> None:
    """Call a blocking, nonblocking or persistent method, and wait for completion."""
    request = getattr(comm, method)(*args)
    if method.endswith("_init"):
        request.Start()
    if request is not None:
        request.Wait()
    if method.endswith("_init"):
        request.Free()


@contextmanager
def fails(kind: str, match: str | None = None):
    """Assert that the body raises an MPI exception of class ``compcoll.errors.<kind>``, with a given text."""
    with pytest.raises(MPI.Exception, match=match) as caught:
        yield caught
    assert caught.value.Get_error_class() == getattr(compcoll.errors, kind)


class Unhooked:
    """Communicator whose calls the layer does not see, like those of another library."""

    def __init__(self, comm: MPI.Comm):
        self._comm = MPI.Intracomm(comm)

    def __getattr__(self, name: str):
        def call(*args):
            with _engine.plain_calls():
                return getattr(self._comm, name)(*args)

        return call


def offsets(counts, gap: int = 0) -> list[int]:
    """Displacements of blocks with ``gap`` elements between them."""
    return [0, *accumulate(n + gap for n in counts)][: len(counts)]


def uneven(size: int, n: int) -> list[int]:
    """Counts that differ between ranks, some of them zero."""
    return [(0, n, 1, n // 3)[(i + n) % 4] for i in range(size)]


def exact_sum(parts: list[np.ndarray]) -> np.ndarray:
    """Sum of arrays in the widest type, as the reference for floating-point sums."""
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(parts[0].dtype.kind, parts[0].dtype)
    if parts[0].dtype == BF16:
        wide = np.float64
    return (
        np.add.reduce([p.astype(wide) for p in parts])
        if parts[0].dtype.kind not in "iu"
        else sum_wrapped(parts)
    )


def sum_wrapped(parts: list[np.ndarray]) -> np.ndarray:
    """Sum of integer arrays, with wrap-around."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def close_sum(got: np.ndarray, parts: list[np.ndarray], bound: float = 0.0) -> bool:
    """True if a sum is right: bit for bit for integers, to rounding (and a codec's error) for others."""
    want = exact_sum(parts)
    if got.dtype.kind in "iu":
        return bits(got) == bits(want)
    eps = float(ml_dtypes.finfo(got.dtype).eps)
    scale = np.add.reduce([np.abs(p.astype(want.dtype)) for p in parts])
    return bool(np.all(np.abs(got.astype(want.dtype) - want) <= (len(parts) + 1) * eps * scale + 1.5 * bound))


def walk(rank: int, n: int, dtype="f4") -> np.ndarray:
    """Random walk, seeded with the rank."""
    return np.cumsum(np.random.default_rng(rank).standard_normal(n)).astype(dtype)


def same(a, b) -> bool:
    """True if two arrays, in host or device memory, have equal bits."""
    return bits(np.asarray(a)) == bits(np.asarray(b))

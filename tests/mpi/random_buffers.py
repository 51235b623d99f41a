"""Buffers of random programs: values of every type, in every form that mpi4py accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import numpy as np
from common import BF16, DTYPES, UNKNOWN, data, spec
from mpi4py import MPI

from compcoll.comm.buffers import datatype_of

__all__ = ["Blocks", "Buffer", "draw_count", "draw_dtype", "is_known", "mpi_type", "use_devices", "values"]

#: Bytes of the largest message.
LARGEST = 256 << 10
_POOL = 300_000
#: Forms without a datatype, which mpi4py infers, and all others except ``readonly`` and ``bytes``.
_PLAIN = ("array", "offset", "fortran", "matrix", "list", "count")
_TYPED = ("type", "typed", "displ", "vector", "contiguous", "resized", "indexed")
_DEVICES: list = []  # at most one `random_devices.Devices`


def use_devices(devices) -> None:
    """Allocate some buffers in GPU memory from now on (None: no more), except those of plain MPI calls."""
    _DEVICES[:] = [devices] * (devices is not None)


def draw_dtype(rng: np.random.Generator) -> np.dtype:
    """Random type; float32 is more frequent than others."""
    return np.dtype("f4") if rng.random() < 0.25 else DTYPES[rng.integers(len(DTYPES))]


def draw_count(rng: np.random.Generator, dtype: np.dtype, least: int, blocks: int = 1) -> int:
    """Random number of elements: few, about ``least`` bytes, or many.

    ``blocks`` blocks of this size fit into `LARGEST` bytes.
    """
    around = least // dtype.itemsize + int(rng.integers(-2, 3))
    many = int(LARGEST ** rng.uniform(0.4, 1)) // dtype.itemsize
    n = (0, 1, int(rng.integers(2, 200)), around, around, many, many)[rng.integers(7)]
    return max(0, min(n, LARGEST // (dtype.itemsize * blocks)))


def is_known(dtype: np.dtype) -> bool:
    """True if both mpi4py and MPI have the type."""
    return dtype != BF16 and dtype not in UNKNOWN


def mpi_type(dtype: np.dtype, plain: bool = False) -> MPI.Datatype:
    """Datatype of a NumPy type; in a plain call, 16-bit integers stand for a type that MPI lacks."""
    return MPI.UINT16_T if plain and not is_known(dtype) else datatype_of(dtype)


@cache
def _pool(dtype: np.dtype) -> np.ndarray:
    return data(_POOL, dtype, 5)


def values(n: int, dtype: np.dtype, seed: int, kind: str = "smooth") -> np.ndarray:
    """Elements derived from a seed: ``smooth``, ``special`` or ``exact``, whose sums are exact."""
    if kind == "exact":
        return ((np.arange(n) * 3 + seed) % 13).astype(dtype)
    start = seed * 7919 % (_POOL - n)
    found = _pool(dtype)[start : start + n].copy()
    if kind == "special" and n:
        rng = np.random.default_rng(seed)
        where = rng.integers(n, size=n // 50 + 1)
        if dtype.kind in "iu":
            found.view(f"u{dtype.itemsize}")[where] = rng.integers(1 << 8, size=where.size) << (
                8 * dtype.itemsize - 8
            )
        else:
            with np.errstate(over="ignore"):
                odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40]).astype(dtype)
            found[where] = odd[rng.integers(odd.size, size=where.size)]
    return found


class Buffer:
    """Memory of a call, and the argument that describes the part of it in use.

    Parameters
    ----------
    rng : numpy.random.Generator
        Generator of this rank alone: ranks may use different forms.
    n : int
    dtype : numpy.dtype
    plain : bool
        True if the argument must be one that mpi4py accepts, which lacks some types.
    source : callable, optional
        ``source(k)`` returns the elements before the ``k``-th use; a buffer without it is received into.
    blocks : int
        Number of ranks that the elements are for.
    sends : bool
        True if the buffer is only read.
    derived : bool
        True if the type may be a derived one.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        n: int,
        dtype: np.dtype,
        plain: bool,
        source: Callable[[int], np.ndarray] | None = None,
        blocks: int = 1,
        sends: bool = False,
        derived: bool = True,
    ):
        self.dtype, self.source, self.types, self.n_results = dtype, source, [], n
        forms = _PLAIN[: 5 if blocks > 1 else 6] if is_known(dtype) else ()
        forms += _TYPED[: 1 if blocks > 1 else 7 if derived else 3]
        forms += ("readonly",) * (sends and is_known(dtype)) + ("bytes",) * (dtype == np.uint8)
        self.form = str(rng.choice(forms[:1] if n == 0 else forms))
        self._step = next((k for k in (3, 2, 5, 7) if n % k == 0), 1)
        size, self.index = self._place(n)
        self._allocate(size, plain)
        self._shown, self._type = spec(self.base), mpi_type(dtype, plain)
        self.arg = self._argument(n)

    def _allocate(self, size: int, plain: bool) -> None:
        self._on_device = _DEVICES[0].allocate(size, self.dtype) if _DEVICES and not plain else None
        # Values arrive in device memory later, by a stream; results must be there when the call has
        # completed.
        self.base = np.empty(size, self.dtype) if self._on_device is None else self._on_device.layout
        self.fill(0)

    def _place(self, n: int) -> tuple[int, slice | np.ndarray]:
        """Elements in all, and the places of those in use."""
        if self.form in ("offset", "displ"):
            return n + 5, slice(3, 3 + n)
        if self.form == "count":
            return n + 2, slice(0, n)
        if self.form == "vector":
            return n // self._step * (self._step + 1), np.flatnonzero(
                np.arange(n // self._step * (self._step + 1)) % (self._step + 1) < self._step
            )
        if self.form == "resized":
            return 2 * n, slice(0, 2 * n, 2)
        if self.form == "indexed":
            return n + 3, np.r_[0 : n // 2, n // 2 + 3 : n + 3]
        return n, slice(0, n)

    def _argument(self, n: int):
        shown, of, step = self._shown, self._type, self._step
        if self.form == "readonly":
            shown = shown.view()
            shown.flags.writeable = False
            return shown
        if self.form in ("vector", "contiguous", "resized", "indexed"):
            made = {
                "vector": lambda: of.Create_vector(n // step, step, step + 1),
                "contiguous": lambda: of.Create_contiguous(step),
                "resized": lambda: of.Create_resized(0, 2 * of.extent),
                "indexed": lambda: of.Create_indexed([n // 2, n - n // 2], [0, n // 2 + 3]),
            }[self.form]()
            self.types.append(made.Commit())
            return [shown, {"contiguous": n // step, "resized": n}.get(self.form, 1), made]
        return {
            "array": lambda: shown,
            "list": lambda: [shown, None],
            "offset": lambda: shown[3 : 3 + n],
            "fortran": lambda: shown.reshape((step, -1), order="F"),
            "matrix": lambda: shown.reshape(step, -1),
            "count": lambda: [shown, n],
            "type": lambda: [shown, of],
            "typed": lambda: [shown, n, of],
            "displ": lambda: [shown, (n, 3), of],
            "bytes": lambda: memoryview(shown),
        }[self.form]()

    def fill(self, k: int) -> None:
        """Prepare the buffer for its ``k``-th use."""
        base = self.base if self._on_device is None else np.empty_like(self.base)
        base.view(np.uint8)[:] = 0x5A + k
        if self.source is not None:
            base[self.index] = self.source(k)
        if self._on_device is not None:
            self._on_device.device.fill_later(self._on_device, base)

    def put(self, elements: np.ndarray) -> None:
        """Write the results, in place of MPI."""
        base = self._whole()
        whole = base[self.index]
        whole[: self.n_results] = elements
        base[self.index] = whole
        if base is not self.base:
            self._on_device.write(base)

    def _whole(self) -> np.ndarray:
        """The whole memory as it is now: a copy, if it is in a GPU that the host cannot read."""
        return self._on_device.read() if hasattr(self._on_device, "read") else self.base

    def results(self) -> tuple[np.ndarray, bytes]:
        """The elements of the result, and the bytes of all other memory, which no call may change."""
        if self._on_device is not None and not self.n_results:  # then no call has waited for the stream
            self._on_device.device.synchronize()
        base = self._whole()
        rest = base.copy()
        rest[self.index] = np.zeros(1, self.dtype)[0]
        return base[self.index][: self.n_results].copy(), rest.tobytes()

    def free_types(self) -> None:
        """Free the datatypes, which a program may do once a call has begun."""
        while self.types:
            self.types.pop().Free()

    def __str__(self) -> str:
        return f"{np.empty(self.base.size, bool)[self.index].size} {self.dtype} ({self.form})"


class Blocks(Buffer):
    """Buffer with a block for each rank, with counts and displacements in any order."""

    def __init__(
        self,
        rng: np.random.Generator,
        counts: Sequence[int],
        dtype: np.dtype,
        plain: bool,
        source: Callable[[int], np.ndarray] | None = None,
    ):
        self.dtype, self.source, self.types, self.form = dtype, source, [], "blocks"
        self.n_results = sum(counts)
        order, gap = rng.permutation(len(counts)), int(rng.integers(3))
        starts = accumulate((counts[i] + gap for i in order), initial=gap)
        self.displs = [0] * len(counts)
        for i, start in zip(order, starts, strict=False):
            self.displs[i] = start
        self.index = np.concatenate([np.arange(n) + d for n, d in zip(counts, self.displs, strict=True)])
        self._allocate(sum(counts) + gap * (len(counts) + 1), plain)
        shown, self.counts = spec(self.base), list(counts)
        self.arg = [shown, (self.counts, self.displs)]
        if rng.random() < 0.5 or not is_known(dtype):
            self.arg = [shown, self.counts, self.displs, mpi_type(dtype, plain)]

"""Types and reductions of torch in terms of MPI and the layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from compcoll.core import dtypes

__all__ = ["Reduction", "as_real", "datatype_of", "element_of", "reduction"]

#: Names in `compcoll.comm.buffers`, which makes its datatypes after MPI is initialized.
_OWN = {
    torch.bfloat16: "BFLOAT16",
    torch.float16: "FLOAT16",
    torch.float8_e4m3fn: "FLOAT8_E4M3",
    torch.float8_e5m2: "FLOAT8_E5M2",
    torch.complex32: "FLOAT16",
}
_MPI = {
    "SUM": MPI.SUM,
    "AVG": MPI.SUM,
    "PREMUL_SUM": MPI.SUM,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "PRODUCT": MPI.PROD,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
_SUMS = ("SUM", "AVG", "PREMUL_SUM")
#: Sums of booleans are disjunctions, products conjunctions.
_OF_BOOL = {
    **dict.fromkeys(("SUM", "MAX", "BOR"), MPI.MAX),
    **dict.fromkeys(("PRODUCT", "MIN", "BAND"), MPI.MIN),
    "BXOR": MPI.BXOR,
}
#: Types that torch cannot divide.
_UNDIVIDED = frozenset((torch.uint16, torch.uint32, torch.uint64))
_HALVES = frozenset((torch.float16, torch.bfloat16))


@cache
def datatype_of(dtype: torch.dtype) -> tuple[MPI.Datatype, int]:
    """MPI's datatype for an element, and its count per element; bytes for types unknown to MPI."""
    from compcoll.comm import buffers

    if dtype in _OWN:
        return getattr(buffers, _OWN[dtype]), 1 + dtype.is_complex
    if dtype == torch.bool:
        return MPI.UINT8_T, 1
    try:
        return buffers.datatype_of(np.dtype(str(dtype).removeprefix("torch."))), 1
    except TypeError:
        return MPI.BYTE, dtype.itemsize


@cache
def element_of(dtype: torch.dtype) -> np.dtype:
    """NumPy's dtype of an element for codecs; bytes if codecs do not support the type."""
    if dtype == torch.bfloat16:
        return dtypes.BFLOAT16
    try:
        found = np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return np.dtype(np.uint8)
    return found if dtypes.supported(found) else np.dtype(np.uint8)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts in a further dimension, as a view; a tensor of another type itself."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@dataclass(frozen=True)
class Reduction:
    """How values of one type are reduced.

    Attributes
    ----------
    name : str
    op : MPI.Op
    sums : bool
        True for a sum, which may be compressed.
    dtype : torch.dtype
        The type to reduce in: the tensor's own, or a wider one.
    factor : float, torch.Tensor or None
        Factor by which each rank's values are multiplied first.
    averages : bool
        True if the sum is divided by the number of ranks.
    """

    name: str
    op: MPI.Op
    sums: bool
    dtype: torch.dtype
    factor: Any = None
    averages: bool = False

    @property
    def changes_input(self) -> bool:
        """True if `before` changes the input."""
        return self.factor is not None

    def before(self, flat: torch.Tensor) -> None:
        """Multiply a rank's values by the factor, in place."""
        if self.factor is not None:
            as_real(flat).mul_(
                self.factor.to(flat.device) if isinstance(self.factor, torch.Tensor) else self.factor
            )

    def after(self, flat: torch.Tensor, size: int) -> None:
        """Divide the sums by the number of ranks, in place, for an average."""
        if not self.averages:
            return
        if flat.dtype.is_floating_point or flat.dtype.is_complex:
            as_real(flat).div_(size)  # torch has no division of complex32 on the host
        elif flat.dtype in _UNDIVIDED:
            flat.copy_(torch.from_numpy(flat.cpu().numpy() // size))
        else:
            flat.div_(size, rounding_mode="trunc")

    def divide(self, size: int) -> Callable[[torch.Tensor], None] | None:
        """A function that applies `after` to sums of ``size`` ranks; None if it would do nothing."""
        return (lambda flat: self.after(flat, size)) if self.averages else None


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """The reduction of a torch operation for values of a type.

    Raises
    ------
    ValueError
        If there is no such reduction.
    TypeError
        For a type that cannot be reduced.
    """
    kind = getattr(op, "op", op)
    return _reduction(kind.name, dtype, op.factor if kind.name == "PREMUL_SUM" else None)


def _reduction(name: str, dtype: torch.dtype, factor: Any) -> Reduction:
    if name not in _MPI:
        raise ValueError(f"compcoll has no reduction {name}; it has {', '.join(_MPI)}")
    floats = dtype.is_floating_point or dtype.is_complex
    if name in ("BAND", "BOR", "BXOR") and floats:
        raise ValueError(f"{name} is for integers, and the tensor's type is {dtype}")
    if name in ("MIN", "MAX", "PRODUCT") and dtype.is_complex:
        raise ValueError(f"{name} is not for complex numbers, and the tensor's type is {dtype}")
    if dtype == torch.bool:
        if name not in _OF_BOOL:
            raise ValueError(f"{name} is for numbers, and the tensor's type is {dtype}")
        return Reduction(name, _OF_BOOL[name], False, dtype)
    sums, work = name in _SUMS, dtype
    narrow = dtype in _HALVES and not sums
    if narrow or (dtype.is_floating_point and dtype not in _HALVES and dtype.itemsize < 4):
        work = torch.float32
    if work not in _OWN and work != torch.uint8 and element_of(work) == np.dtype(np.uint8):
        raise TypeError(f"values of type {dtype} cannot be reduced")
    return Reduction(name, _MPI[name], sums, work, factor, name == "AVG")

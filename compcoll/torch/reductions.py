"""Torch's reductions, as operations of MPI or sums of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI

__all__ = ["Reduction", "reduction"]

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
#: Sums of truth values are disjunctions, products conjunctions.
_OF_BOOL = {
    **dict.fromkeys(("SUM", "MAX", "BOR"), MPI.MAX),
    **dict.fromkeys(("PRODUCT", "MIN", "BAND"), MPI.MIN),
    "BXOR": MPI.BXOR,
}
#: Types that MPI can reduce; 16-bit floats the engine adds, and others go by way of float32.
_NATIVE = frozenset(
    (
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
    )
)
#: Types that torch does not divide.
_UNDIVIDED = frozenset((torch.uint16, torch.uint32, torch.uint64))
_HALVES = frozenset((torch.float16, torch.bfloat16))


@dataclass(frozen=True)
class Reduction:
    """How values of one type are reduced.

    Attributes
    ----------
    name : str
    native : MPI.Op or None
        None where MPI has no such type, and the engine adds.
    sums : bool
        Whether it is a sum, which may travel compressed.
    dtype : torch.dtype
        The type to reduce in: the type given, or a wider one.
    factor : float, torch.Tensor or None
        Factor that each rank's values are multiplied with first.
    averages : bool
        Whether the sum is divided by the number of ranks.
    """

    name: str
    native: MPI.Op | None
    sums: bool
    dtype: torch.dtype
    factor: Any = None
    averages: bool = False

    @property
    def changes_input(self) -> bool:
        """Whether the values that are reduced are not those given."""
        return self.factor is not None

    def before(self, flat: torch.Tensor) -> None:
        """Prepare a rank's values."""
        if self.factor is not None:
            flat.mul_(self.factor.to(flat.device) if isinstance(self.factor, torch.Tensor) else self.factor)

    def after(self, flat: torch.Tensor, size: int) -> None:
        """Divide the sums of an average."""
        if not self.averages:
            return
        if flat.dtype.is_floating_point or flat.dtype.is_complex:
            flat.div_(size)
        elif flat.dtype in _UNDIVIDED:
            flat.copy_(torch.from_numpy(flat.cpu().numpy() // size))
        else:
            flat.div_(size, rounding_mode="trunc")


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """How torch's operation reduces values of a type.

    Raises
    ------
    ValueError
        Where there is no such reduction.
    """
    kind = getattr(op, "op", op)
    name = kind.name
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
    factor = op.factor if name == "PREMUL_SUM" else None
    sums, averages = name in _SUMS, name == "AVG"
    if dtype in _HALVES and sums:
        return Reduction(name, None, True, dtype, factor, averages)
    work = dtype if dtype in _NATIVE else torch.float32
    if work != dtype and not dtype.is_floating_point:
        raise TypeError(f"values of type {dtype} cannot be reduced")
    return Reduction(name, _MPI[name], sums, work, factor, averages)

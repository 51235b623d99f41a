"""The kernels of csrc/cuda by name: the kernels of each operation of the engine, and a list of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from compcoll.core import _gpu, dtypes

__all__ = [
    "MODULES",
    "SOURCES",
    "Kernel",
    "Use",
    "adders",
    "all_kernels",
    "converters",
    "decoders",
    "encoders",
    "largest",
    "modules",
]

#: Files of csrc/cuda, each one module.
SOURCES = ("frame", "largest", "zfp", "zfp_blocks", "blockscale", "bfp", "szp", "mpc", "float", "raw")
#: Modules that are compiled for inspection, or for a machine with a GPU; bfp has more.
MODULES = (*SOURCES, *(f"bfp-{real}-{bits}" for real in ("f32", "f16", "bf16") for bits in (7, 8, 16, 24)))

#: A codec's name, a type, the words of the header, and the number of dimensions.
Use = tuple[str, np.dtype, tuple[int, int], int]
#: Modules that every use needs, including those of lossless codecs.
_ALWAYS = ("frame", "largest", "raw", "mpc", "float")
_SCALED = ("int8", "int4", "fp8")


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the work of one of its thread blocks.

    Attributes
    ----------
    module : str
        Its file in csrc/cuda; ``bfp-f32-7`` is ``bfp.cu`` for a type and a number of bits.
    name : str
    per_cta : int
        Values (for ``checksum`` and ``seal`` bytes) that a block of threads handles in one go.
    threads : int
        Of a block.
    """

    module: str
    name: str
    per_cta: int
    threads: int


def modules(uses: Iterable[Use]) -> list[str]:
    """The modules with the kernels of these uses of codecs, and those that all uses need."""
    found = dict.fromkeys(_ALWAYS)
    for use in uses:
        found.update(dict.fromkeys(one.module for one in encoders(*use)))
    return list(found)


def encoders(codec: str, dtype: np.dtype, params: tuple[int, int], ndim: int = 1) -> list[Kernel]:
    """The kernels that make a frame, in order; empty if the codec has none."""
    return [Kernel(*one) for one in _gpu.encoders(codec, dtypes.code_of(dtype), params, ndim)]


def decoders(
    codec: str, dtype: np.dtype, params: tuple[int, int], adding: bool, ndim: int = 1
) -> list[Kernel]:
    """The kernels that decode, or decode and add, in order; ``checksum`` where they do not form that."""
    return [Kernel(*one) for one in _gpu.decoders(codec, dtypes.code_of(dtype), params, adding, ndim)]


def adders(codec: str, dtype: np.dtype) -> list[Kernel]:
    """The kernels that add two frames, in order."""
    return [Kernel(*one) for one in _gpu.adders(codec, dtypes.code_of(dtype))]


def converters(source: np.dtype, target: np.dtype) -> list[Kernel]:
    """The kernel between a 16-bit float and float32, either way."""
    return [Kernel(*one) for one in _gpu.converters(dtypes.code_of(source), dtypes.code_of(target))]


def largest(dtype: np.dtype) -> Kernel:
    """The kernel that finds the largest magnitude."""
    return Kernel(*_gpu.largest(dtypes.code_of(dtype))[0])


@cache
def all_kernels() -> list[Kernel]:
    """Every kernel there is."""
    found: dict[Kernel, None] = {}

    def note(kernels: list[Kernel]) -> None:
        found.update(dict.fromkeys(kernels))

    for dtype in sorted(dtypes.FLOATS, key=dtypes.code_of):
        bits = 64 if dtypes.real_dtype(dtype).itemsize == 8 else 32
        sizes = (bits - 1, bits, 2 * bits - 1, 2 * bits, 4 * bits)
        note(encoders("szp", dtype, (0, 1)) + adders("szp", dtype) + [largest(dtype)])
        note(converters(dtype, np.dtype("f4")) + converters(np.dtype("f4"), dtype))
        uses = [("zfp", (maxbits, 0), 1) for maxbits in sizes]
        uses += [("zfp", (9, 0), ndim) for ndim in (2, 3)]
        uses += [(name, (64, 0), 1) for name in (*_SCALED, "bfp", "szp", "float")]
        uses += [("bfp", (bits | 1 << 8, 0), 1) for bits in range(2, 25)]
        for codec, params, ndim in uses:
            note(encoders(codec, dtype, params, ndim))
            for adding in (False, True):
                note(decoders(codec, dtype, params, adding, ndim))
    for dtype in dtypes.CODES:
        for codec in ("mpc", "raw"):
            note(encoders(codec, dtype, (0, 0)))
            for adding in (False, True):
                note(decoders(codec, dtype, (0, 0), adding))
    return list(found)

"""The kernels of csrc/cuda: their names, arguments and launches, for CuPy and for the tests' executor.

A codec on a device is a list of kernels that run one after the other on the same jobs. What has none here
is done by the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from compcoll.core import dtypes

__all__ = [
    "CTA",
    "JOB",
    "MAX_JOBS",
    "RESULT",
    "SOURCES",
    "Kernel",
    "adders",
    "adds",
    "all_kernels",
    "converter",
    "decoders",
    "encoders",
    "fits",
    "largest",
    "modules",
    "sums_up",
]

#: Threads of a block, CC_CTA of csrc/cuda/job.cuh.
CTA = 128

#: struct Job and struct Result of csrc/cuda/job.cuh.
JOB = np.dtype(
    [
        ("src", "<u8"),
        ("dst", "<u8"),
        ("n", "<u8"),
        ("nbytes", "<u8"),
        ("params", "<u8", 2),
        ("result", "<u8"),
        ("scratch", "<u8"),
    ]
)
RESULT = np.dtype(
    [
        ("nbytes", "<i8"),
        ("bound", "<f8"),
        ("bad", "<u4"),
        ("checksum", "<u4"),
        ("extent", "<u8", 3),
        ("params", "<u8", 2),
        ("arrived", "<u4"),
        ("wanted", "<u4"),
        ("unused", "<u8"),
        ("header", "u1", 80),
    ]
)
#: Jobs of one launch: what a grid may have along y.
MAX_JOBS = 65535

#: Files of csrc/cuda, each one module.
SOURCES = ("frame", "largest", "zfp", "zfp_blocks", "blockscale", "bfp", "szp", "mpc", "float", "raw")

_TYPES = {9: "f16", 10: "bf16", 11: "f32", 12: "f64", 13: "f32", 14: "f64"}
#: Arrays of so many bytes and more are left to the CPU: offsets have 32 bits.
LIMIT = 1 << 32
#: Block sizes that have kernels of their own.
_EXACT = {("f32", 32), ("f32", 64), ("f64", 64), ("f16", 32), ("bf16", 32)}
_SCALED = ("int8", "int4", "fp8")
#: Where a codec's kernels are in files of other names.
_MODULES = {**dict.fromkeys(_SCALED, ("blockscale",)), "lossless": ("mpc", "float")}
#: Threads of a block of zfp's kernels in one dimension, each of which needs a table.
_ZFP_THREADS = 512
#: The least that a tile of a look-back takes, in units of the codec (csrc/cuda/scan.cuh).
_TILES = {"mpc": 1 << 14, "szp": 1 << 12, "float": 1 << 12}


@dataclass(frozen=True)
class Kernel:
    """One kernel and how much of a job a block of threads takes.

    Attributes
    ----------
    module : str
        Its file in csrc/cuda.
    name : str
    per_cta : int
        Values (for ``checksum`` and ``seal`` bytes) that a block of threads handles in one go.
    threads : int
        Of a block.
    """

    module: str
    name: str
    per_cta: int
    threads: int = CTA

    def grid(self, size: int, most: int) -> int:
        """Blocks of threads for a job of ``size``, which go on in strides; at most as many threads as
        ``most`` blocks of `CTA` have."""
        return min(max(-(-size // self.per_cta), 1), max(most * CTA // self.threads, 1))


#: Of payloads to decode; and of those that an encoder has made, with the headers in front.
CHECKSUM = Kernel("frame", "checksum", 16 * CTA)
SEAL = Kernel("frame", "seal", 16 * CTA)
#: Copies bytes as they are, also pieces with gaps between them.
COPY = Kernel("raw", "raw_copy", 64 * CTA)


def modules(codecs: Iterable[str]) -> list[str]:
    """The files of csrc/cuda with the kernels of these codecs in one dimension, and of what all need."""
    found = dict.fromkeys(("frame", "largest", "raw"))
    for name in codecs:
        found.update(dict.fromkeys(_MODULES.get(name, (name,) if name in SOURCES else ())))
    return list(found)


def fits(codec: str, dtype: np.dtype, ndim: int, adding: bool = False) -> bool:
    """Whether a device has kernels that decode this, or decode and add."""
    if codec in ("mpc", "raw"):
        return dtype in dtypes.CODES
    return dtype in dtypes.FLOATS and codec in (*_SCALED, "bfp", "szp", "zfp", "float")


def encodes(codec: str, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    """Whether a device has kernels that encode this."""
    return fits(codec, dtype, len(shape)) and math.prod(shape) * dtype.itemsize < LIMIT


def adds(codec: str, dtype: np.dtype) -> bool:
    """Whether a device has kernels that add two frames of this."""
    return codec == "szp" and dtype in dtypes.FLOATS


def units(codec: str, reals: int, nbytes: int) -> int:
    """The size of an array as a codec's kernels take it."""
    return nbytes if codec in ("mpc", "raw") else reals


def scratch_nbytes(codec: str, n: int, words: int = 1) -> int:
    """Zeroed bytes that a job of so many units needs besides: a counter, and so many words for each tile."""
    tile = _TILES.get(codec, 0)
    return 8 + 8 * words * -(-n // tile) if tile else 0


def job_params(
    codec: str, dtype: np.dtype, shape: tuple[int, ...], params: tuple[int, int]
) -> tuple[int, int]:
    """The words of a job: those of the header, and for zfp in 2 and 3 dimensions the two fastest extents."""
    if codec != "zfp" or len(shape) < 2:
        return params
    return params[0], shape[-1] * (2 if dtype.kind == "c" else 1) | shape[-2] << 32


def encoders(codec: str, dtype: np.dtype, params: tuple[int, int], ndim: int = 1) -> list[Kernel]:
    """The kernels that make a frame, in order."""
    if codec == "raw":
        return [COPY, SEAL]
    if codec == "mpc":
        return [_mpc("encode", dtype)]
    kind = _TYPES[dtypes.code_of(dtype)]
    if codec == "zfp" and ndim > 1:
        shares = [f"clear_{ndim}d"] if params[0] % 32 else []
        return [*(_zfp_blocks(name, kind, ndim) for name in (*shares, f"encode_{ndim}d_{kind}")), SEAL]
    if codec == "zfp":
        return [_zfp("encode", kind, params[0])]
    if codec == "float":
        return [_float("encode", kind), SEAL]
    if codec == "szp":
        relative = [Kernel("szp", f"szp_range_{kind}", 16 * CTA)]
        return [*(relative if params[1] else []), _szp("encode", kind)]
    if codec == "bfp":
        return [_bfp("encode", kind)]
    return [_scaled(codec, "encode", kind)]


def decoders(
    codec: str, dtype: np.dtype, params: tuple[int, int], adding: bool, ndim: int = 1
) -> list[Kernel]:
    """The kernels that decode, or decode and add, in order."""
    if codec == "raw":
        return [Kernel("raw", f"raw_decode_add_{_element(dtype)}", 64 * CTA) if adding else COPY]
    if codec == "mpc":
        return [_mpc("decode_add" if adding else "decode", dtype)]
    kind, verb = _TYPES[dtypes.code_of(dtype)], "decode_add" if adding else "decode"
    if codec == "zfp" and ndim > 1:
        return [_zfp_blocks(f"{verb}_{ndim}d_{kind}", kind, ndim)]
    if codec == "zfp":
        return [_zfp(verb, kind, params[0])]
    if codec == "float":
        return [_float(verb, kind)]
    if codec == "szp":
        return [_szp(verb, kind)]
    if codec == "bfp":
        return [_bfp(verb, kind)]
    return [_scaled(codec, verb, kind)]


def sums_up(codec: str, dtype: np.dtype, params: tuple[int, int], ndim: int = 1) -> bool:
    """Whether the kernels that decode form the payload's checksum as well."""
    if codec == "zfp" and ndim < 2:
        return (_TYPES[dtypes.code_of(dtype)], params[0]) in _EXACT
    return codec in (*_SCALED, "bfp")


def converter(source: np.dtype, target: np.dtype) -> Kernel | None:
    """The kernel between a 16-bit float and float32, either way."""
    if target == np.float32 and source.itemsize == 2 and source in dtypes.FLOATS:
        return Kernel("raw", f"raw_widen_{_element(source)}", 4 * CTA)
    if source == np.float32 and target.itemsize == 2 and target in dtypes.FLOATS:
        return Kernel("raw", f"raw_round_{_element(target)}", 4 * CTA)
    return None


def largest(dtype: np.dtype) -> Kernel:
    """The kernel that finds the largest magnitude."""
    return Kernel("largest", f"largest_{_TYPES[dtypes.code_of(dtype)]}", 16 * CTA)


def adders(dtype: np.dtype) -> list[Kernel]:
    """The kernels that add two frames of szp, in order."""
    return [_szp("sum", _TYPES[dtypes.code_of(dtype)])]


def all_kernels() -> list[Kernel]:
    """Every kernel there is."""
    found = {CHECKSUM: None, SEAL: None}
    for dtype in sorted(dtypes.FLOATS, key=dtypes.code_of):
        bits = 64 if _TYPES[dtypes.code_of(dtype)] == "f64" else 32
        sizes = (bits - 1, bits, 2 * bits - 1, 2 * bits, 4 * bits)
        found.update(dict.fromkeys(encoders("szp", dtype, (0, 1)) + adders(dtype)))
        uses = [("zfp", (maxbits, 0)) for maxbits in sizes]
        uses += [(name, (64, 0)) for name in (*_SCALED, "bfp", "szp", "float")]
        for codec, params in uses:
            kernels = encoders(codec, dtype, params)
            kernels += decoders(codec, dtype, params, False) + decoders(codec, dtype, params, True)
            found.update(dict.fromkeys(kernels))
        found[largest(dtype)] = None
        conversions = converter(dtype, np.dtype("f4")), converter(np.dtype("f4"), dtype)
        found.update(dict.fromkeys(filter(None, conversions)))
        for ndim in (2, 3):
            kernels = encoders("zfp", dtype, (9, 0), ndim)
            kernels += [k for adding in (False, True) for k in decoders("zfp", dtype, (9, 0), adding, ndim)]
            found.update(dict.fromkeys(kernels))
    for dtype in dtypes.CODES:
        found.update(dict.fromkeys(_mpc(verb, dtype) for verb in ("encode", "decode", "decode_add")))
        found.update(dict.fromkeys(decoders("raw", dtype, (0, 0), adding)[0] for adding in (False, True)))
    return list(found)


def _zfp_blocks(name: str, kind: str, ndim: int) -> Kernel:
    """A thread has a block; where those of 128 threads do not fit into shared memory, half of them do."""
    threads = CTA // 2 if (kind, ndim) == ("f64", 3) else CTA
    return Kernel("zfp_blocks", f"zfp_{name}", threads * 4**ndim)


def _zfp(verb: str, kind: str, maxbits: int) -> Kernel:
    words = f"{maxbits}bit" if (kind, maxbits) in _EXACT else _words(kind, maxbits)
    return Kernel("zfp", f"zfp_{verb}_{kind}_{words}", 4 * _ZFP_THREADS, _ZFP_THREADS)


def _scaled(codec: str, verb: str, kind: str) -> Kernel:
    """A warp has so many values at a time."""
    return Kernel("blockscale", f"{codec}_{verb}_{kind}", (256 if kind == "f64" else 512) * CTA // 32)


def _bfp(verb: str, kind: str) -> Kernel:
    """A warp has a tile at a time."""
    return Kernel("bfp", f"bfp_{verb}_{kind}", (2048 if kind == "f64" else 1024) * CTA // 32)


def _szp(verb: str, kind: str) -> Kernel:
    return Kernel("szp", f"szp_{verb}_{kind}", _TILES["szp"])


def _float(verb: str, kind: str) -> Kernel:
    values = 1 << (12 if kind == "f64" else 13 if kind == "f32" else 14)
    return Kernel("float", f"float_{verb}_{kind}", values, 256)


def _mpc(verb: str, dtype: np.dtype) -> Kernel:
    bits = 64 if dtypes.real_dtype(dtype).itemsize == 8 else 32
    kind = _element(dtype) if verb == "decode_add" else bits
    return Kernel("mpc", f"mpc_{verb}_{kind}", 512 * bits)


def _element(dtype: np.dtype) -> str:
    """The type in which elements are added."""
    return _TYPES.get(dtypes.code_of(dtype)) or f"i{8 * dtype.itemsize}"


def _words(kind: str, maxbits: int) -> int:
    """Words that hold a block; there is no kernel for 3."""
    words = (maxbits - 1) // (64 if kind == "f64" else 32) + 1
    return 4 if words == 3 else words

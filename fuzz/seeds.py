"""Write the seeds of the fuzzers: headers (harness.h) with sound payloads, and with arrays."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from compcoll import codec
from compcoll.codecs import Codec
from compcoll.core import dtypes

FAMILIES = {
    "zfp": ["zfp:rate=8", "zfp:rate=16"],
    "mpc": ["mpc", "mpc:dim=3"],
    "float": ["float"],
    "lossless": ["raw", "mpc", "float"],
    "szp": ["szp:abs=1e-2", "szp:rel=1e-3"],
    "bfp": ["bfp:bits=6", "bfp:bits=11,dim=3,rounding=stochastic"],
    "blockscale": ["int8:block=32", "int4:block=64", "fp8:block=32"],
}
SHAPES = [(100,), (33,), (8, 7), (5, 4, 4)]
MOST = 4000  # bytes of a payload; the fuzzer's inputs have up to 4096
PARAMS_AS_THEY_ARE, RECONSTRUCT, SLACK_CAPACITY, NOISE, FITTING, DECODE_ADD, ADD = 1, 2, 8, 16, 16, 64, 128


HEADER = struct.Struct("<4B4H2Q")


def header(which: int, dtype: np.dtype, shape: tuple[int, ...], flags: int, params=(0, 0)) -> bytes:
    """The header of harness.h. Its extents are reduced by a modulus that their upper bits choose."""
    shift = {1: 13, 2: 14, 3: 14}[len(shape)]
    limits = {1: [40 << k for k in range(8)], 2: [9 << k for k in range(4)], 3: [5 + 4 * k for k in range(4)]}
    dims = []
    for n in (*shape, *[1] * (3 - len(shape))):
        k = next(k for k, limit in enumerate(limits[len(shape)]) if n < limit)
        dims.append(n | k << shift)
    # The number of dimensions is 1 + ndim % 3.
    fields = (which, dtypes.code_of(dtype), len(shape) - 1, flags, *dims, 7, *params)
    return HEADER.pack(*fields)


def fields(data: bytes) -> tuple[int, int, tuple[int, ...], tuple[int, int], bytes]:
    """What an input of `decode` says: which codec, dtype code, shape, parameters and payload."""
    which, dtype, ndim, _, *dims, _, p0, p1 = HEADER.unpack(data[: HEADER.size].ljust(HEADER.size, b"\0"))
    ndim = 1 + ndim % 3
    if ndim == 1:
        shape = ((dims[0] & 0x1FFF) % (40 << (dims[0] >> 13)),)
    elif ndim == 2:
        shape = tuple((n & 0x3FFF) % (9 << (n >> 14)) for n in dims[:2])
    else:
        shape = tuple((n & 0x3FFF) % (5 + 4 * (n >> 14)) for n in dims)
    return which, dtype & 15, shape, (p0, p1), data[HEADER.size :]


def array(dtype: np.dtype, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Values that a codec has something to do with."""
    n = int(np.prod(shape))
    rng = np.random.default_rng(n)
    values = np.sin(np.arange(2 * n) / 9) * 3 + 1e-3 * rng.standard_normal(2 * n)
    if kind == "constant first":  # chunks of a few bytes, and a long one behind them
        values[: 2 * n - 280] = 1
    if kind == "wide":
        values = rng.standard_normal(2 * n) * 2.0 ** rng.integers(-12, 12, 2 * n)
    if kind == "steps":
        values = np.repeat(np.arange(n // 8 + 1), 16)[: 2 * n].astype(float)
    if dtype.kind == "c":
        return values.astype(dtypes.real_dtype(dtype)).view(dtype)[:n].reshape(shape)
    if dtype.kind in "iu":
        values = np.abs(values * 20)
    return values[:n].astype(dtype).reshape(shape)


def payloads(specs: list[str]) -> Iterator[bytes]:
    """Inputs of the harness `decode`."""
    names = list(dict.fromkeys(codec(spec).name for spec in specs))
    for spec in specs:
        one = codec(spec)
        which = names.index(one.name)
        for i, dtype in enumerate(sorted(one.dtypes, key=dtypes.code_of)):
            shapes = [SHAPES[i % 4] if one.name == "zfp" else SHAPES[i % 2]]
            if one.name in ("mpc", "float"):  # whole blocks, and codes worth their header
                shapes.append((1100,))
            for k, shape in enumerate(shapes):
                yield from payload(one, which, array(dtype, shape, ("smooth", "wide", "steps")[(i + k) % 3]))
        if np.dtype(complex) in one.dtypes:
            yield from payload(one, which, array(np.dtype(complex), (2200,), "constant first"))


def payload(one: Codec, which: int, src: np.ndarray) -> Iterator[bytes]:
    """One input, where the payload exists and is short."""
    out = np.empty(src.nbytes + 4096, np.uint8)
    nbytes, _, params = one.encode_payload(src, out)
    if 0 <= nbytes < MOST:
        flags = PARAMS_AS_THEY_ARE | FITTING
        yield header(which, src.dtype, src.shape, flags, params) + out[:nbytes].tobytes()


def at_levels(seeds: Iterable[bytes]) -> Iterator[bytes]:
    """The seeds, of which one runs at all levels and does everything, and each other one at one level."""
    for i, seed in enumerate(seeds):
        flags = (0, DECODE_ADD, 0, ADD)[i % 4]
        yield bytes([seed[0], seed[1] | i % 16 << 4, seed[2], seed[3] | flags]) + seed[4:]


def arrays() -> Iterator[bytes]:
    """Inputs of `roundtrip` and `damage`, which make a larger array of these bytes by repetition."""
    bound = struct.unpack("<Q", struct.pack("<d", 1e-2))[0]
    for i, dtype in enumerate(sorted(dtypes.CODES, key=dtypes.code_of)):
        for k, shape in enumerate(((300,), (12, 13), (5, 4, 7), (1300,))):
            src = array(dtype, (48,), ("smooth", "wide", "steps")[(i + k) % 3])
            if k == 3 and i % 4:
                continue
            flags = NOISE * (i % 2) | SLACK_CAPACITY * (k % 2) | RECONSTRUCT * (k % 4 < 2)
            # szp takes an absolute bound, or a relative one.
            yield header(k, dtype, shape, flags, (0, bound) if k == 2 else (bound, 0)) + src.tobytes()


def main(folder: Path) -> None:
    inputs = {family: payloads(specs) for family, specs in FAMILIES.items()} | {"arrays": arrays()}
    for name, seeds in inputs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, seed in enumerate(at_levels(seeds)):
            (folder / name / f"{i:02d}").write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Write the seeds of the fuzzers: headers (harness.h) with sound payloads, and with arrays."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from compcoll import codec, dtypes
from compcoll.codecs import Codec

FAMILIES = {
    "zfp": ["zfp:rate=8", "zfp:rate=16"],
    "mpc": ["mpc", "mpc:dim=3"],
    "float": ["float"],
    "lossless": ["raw"],
    "szp": ["szp:abs=1e-2", "szp:rel=1e-3"],
    "blockscale": ["int8:block=32", "int4:block=64", "fp8:block=32"],
}
SHAPES = [(100,), (33,), (8, 7), (5, 4, 4)]
MOST = 2000  # bytes of a payload; the fuzzer's inputs have up to 2048
PARAMS_AS_THEY_ARE, SLACK_CAPACITY, NOISE = 1, 8, 16


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
    return struct.pack("<4B4H2Q", *fields)


def array(dtype: np.dtype, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Values that a codec has something to do with."""
    n = int(np.prod(shape))
    rng = np.random.default_rng(n)
    values = np.sin(np.arange(2 * n) / 9) * 3 + 1e-3 * rng.standard_normal(2 * n)
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
    for spec in specs:
        one = codec(spec)
        which = ("int8", "int4", "fp8").index(one.name) if one.name in ("int8", "int4", "fp8") else 0
        for i, dtype in enumerate(sorted(one.dtypes, key=dtypes.code_of)):
            shapes = [SHAPES[i % 4] if one.name == "zfp" else SHAPES[i % 2]]
            if one.name in ("mpc", "float"):  # whole blocks, and codes worth their header
                shapes.append((1100,))
            for k, shape in enumerate(shapes):
                yield from payload(one, which, array(dtype, shape, ("smooth", "wide", "steps")[(i + k) % 3]))


def payload(one: Codec, which: int, src: np.ndarray) -> Iterator[bytes]:
    """One input, where the payload exists and is short."""
    out = np.empty(src.nbytes + 4096, np.uint8)
    nbytes, _, params = one.encode_payload(src, out)
    if 0 <= nbytes < MOST:
        yield header(which, src.dtype, src.shape, PARAMS_AS_THEY_ARE, params) + out[:nbytes].tobytes()


def arrays() -> Iterator[bytes]:
    """Inputs of `roundtrip` and `damage`, which make a larger array of these bytes by repetition."""
    bound = struct.unpack("<Q", struct.pack("<d", 1e-2))[0]
    for i, dtype in enumerate(sorted(dtypes.CODES, key=dtypes.code_of)):
        for k, shape in enumerate(((1300,), (30, 30), (7, 8, 9))):
            src = array(dtype, (48,), ("smooth", "wide", "steps")[(i + k) % 3])
            flags = NOISE * (i % 2) | SLACK_CAPACITY * (k % 2)
            # szp takes an absolute bound, or a relative one.
            yield header(k, dtype, shape, flags, (0, bound) if k == 2 else (bound, 0)) + src.tobytes()


def main(folder: Path) -> None:
    inputs = {family: list(payloads(specs)) for family, specs in FAMILIES.items()} | {
        "arrays": list(arrays())
    }
    for name, seeds in inputs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, seed in enumerate(seeds):
            (folder / name / f"{i:02d}").write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

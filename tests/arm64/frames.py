"""Hashes of every codec's results for fixed and random arrays, one line each, to compare machines.

A line has the codec, the type, the shape and the kind of an array, then hashes of its frame, of the decoded
values, of an accumulator after adding the frame, and of the sum of two frames if the codec has one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice

import numpy as np

import compcoll
from compcoll.codecs import decoding
from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES, SLACK

SPECS = (
    "raw",
    "lossless",
    "mpc",
    "mpc:dim=3",
    "mpc:dim=32",
    "float",
    "zfp:rate=2.5",
    "zfp:rate=4",
    "zfp:rate=8",
    "zfp:rate=11.3",
    "zfp:rate=16",
    "zfp:rate=32",
    "zfp:rate=48",
    "szp:abs=1e-3",
    "szp:abs=64",
    "szp:rel=1e-4",
    "bfp:bits=5",
    "bfp:bits=12,dim=3",
    "bfp:rel=1e-5,rounding=stochastic,seed=7",
    "int8",
    "int8:block=256",
    "int8:rounding=stochastic,seed=7",
    "int4",
    "int4:block=32",
    "fp8",
    "fp8:block=128,rounding=stochastic,seed=3",
)
SHAPES = ((1,), (63,), (64,), (1021,), (9000,), (1, 1), (5, 67), (40, 33), (3, 4, 5), (13, 17, 19))


def arrays(dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of one type and shape, made of integers and powers of two: equal on every machine."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype.name}{shape}".encode()))
    n = int(np.prod(shape))
    steps = rng.integers(-(2**12), 2**12, (2, n))
    powers = np.ldexp(1.0, rng.integers(-20, 12, (2, n)))
    walk = np.cumsum(steps, axis=1) / 2.0**12
    kinds = {
        "zeros": np.zeros((2, n)),
        "walk": walk,
        "noise": steps / 2.0**12,
        "wild": steps * powers,
        "sparse": np.where(steps > 3500, walk, 0.0),
    }
    for kind, (real, imaginary) in kinds.items():
        values = real + 1j * imaginary if dtype.kind == "c" else real
        # Integers are converted through int64, which wraps around alike everywhere.
        values = values.astype(np.int64) if dtype.kind in "iu" else values
        with np.errstate(over="ignore"):
            yield kind, values.astype(dtype).reshape(shape)
    bits = rng.integers(0, 256, n * dtype.itemsize, np.uint8)
    yield "bits", bits.view(dtype).reshape(shape)


def line(codec: compcoll.Codec, array: np.ndarray) -> str:
    """Hashes of a codec's results for an array."""
    frame = codec.encode(array)
    decoded = compcoll.decode(frame)
    total = np.ones(array.shape, decoding.accumulator_dtype(array.dtype))
    with np.errstate(invalid="ignore", over="ignore"):
        decoding.decode_add(frame, total)
    info, payload, twice = compcoll.inspect(frame), frame[HEADER_NBYTES:], None
    index = _cpu.index(info.codec)
    if _cpu.can_add(index):
        room = np.zeros(info.nbytes + SLACK, np.uint8)
        code, shape = dtypes.code_of(info.dtype), info.shape or (1,)
        twice = room[: max(_cpu.add(index, code, shape, info.params, payload, payload, room)[0], 0)]
    hashes = (sha256(np.ascontiguousarray(one)) for one in (frame, decoded, total, twice) if one is not None)
    return " ".join(one.hexdigest()[:16] for one in hashes)


def main() -> None:
    for dtype in dtypes.CODES:
        for spec in SPECS:
            codec = compcoll.codec(spec)
            wide = dtypes.real_dtype(dtype).itemsize == 8
            if dtype not in codec.dtypes or (spec == "zfp:rate=48" and not wide):
                continue
            for i, shape in enumerate(SHAPES):  # two kinds each, so that every kind has three shapes
                for kind, array in islice(arrays(dtype, shape), i % 3, None, 3):
                    print(spec, dtype.name, shape, kind, line(codec, array))
    print("checksum", _cpu.checksum(np.arange(100_003, dtype=np.uint32).view(np.uint8)))


if __name__ == "__main__":
    main()

"""Speeds of one core of this machine: a codec, and a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import process_time

import numpy as np

from compcoll.codecs import codec, decode
from compcoll.frame import HEADER_NBYTES, SLACK

from ..osu.data import source

__all__ = ["CoreSpeed", "measure_core"]

#: Bytes of the array that is coded, as in `benchmarks.codecs`, of a chunk, and of the array that is copied.
_NBYTES, _CHUNK_NBYTES, _COPIED, _REPEATS = 4 << 20, 256 << 10, 32 << 20, 25


@dataclass(frozen=True)
class CoreSpeed:
    """Speeds of one core.

    Attributes
    ----------
    encode, decode : float
        Uncompressed bytes per second.
    memory : float
        Bytes per second that a copy reads and writes.
    ratio : float
        Uncompressed bytes per compressed byte.
    """

    encode: float
    decode: float
    memory: float
    ratio: float


def measure_core(spec: str) -> CoreSpeed:
    """Measure a codec on the benchmarks' noisy sine, in the chunks of a message; it takes a second or two."""
    coder, array = codec(spec), source(None, None, 0)(_NBYTES // 4)
    chunks = np.split(array, _NBYTES // _CHUNK_NBYTES)
    values, space = np.empty_like(array), np.empty(_CHUNK_NBYTES + HEADER_NBYTES + SLACK, np.uint8)
    decoded = np.split(values, len(chunks))
    frames = [coder.encode(chunk) for chunk in chunks]
    large = np.ones(_COPIED, np.uint8)
    copied = np.empty_like(large)
    encode, decoding, copy = _least_seconds(
        lambda: [coder.encode(chunk, space) for chunk in chunks],
        lambda: [decode(*pair) for pair in zip(frames, decoded, strict=True)],
        lambda: np.copyto(copied, large),
    )
    ratio = array.nbytes / sum(frame.nbytes for frame in frames)
    return CoreSpeed(array.nbytes / encode, array.nbytes / decoding, 2 * large.nbytes / copy, ratio)


def _least_seconds(*works: Callable[[], object]) -> list[float]:
    """Least processor time of each, in turns."""
    best = [inf] * len(works)
    for _ in range(_REPEATS):
        for i, work in enumerate(works):
            start = process_time()
            work()
            best[i] = min(best[i], process_time() - start)
    return best

"""Speed and ratio of codecs: measured on a call's values, or careful figures that need no measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from time import perf_counter

import numpy as np

from compcoll.codecs import Codec, decode
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES, SLACK
from compcoll.operations import OPERATIONS

__all__ = [
    "SAMPLE_NBYTES",
    "CodecSpeed",
    "Coding",
    "careful_speed",
    "coded_seconds",
    "coding_of",
    "measure_speed",
    "message_seconds",
    "overlapped",
    "rank_nbytes",
    "wire_nbytes",
]

#: Bytes of a sample, and number of times that it is coded.
SAMPLE_NBYTES, _REPEATS = 64 << 10, 3
#: Fraction of coding, or of the wire time if that is shorter, that the other cannot hide at best.
ALONE = 0.25
#: Seconds that a byte takes from memory to the cache: samples are coded in the cache.
MEMORY = 1e-10


@dataclass(frozen=True)
class CodecSpeed:
    """One codec on one kind of values.

    Attributes
    ----------
    encode, decode : float
        Seconds for each uncompressed byte, on one core.
    share : float
        Bytes of frames for each uncompressed byte.
    """

    encode: float
    decode: float
    share: float


@dataclass(frozen=True)
class Coding:
    """Bytes that a rank encodes and decodes in a call, and the cores that it has for this."""

    encoded: float
    decoded: float
    cores: int = 1

    def seconds(self, encode: float, decode: float) -> float:
        """Seconds of coding at these seconds for each byte."""
        return (self.encoded * encode + self.decoded * decode) / self.cores


def rank_nbytes(op: str, nbytes: int, size: int) -> int:
    """Bytes of the larger buffer of a rank in a collective of messages of ``nbytes`` among ``size`` ranks."""
    operation = OPERATIONS[op]
    return nbytes * size if operation.shares_out or operation.recv.many else nbytes


def coding_of(op: str, nbytes: int, size: int, cores: int) -> Coding:
    """Bytes that the busiest rank codes in a collective of messages of ``nbytes`` among ``size`` ranks."""
    operation, others = OPERATIONS[op], (size - 1) * nbytes
    if operation.root == "send" and not operation.shares_out:  # the root encodes while the others decode
        return Coding(nbytes / 2, nbytes / 2, cores)
    if operation.root:
        return Coding(others, 0, cores) if operation.root == "send" else Coding(0, others, cores)
    if operation.replicates and not operation.reduces:
        return Coding(nbytes, others, cores)
    passes = 1 + operation.replicates  # a sum is formed, and then goes to all
    return Coding(passes * others, passes * others, cores)


def wire_nbytes(op: str, nbytes: int, size: int, ranks_per_node: int) -> int:
    """Bytes that cross a node's port in a collective of messages of ``nbytes``, whatever the algorithm."""
    operation, others = OPERATIONS[op], max(size - ranks_per_node, 0)
    if operation.root == "send" and not operation.shares_out:
        return nbytes if others else 0
    if operation.replicates or operation.reduces:
        # In a sum on all ranks, a node sends its part of the sum and its sums of the other nodes' parts.
        return others * nbytes * (1 + (operation.reduces and operation.replicates))
    return others * nbytes * ranks_per_node


def measure_speed(codec: Codec, block: np.ndarray) -> CodecSpeed:
    """Encode and decode a sample of values, in a millisecond or two."""
    n = min(block.size, SAMPLE_NBYTES // block.itemsize)
    start = (block.size - n) // 2
    sample = np.ascontiguousarray(block[start : start + n])
    values, room = np.empty_like(sample), np.empty(sample.nbytes + HEADER_NBYTES + SLACK, np.uint8)
    frame = codec.encode(sample, room)
    return CodecSpeed(
        _least_seconds(lambda: codec.encode(sample, room)) / sample.nbytes,
        _least_seconds(lambda: decode(frame, values)) / sample.nbytes,
        frame.nbytes / sample.nbytes,
    )


def _least_seconds(work: Callable[[], object]) -> float:
    best = inf
    for _ in range(_REPEATS):
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best


@lru_cache(maxsize=256)
def careful_speed(codec: Codec, dtype: np.dtype) -> CodecSpeed:
    """Figures of a codec that all ranks know without communication; dtype is real."""
    if codec.lossless:
        is_half = dtype in dtypes.FLOATS and dtype.itemsize == 2
        return CodecSpeed(1e-9, 0.7e-9, 1 / (1.4 if is_half else 1.15))
    # The ratio on noise is equal on all ranks; a measured time would not be.
    noise = np.random.default_rng(0).standard_normal(1 << 14).astype(dtype)
    encode, decode = codec.careful_speed
    return CodecSpeed(1 / encode, 1 / decode, codec.encode(noise).nbytes / noise.nbytes)


def overlapped(coding: float, wire: float) -> float:
    """Predict the seconds of a compressed call from those of its coding and of its bytes on the wire."""
    return max(coding, wire) + ALONE * min(coding, wire)


def coded_seconds(plain: float, coding: Coding, speed: CodecSpeed) -> float:
    """Predict the seconds of a compressed call from those of a plain one, without waits for late ranks.

    Bytes on the wire take as long as plain MPI's, which seldom reaches the link's speed.
    """
    return overlapped(coding.seconds(speed.encode + MEMORY, speed.decode + MEMORY), plain * speed.share)


def message_seconds(nbytes: int, byte: float, speed: CodecSpeed, chunks: float) -> float:
    """Predict the seconds of a compressed message whose chunks are encoded, sent and decoded in parallel.

    The slowest of the three counts in full, and the others for one chunk each.

    Parameters
    ----------
    nbytes : int
    byte : float
        Seconds that a byte takes on the link.
    speed : CodecSpeed
    chunks : float
        How many there are.
    """
    stages = sorted((nbytes * speed.encode, nbytes * speed.decode, nbytes * byte * speed.share))
    return stages[2] + (stages[0] + stages[1]) / max(chunks, 1.0)

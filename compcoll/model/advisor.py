"""Decisions from predictions: codec or not, which algorithm, which chunk size.

A decision is a function of the call and of a machine's profile that all ranks share, so it is the same on
all of them. It is made once per operation, type, codec and size class, and then looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log2
from time import perf_counter

import numpy as np

from compcoll.codecs import Codec
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode_into
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES, inspect
from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call, predict
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.operations import ALGORITHMS, algorithm_name, runs_on
from compcoll.policy.choices import MESSAGE_NBYTES

__all__ = ["Advice", "Option", "advise", "expected_speed", "measure_speed", "size_class"]

CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20)
#: Chunks of recursive halving: what a rank sends in a round before parts are exchanged as a whole.
SENT_IN_A_ROUND = (64 << 10, 256 << 10)
#: A prediction has to promise this much less than plain MPI's time: models err, and a loss is worse than
#: a gain that was not taken.
MARGIN = 0.85
SAMPLE_NBYTES = 256 << 10


@dataclass(frozen=True)
class Option:
    """One way to carry out a call.

    Attributes
    ----------
    algorithm : str
        ``"mpi"``: plain MPI.
    chunk_nbytes : int
    seconds : float
        As predicted.
    levels : int
        2 inside nodes and among them, else 1.
    """

    algorithm: str
    chunk_nbytes: int
    seconds: float
    levels: int = 1

    @property
    def name(self) -> str:
        """The algorithm as reports have it."""
        return algorithm_name(self.algorithm, self.levels)


@dataclass(frozen=True)
class Advice:
    """The best compressed way to carry out a call, plain MPI, and everything that was compared."""

    best: Option
    plain: Option
    options: tuple[Option, ...]

    @property
    def pays(self) -> bool:
        """Whether compression is predicted to save time, with some margin."""
        return self.best.seconds < MARGIN * self.plain.seconds

    @property
    def reason(self) -> str:
        """The comparison in words."""
        return (
            f"predicted {1e3 * self.best.seconds:.3g} ms, plain MPI {1e3 * self.plain.seconds:.3g} ms; "
            f"compression is used below {MARGIN:.2f} of that"
        )


def advise(
    call: Call,
    machine: MachineProfile,
    speed: CodecSpeed,
    algorithm: str | None = None,
    can_add: bool = False,
    levels: int | None = None,
    limit: float = inf,
) -> Advice:
    """Compare the ways to carry out a call.

    Parameters
    ----------
    call : Call
    machine : MachineProfile
    speed : CodecSpeed
    algorithm : str, optional
        Only this one; all that the operation has otherwise.
    can_add : bool
        Whether the codec's frames can be summed without decoding.
    levels : int, optional
        Only so many; 1 and 2 otherwise, where the operation has them.
    limit : float
        Seconds after which no further way is looked at: those come first whose chunks are of a middle size.
    """
    until = perf_counter() + limit
    names = (algorithm,) if algorithm else _algorithms(call, can_add)
    fitting = [chunk for chunk in CHUNKS if chunk <= MESSAGE_NBYTES * max(speed.ratio, 1.0)]
    sizes = [s for s in fitting if s < call.nbytes <= 256 * s] or fitting[-1:]

    ways = [
        (abs(2 * i - len(chunks)), level, name, chunk)
        for level in ((levels,) if levels else call.levels)
        for name in names
        if level == 1 or name != "recursive_doubling"
        for chunks in (SENT_IN_A_ROUND if name == "recursive_halving" else sizes,)
        for i, chunk in enumerate(chunks)
    ]
    options: list[Option] = []
    for _, level, name, chunk in sorted(ways, key=lambda way: way[0]):
        if not options or perf_counter() < until:
            seconds = _predict(call, machine, speed, name, chunk, level)
            options.append(Option(name, chunk, seconds, level))
    plain = plain_seconds(call, machine, _algorithms(call, False), _predict)
    best = min(options, key=lambda option: option.seconds)
    return Advice(best, Option("mpi", call.nbytes, plain), tuple(options))


def _algorithms(call: Call, can_add: bool) -> tuple[str, ...]:
    names = [name for name in ALGORITHMS[call.op] if runs_on(name, call.size)]
    if "compressed" in names and not can_add:
        names.remove("compressed")
    return tuple(names)


#: A decision takes a few hundred milliseconds, or seconds for 1 GiB among nodes of many ranks: beyond so many
#: chunks, and so many ranks, a prediction is drawn out from those for half as many and as many.
MOST_CHUNKS, MOST_RANKS = 8, 64
#: Chunks until pipelines are in their stride.
MOST_IN_PIPELINE = 64
#: Bytes on all ranks together of which recursive halving is predicted as it is.
MOST_HALVED = 16 << 20


def _predict(
    call: Call, machine: MachineProfile, speed: CodecSpeed, algorithm: str, chunk_nbytes: int, levels: int = 1
) -> float:
    """`predict`, drawn out where that takes too long."""

    def seconds(call: Call) -> float:
        return predict(call, machine, speed, algorithm, chunk_nbytes, levels)

    most = max(MOST_RANKS, call.size if call.on_one_node else 4 * call.ranks_per_node)
    few = replace(call, size=min(call.size, most))
    if algorithm in ("chain", "tree"):  # the last chunk comes as long after the first wherever it goes
        farther = 0.0
        if call.size > most:
            one = replace(call, nbytes=min(call.nbytes, chunk_nbytes))
            twice = seconds(replace(one, size=2 * most)) - seconds(replace(one, size=most))
            farther = twice * ((call.size - most) / most if algorithm == "chain" else log2(call.size / most))
        return farther + _for_chunks(few, seconds, chunk_nbytes, MOST_IN_PIPELINE)
    if algorithm == "recursive_halving":  # few operations on however many ranks
        part = MOST_HALVED // (MOST_CHUNKS * call.size)
        return _for_chunks(call, seconds, max(part, 1), MOST_CHUNKS)
    large = _for_chunks(few, seconds, chunk_nbytes, MOST_CHUNKS)
    if call.size <= most:
        return large
    small = _for_chunks(replace(call, size=most // 2), seconds, chunk_nbytes, MOST_CHUNKS)
    return large + (large - small) * 2 * (call.size - most) / most


def _for_chunks(call: Call, seconds: Callable[[Call], float], chunk_nbytes: int, most: int) -> float:
    chunks = call.nbytes / chunk_nbytes
    if chunks <= most:
        return seconds(call)
    small, large = (seconds(replace(call, nbytes=n * chunk_nbytes)) for n in (most // 2, most))
    return large + (large - small) * (chunks - most) / (most // 2)


def size_class(nbytes: int) -> int:
    """A size rounded down to an eighth of a power of two: calls of one class are decided together."""
    shift = max(nbytes.bit_length() - 4, 0)
    return nbytes >> shift << shift


def measure_speed(codec: Codec, block: np.ndarray) -> CodecSpeed:
    """Encode and decode a sample of a block; its speed and ratio on this rank."""
    n = min(block.size, SAMPLE_NBYTES // block.itemsize)
    start = (block.size - n) // 2
    sample = np.ascontiguousarray(block[start : start + n])
    values, room = np.empty_like(sample), np.empty(sample.nbytes + HEADER_NBYTES + SLACK, np.uint8)
    frame = codec.encode_into(sample, room)
    info = inspect(frame)
    encode = _least_seconds(lambda: codec.encode_into(sample, room))
    decode = _least_seconds(lambda: decode_into(frame, info, values))
    return CodecSpeed(
        sample.nbytes / encode,
        sample.nbytes / decode,
        sample.nbytes / frame.nbytes,
        inf if codec.lossless else _reconstruct_speed(codec, sample, values, room),
    )


def _reconstruct_speed(codec: Codec, sample: np.ndarray, values: np.ndarray, room: np.ndarray) -> float:
    """Speed of encoding that gives the decoded values too; 0 where they are not had so."""
    _, known = codec.reconstruct_into(sample, room, values)
    if not known:
        return 0.0
    return sample.nbytes / _least_seconds(lambda: codec.reconstruct_into(sample, room, values))


def _least_seconds(work: Callable[[], object]) -> float:
    best = inf
    for _ in range(4):
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best


def expected_speed(codec: Codec, dtype: np.dtype, machine: MachineProfile) -> CodecSpeed:
    """Expected figures of a codec that cannot be measured: the profile's, else careful ones.

    A codec that was measured with other parameters has the least of their speeds.
    """
    dtype = dtypes.real_dtype(dtype)  # complex values are pairs of real ones
    known = machine.codec(codec.spec, str(dtype))
    if known is not None:
        return known
    similar = machine.similar(codec.name, str(dtype))
    if codec.lossless:
        return similar or CodecSpeed(
            1e9, 1.5e9, 1.4 if dtype in dtypes.FLOATS and dtype.itemsize == 2 else 1.15
        )
    # Its ratio on noise, which is the same on all ranks; no time that one of them measured.
    noise = np.random.default_rng(0).standard_normal(1 << 14).astype(dtype)
    encode, decode, reconstruct = codec.careful_speed
    if similar is not None:
        encode, decode, reconstruct = similar.encode, similar.decode, similar.reconstruct
    return CodecSpeed(encode, decode, noise.nbytes / codec.encode(noise).nbytes, reconstruct)

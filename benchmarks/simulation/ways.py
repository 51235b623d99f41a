"""Quick comparison of the ways to carry out a collective: algorithms, chunk sizes, levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2

from compcoll.algorithms.bcast import ARITY
from compcoll.operations import ALGORITHMS, algorithm_name, runs_on
from compcoll.policy.choices import FRAME_NBYTES

from .predict import Collective, predict
from .virtual import Profile

__all__ = ["Way", "quick_look"]

CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20)
#: Chunk sizes of recursive halving: bytes that a rank sends in a round before parts are exchanged as a whole.
SENT_IN_A_ROUND = (64 << 10, 256 << 10)
#: Limits on simulated chunks and ranks. Beyond a limit, a prediction is extrapolated from simulations at the
#: limit and at half of it.
MOST_CHUNKS, MOST_RANKS = 8, 64
#: Limit on simulated chunks of a pipeline, which needs more to reach its steady state.
MOST_IN_PIPELINE = 64
#: Bytes on all ranks together up to which recursive halving is simulated without extrapolation.
MOST_HALVED = 16 << 20


@dataclass(frozen=True)
class Way:
    """One way to carry out a call.

    Attributes
    ----------
    algorithm : str
    chunk_nbytes : int
    levels : int
        2 for an algorithm inside nodes and among them, else 1.
    """

    algorithm: str
    chunk_nbytes: int
    levels: int = 1

    @property
    def name(self) -> str:
        """Name of the algorithm in reports."""
        return algorithm_name(self.algorithm, self.levels)

    def seconds(self, call: Collective, profile: Profile) -> float:
        """Predicted seconds of a call."""
        return predict(call, profile, self.algorithm, self.chunk_nbytes, self.levels)


def quick_look(call: Collective, profile: Profile) -> dict[Way, float]:
    """Compare the ways to carry out a call with a codec whose frames cannot be added.

    Parameters
    ----------
    call : Collective
    profile : Profile

    Returns
    -------
    dict of Way to float
        Seconds of each way, extrapolated from smaller simulations if chunks or ranks are many.
    """
    fitting = [chunk for chunk in CHUNKS if chunk <= FRAME_NBYTES * max(profile.ratio, 1.0)]
    sizes = [s for s in fitting if s < call.nbytes <= 256 * s] or fitting[-1:]
    ways = [
        Way(name, chunk, level)
        for level in call.levels
        for name in ALGORITHMS[call.op]
        if name != "compressed" and runs_on(name, call.size)
        if level == 1 or name != "recursive_doubling"
        for chunk in (SENT_IN_A_ROUND if name == "recursive_halving" else sizes)
    ]
    return {way: drawn_out(call, profile, way) for way in ways}


def drawn_out(call: Collective, profile: Profile, way: Way) -> float:
    """Seconds of a call, extrapolated from fewer ranks and chunks if there are many."""

    def seconds(call: Collective) -> float:
        return way.seconds(call, profile)

    most = max(MOST_RANKS, call.size if call.on_one_node else 4 * call.ranks_per_node)
    few = replace(call, size=min(call.size, most))
    if way.algorithm in ARITY:  # the first and the last chunk arrive equally far apart on every rank
        farther = 0.0
        if call.size > most:
            one = replace(call, nbytes=min(call.nbytes, way.chunk_nbytes))
            twice = seconds(replace(one, size=2 * most)) - seconds(replace(one, size=most))
            times = call.size / most
            farther = twice * (times - 1 if way.algorithm == "chain" else log2(times))
        return farther + _for_chunks(few, seconds, way.chunk_nbytes, MOST_IN_PIPELINE)
    if way.algorithm == "recursive_halving":  # few operations for any number of ranks
        part = MOST_HALVED // (MOST_CHUNKS * call.size)
        return _for_chunks(call, seconds, max(part, 1), MOST_CHUNKS)
    large = _for_chunks(few, seconds, way.chunk_nbytes, MOST_CHUNKS)
    if call.size <= most:
        return large
    small = _for_chunks(replace(call, size=most // 2), seconds, way.chunk_nbytes, MOST_CHUNKS)
    return large + (large - small) * 2 * (call.size - most) / most


def _for_chunks(
    call: Collective, seconds: Callable[[Collective], float], chunk_nbytes: int, most: int
) -> float:
    chunks = call.nbytes / chunk_nbytes
    if chunks <= most:
        return seconds(call)
    small, large = (seconds(replace(call, nbytes=n * chunk_nbytes)) for n in (most // 2, most))
    return large + (large - small) * (chunks - most) / (most // 2)

"""Pairs of blocks of calls, which a trial measures, and the outcome that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from compcoll.core._cpu import TrialWindow

__all__ = ["GAIN", "MOST_SPREAD", "Agree", "Figures", "Known", "Pair", "mean_in_call", "median", "outcome"]

#: Compression has to take less than this fraction of plain MPI's time, in three of four pairs.
GAIN = 0.95
#: Largest relative difference between pairs; above it the machine is busy, and the result is not kept.
MOST_SPREAD = 0.5
#: Relative difference that the ratio of later calls may have from the trial's.
RATIO = 0.15

#: Seconds of a compressed and of a plain call from start to start, the same within calls, and wire fraction.
Figures = tuple[float, float, float, float, float]
#: Function that returns the largest of each figure over the ranks; collective.
Agree = Callable[[Sequence[float]], list[float]]


@dataclass(frozen=True)
class Known:
    """Outcome of a trial.

    Attributes
    ----------
    compress : bool
    seconds : tuple of float
        Times of a compressed and of a plain call, from start to start, on the slowest rank.
    in_call : tuple of float
        Times within the calls.
    share : float
        Bytes on the wire as a fraction of the uncompressed bytes.
    pairs : tuple of int
        Number of counted pairs, and number of these that compression won.
    spread : float
        Relative difference between the pairs.
    source : str
        Source of the outcome, for reasons.
    """

    compress: bool
    seconds: tuple[float, float] = (inf, inf)
    in_call: tuple[float, float] = (inf, inf)
    share: float = 1.0
    pairs: tuple[int, int] = (0, 0)
    spread: float = 0.0
    source: str = "a trial"

    @property
    def reason(self) -> str:
        """The comparison in words."""
        if not self.pairs[0]:
            return self.source
        compressed, plain = (1e3 * x for x in self.seconds)
        n, won = self.pairs
        return (
            f"measured {compressed:.3g} ms from call to call, plain MPI {plain:.3g} ms, ratio of bytes "
            f"{1 / self.share:.2f}, {won} of {n} pairs ({self.source}"
            f"{', on a busy machine' if self.spread > MOST_SPREAD else ''}); compression is used below "
            f"{GAIN:.2f} of plain MPI's time"
        )

    def with_figures(self, seconds: float, share: float) -> Known:
        """The outcome, completed by the time of its way within calls and by its wire fraction."""
        if isfinite(self.in_call[not self.compress]):
            return self
        in_call = (seconds, inf) if self.compress else (inf, seconds)
        return replace(self, in_call=in_call, share=share or 1.0)

    def differs(self, seconds: float, share: float, limit: float) -> bool:
        """True if calls of its way have become slower or faster by a factor, or the ratio has changed.

        Compressed calls may become slower as long as plain ones were slower still.
        """
        compressed, plain = self.in_call
        before = compressed if self.compress else plain
        is_quicker = 0 < limit * seconds < before
        is_slower = seconds > limit * before > 0
        if self.compress and isfinite(plain):
            is_slower = is_slower and seconds > GAIN * plain
        return (
            is_quicker or is_slower or (self.compress and share > 0 and abs(share / self.share - 1) > RATIO)
        )


@dataclass
class Pair:
    """A block of calls each way: seconds from start to start, seconds in calls, and wire fraction."""

    taken: dict[bool, float] = field(default_factory=dict)
    in_call: dict[bool, float] = field(default_factory=dict)
    share: float = 0.0

    @property
    def part(self) -> float:
        """Compressed time as a part of plain time; infinite if one is not known."""
        plain = self.taken[False]
        return self.taken[True] / plain if 0 < plain < inf else inf

    def add(self, way: bool, window: TrialWindow, began: float) -> None:
        """Add a block, before the call that began then."""
        self.taken[way] = (began - window.since) / (window.calls - window.skip) if window.since else inf
        self.in_call[way] = mean_in_call(window)
        if way and window.raw_nbytes:
            self.share = window.wire_nbytes / window.raw_nbytes

    @property
    def figures(self) -> Figures:
        """The figures of both blocks."""
        return self.taken[True], self.taken[False], self.in_call[True], self.in_call[False], self.share

    @classmethod
    def of(cls, figures: Sequence[float]) -> Pair:
        """Make the pair that has these figures."""
        *times, share = figures
        return cls({True: times[0], False: times[1]}, {True: times[2], False: times[3]}, share)


def mean_in_call(window: TrialWindow) -> float:
    """Mean seconds of a measured call."""
    return window.seconds / max(window.calls - window.skip, 1)


def outcome(compress: bool, pairs: list[Pair], won: int, source: str) -> Known:
    """The outcome of a trial whose counted pairs are these."""

    def middle(of: Callable[[Pair], float]) -> float:
        return median([of(pair) for pair in pairs])

    parts = [pair.part for pair in pairs]
    usual = median(parts)
    return Known(
        compress,
        (middle(lambda pair: pair.taken[True]), middle(lambda pair: pair.taken[False])),
        (middle(lambda pair: pair.in_call[True]), middle(lambda pair: pair.in_call[False])),
        middle(lambda pair: pair.share) or 1.0,
        (len(parts), won),
        (max(parts) - min(parts)) / usual if 0 < usual < inf else inf,
        source,
    )


def median(values: Sequence[float]) -> float:
    """The middle of some values; the mean of the two in the middle."""
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2

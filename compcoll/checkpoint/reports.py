"""Results of saving and loading."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["Checkpoint", "SaveReport"]


@dataclass(frozen=True, slots=True)
class SaveReport:
    """Sizes and times of one save, of this rank.

    Attributes
    ----------
    step : int
    whole : bool
        True if this set has the values themselves, false if it has differences from another set's.
    raw_nbytes, nbytes : int
        Bytes of this rank's arrays, and of its file.
    partner : int or None
        The rank that has a copy of the file.
    seconds : dict of str to float
        Times of ``encode``, ``exchange`` with partners, ``write``, and ``total``, without flushing.
    """

    step: int
    whole: bool
    raw_nbytes: int
    nbytes: int
    partner: int | None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Bytes of the arrays per byte of the file."""
        return self.raw_nbytes / self.nbytes

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in self.seconds.items())
        how = "whole" if self.whole else "differences"
        return (
            f"step {self.step}: {how}, {self.raw_nbytes} -> {self.nbytes} bytes ({self.ratio:.2f}x); {times}"
        )


@dataclass(frozen=True)
class Checkpoint:
    """Arrays of one complete set, as this rank loaded them.

    Attributes
    ----------
    step : int
    arrays : dict of str to numpy.ndarray
    ranks : int
        Number of ranks that have saved it.
    rebuilt : bool
        True if files of this rank were missing or damaged, and were written again.
    passed_over : tuple of str
        Newer sets that are not complete, with the reasons.
    """

    step: int
    arrays: dict[str, np.ndarray]
    ranks: int
    rebuilt: bool
    passed_over: tuple[str, ...] = ()

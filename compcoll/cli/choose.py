"""The cheapest spec of each codec that keeps an error, for ``compcoll codec``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

import compcoll
from compcoll.cli.measure import Measurement, Subject
from compcoll.codecs import bfp, szp
from compcoll.codecs.registry import codec_class
from compcoll.codecs.specs import takes
from compcoll.core import dtypes

__all__ = ["DECIBELS", "Goal", "Ladder", "curve", "ladders", "sample", "search", "sorted_by_cost"]

#: PSNRs between which codecs are drawn.
DECIBELS = (50.0, 100.0)

#: Bounds of `szp` to try in an octave, and octaves below the largest magnitude: as many as float64 has bits.
_STEPS, _OCTAVES = 16, 53
#: Number of a ladder's specs in a curve.
_POINTS = 12
#: Slabs of a sample.
_SLABS = 16


@dataclass(frozen=True)
class Goal:
    """Limits of an error.

    Attributes
    ----------
    error : float
        Largest absolute error of any finite value; other values have to keep their bits.
    snr : float
        Least signal-to-noise ratio in dB.
    """

    error: float = inf
    snr: float = -inf

    def is_met(self, found: Measurement) -> bool:
        return found.max_error <= self.error and found.snr >= self.snr

    def __str__(self) -> str:
        error = f"error at most {self.error:.4g}" if self.error < inf else ""
        snr = f"SNR at least {self.snr:g} dB" if self.snr > -inf else ""
        return ", ".join(filter(None, (error, snr)))


class Ladder(NamedTuple):
    """Specs of one codec from coarse to fine; the first that keeps a goal is the cheapest.

    Blocks have the array's two or three dimensions if ``shaped``, else they are values in a row.
    """

    label: str
    specs: Sequence[str]
    shaped: bool = False


def search(
    ladder: Ladder, sample: Subject, array: Subject, goal: Goal, seconds: float
) -> tuple[Measurement, bool]:
    """Look for the cheapest spec of a ladder on a sample, then check it, and finer ones, on the array.

    Returns
    -------
    found : Measurement
        Result on the array, with speeds on the sample; if no spec keeps the goal, the finest spec, not timed.
    is_met : bool
        True if it keeps the goal without falling back to another codec.
    """
    specs = ladder.specs

    def first(subject: Subject, i: int) -> int:
        """The first index, from ``i`` on, whose spec keeps the goal."""

        def is_met(spec: str) -> bool:
            return goal.is_met(subject.measure(spec, shaped=ladder.shaped))

        return i if i == len(specs) or is_met(specs[i]) else bisect_left(specs, True, i + 1, key=is_met)

    i = first(array, first(sample, 0))
    found = array.measure(specs[min(i, len(specs) - 1)], shaped=ladder.shaped)
    if i == len(specs) or not found.is_own:
        return found, False
    timed = sample.measure(found.codec, seconds, ladder.shaped)
    return replace(found, encode_gbs=timed.encode_gbs, decode_gbs=timed.decode_gbs), True


def sorted_by_cost(found: list[Measurement]) -> list[Measurement]:
    """Sort by bits, then by time; lossless codecs whose frame equals that of ``lossless`` are left out."""
    frames = {(x.coded_as, x.bits) for x in found if x.codec == "lossless"}
    kept = [x for x in found if x.codec == "lossless" or (x.coded_as, x.bits) not in frames]
    return sorted(kept, key=lambda x: (x.bits, 1 / x.encode_gbs + 1 / x.decode_gbs))


def curve(ladder: Ladder, sample: Subject) -> list[Measurement]:
    """Measure a ladder's lossy specs whose PSNRs span `DECIBELS`, from coarse to fine."""
    specs = ladder.specs

    def psnr(spec: str) -> float:
        found = sample.measure(spec, shaped=ladder.shaped).psnr
        return inf if found is None else found

    first, last = (bisect_left(specs, decibels, key=psnr) for decibels in DECIBELS)
    places = np.linspace(max(first - 1, 0), min(last, len(specs) - 1), _POINTS)
    found = [sample.measure(specs[i], shaped=ladder.shaped) for i in sorted(set(map(round, places)))]
    return [x for x in found if x.is_own and x.psnr is not None]


def sample(array: np.ndarray, nbytes: int) -> np.ndarray:
    """Take about ``nbytes`` of an array at most: slabs spread evenly along its longest dimension.

    Their thickness is a multiple of 4, so that blocks of 4^d values are the array's own.
    """
    if array.nbytes <= nbytes:
        return array
    axis = int(np.argmax(array.shape))
    n = array.shape[axis]
    fours = max(n * nbytes // array.nbytes // 4, 1)
    slabs = min(fours, _SLABS)
    thickness = min(fours // slabs * 4, n)
    starts = np.linspace(0, n - thickness, slabs).astype(int) // 4 * 4
    return np.concatenate([array.take(range(i, i + thickness), axis) for i in starts], axis)


def ladders(array: np.ndarray, peak: float, goal: Goal, specs: Sequence[str] = ()) -> Iterator[Ladder]:
    """The ladders to search for an array with largest magnitude ``peak``: the given specs', else all."""
    found = {spec: [spec] for spec in specs if takes(spec, array.dtype)}
    if not specs:
        for name in compcoll.codecs():
            if name != "raw" and takes(name, array.dtype):
                found |= _specs(name, array, peak, goal)
    for label, ladder in found.items():
        yield Ladder(label, ladder)
        if shape := compcoll.codec(ladder[0]).shaped(array.dtype, array.shape, array.size):
            shaped = _zfp_specs(array, len(shape)) if label == "zfp" else ladder
            yield Ladder(f"{label}, {len(shape)}-d", shaped, True)


def _specs(name: str, array: np.ndarray, peak: float, goal: Goal) -> dict[str, list[str]]:
    """Specs of a codec from coarse to fine, by label."""
    itemsize, dim = dtypes.real_dtype(array.dtype).itemsize, _interleaved(array)
    if name == "bfp":
        plain = [f"bfp:bits={n}" for n in range(2, bfp.MAX_BITS[max(itemsize, 4)] + 1)]
        found = {name: plain}
        if dim:
            found[f"bfp, dim={dim}"] = [f"{spec},dim={dim}" for spec in plain]
        error = goal.error * (sqrt(0.5) if array.dtype.kind == "c" else 1)  # of each part
        rel = _rounded_down(error / peak) if error < peak else 0.0
        if bfp.MIN_REL <= rel <= bfp.MAX_REL:
            found["bfp:rel"] = [f"bfp:rel={rel!r}"]
        return found
    if name == "zfp":
        return {name: _zfp_specs(array, 1)}
    if name == "szp":
        largest = min(max(min(goal.error, peak or 1.0), szp.BOUND_MIN), szp.BOUND_MAX)
        bounds = (_rounded_down(largest * 2.0 ** (-i / _STEPS)) for i in range(_STEPS * _OCTAVES + 1))
        return {name: [f"szp:abs={max(bound, szp.BOUND_MIN)!r}" for bound in bounds]}
    if name == "mpc" and dim:
        return {name: [name], f"mpc, dim={dim}": [f"mpc:dim={dim}"]}
    return {name: list(codec_class(name).typical) or [name]}


def _zfp_specs(array: np.ndarray, ndim: int) -> list[str]:
    """Rates from the least of blocks of ``4**ndim`` values; blocks of 4 have a whole number of bits."""
    itemsize = dtypes.real_dtype(array.dtype).itemsize
    least = ceil((9 if itemsize < 8 else 12) / 4 ** (ndim - 1))
    return [f"zfp:rate={n / 4:g}" for n in range(least, 32 * itemsize)]


def _interleaved(array: np.ndarray) -> int:
    """Number of interleaved quantities: the real numbers in a short row; 0 for longer rows."""
    n = array.shape[-1] * (2 if array.dtype.kind == "c" else 1)
    return n if array.ndim > 1 and array.shape[-1] > 1 and n <= bfp.MAX_DIM else 0


def _rounded_down(value: float) -> float:
    """Round down to 4 digits."""
    return float(Context(prec=4, rounding=ROUND_DOWN).create_decimal(repr(value)))

"""The cheapest spec of each codec that keeps an error, for ``compcoll codec``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context
from math import ceil, inf, log2

import numpy as np

import compcoll
from compcoll.cli.measure import Measurement, Subject
from compcoll.codecs import bfp, szp
from compcoll.codecs.registry import takes
from compcoll.core import dtypes

__all__ = ["Choice", "Family", "Goal", "curve", "families", "sample", "search"]

#: Bounds of `szp` in an octave, and octaves below the largest magnitude: as many as float64 has bits.
_STEPS, _OCTAVES = 16, 53
#: Specs of a family that a curve shows.
_POINTS = 12
#: Slabs of a sample.
_SLABS = 16


@dataclass(frozen=True)
class Goal:
    """What has to be kept.

    Attributes
    ----------
    error : float
        Largest absolute error of any finite value; those that are not finite have to stay as they are.
    snr : float
        Least signal-to-noise ratio in dB.
    """

    error: float = inf
    snr: float = -inf

    def is_met(self, found: Measurement) -> bool:
        return found.max_error <= self.error and found.snr >= self.snr


@dataclass(frozen=True)
class Family:
    """Specs of one codec from coarse to fine: the first that keeps a goal is the cheapest.

    Attributes
    ----------
    label : str
        For a figure.
    specs : sequence of str
    guess : int
        Index of the spec with which a search begins.
    shaped : bool
        Whether the array goes out in two or three dimensions, else as values in a row.
    """

    label: str
    specs: Sequence[str]
    guess: int = 0
    shaped: bool = False

    def measure(self, subject: Subject, i: int, seconds: float = 0.0) -> Measurement:
        """Measure one spec."""
        return subject.measure(self.specs[i], seconds, self.shape(i, subject.array))

    def shape(self, i: int, array: np.ndarray) -> tuple[int, ...]:
        """The shape in which a spec codes an array."""
        row = (array.size,)
        if not self.shaped:
            return row
        return compcoll.codec(self.specs[i]).shaped(array.dtype, array.shape, array.size) or row

    @property
    def lossless(self) -> bool:
        return compcoll.codec(self.specs[0]).lossless

    def codes(self, found: Measurement) -> bool:
        """Whether a measurement is of this codec, not of one that it falls back to."""
        codec = compcoll.codec(found.codec)
        return codec.chooses or found.coded_as == codec.name


@dataclass(frozen=True)
class Choice:
    """The cheapest spec of a family that keeps a goal.

    Attributes
    ----------
    family : Family
    found : Measurement
        Of the array, its speed on the sample; of the finest spec, without speed, where none keeps the goal.
    is_met : bool
    shape : tuple of int
        Of the array as it was coded.
    """

    family: Family
    found: Measurement
    is_met: bool
    shape: tuple[int, ...]


def search(family: Family, sample: Subject, array: Subject, goal: Goal, seconds: float) -> Choice:
    """Look for the cheapest spec of a family on a sample, and check it and its neighbours on the array.

    It is timed on the sample, for ``seconds`` each way.
    """
    n, i = len(family.specs), family.guess
    if sample is not array:
        i = min(_first(n, lambda i: goal.is_met(family.measure(sample, i)), i), n - 1)
    found: dict[int, Measurement] = {}

    def is_met(i: int) -> bool:
        found[i] = family.measure(array, i)
        return goal.is_met(found[i])

    first = _first(n, is_met, i)
    i = min(first, n - 1)
    best, meets = found[i], first < n and family.codes(found[i])
    if meets:
        timed = family.measure(sample, i, seconds)
        best = replace(best, encode_gbs=timed.encode_gbs, decode_gbs=timed.decode_gbs)
    return Choice(family, best, meets, family.shape(i, array.array))


def _first(n: int, holds: Callable[[int], bool], guess: int) -> int:
    """The least of ``n`` indices for which something holds, as it does for all after it; ``n`` if for none.

    From the guess by steps that double, then by halves.
    """
    low, high, i, step = -1, n, guess, 1  # it does not hold at low, and does at high
    while high - low > 1:
        if holds(i):
            high = i
        else:
            low = i
        if low < 0:
            i = max(high - step, 0)
        elif high == n:
            i = min(low + step, n - 1)
        else:
            i = (low + high) // 2
        step *= 2
    return high


def curve(family: Family, sample: Subject) -> list[Measurement]:
    """Measure specs all over a family, from coarse to fine, as far as they are lossy."""
    last = len(family.specs) - 1
    some = sorted({round(i * last / (_POINTS - 1)) for i in range(_POINTS)})
    found = [family.measure(sample, i) for i in some]
    return [x for x in found if family.codes(x) and not x.lossless]


def sample(array: np.ndarray, nbytes: int) -> np.ndarray:
    """About ``nbytes`` of an array at most: slabs spread evenly along a long dimension.

    Their thickness is a multiple of 4, so that blocks of 4^d values are those of the array.
    """
    part = nbytes / array.nbytes
    if part >= 1:
        return array
    # The first dimension leaves rows as they are; several slabs of 4 have to fit.
    fours = [n * part / 4 for n in array.shape]
    axis = next((i for i, n in enumerate(fours) if n >= 4), int(np.argmax(fours)))
    n = array.shape[axis]
    slabs = min(max(int(fours[axis]), 1), _SLABS)
    thickness = min(4 * max(int(fours[axis] / slabs), 1), n)
    starts = np.linspace(0, n - thickness, slabs).astype(int) // 4 * 4
    return np.concatenate([array[(slice(None),) * axis + (slice(i, i + thickness),)] for i in starts], axis)


# -- the specs of codecs


def families(array: np.ndarray, peak: float, goal: Goal, specs: Sequence[str] = ()) -> list[Family]:
    """What to search for an array whose largest magnitude is ``peak``: these specs, else all codecs'."""
    if specs:
        ladders = [(spec, [spec], 0) for spec in specs if takes(spec, array.dtype)]
    else:
        names = [name for name in compcoll.codecs() if name != "raw" and takes(name, array.dtype)]
        ladders = [ladder for name in names for ladder in _ladders(name, array, peak, goal)]
    found = []
    for label, ladder, guess in ladders:
        codec = compcoll.codec(ladder[0])
        found.append(Family(label, ladder, guess))
        if codec.has_shape and codec.shaped(array.dtype, array.shape, array.size):
            found.append(Family(f"{label}, shaped", ladder, guess, True))
    return found


def _ladders(name: str, array: np.ndarray, peak: float, goal: Goal) -> Iterator[tuple[str, list[str], int]]:
    """(label, specs, guess) of a codec."""
    real, dim = dtypes.real_dtype(array.dtype), _interleaved(array)
    if name == "bfp":
        ladder = [f"bfp:bits={n}" for n in range(2, bfp.MAX_BITS[max(real.itemsize, 4)] + 1)]
        yield name, ladder, len(ladder) // 3
        if dim:
            yield f"{name}, dim={dim}", [f"{spec},dim={dim}" for spec in ladder], len(ladder) // 3
        part = _rounded_down(goal.error / peak) if peak and goal.error < peak else 0.0
        if bfp.MIN_REL <= part <= bfp.MAX_REL:
            yield f"{name}:rel", [f"{name}:rel={part!r}"], 0
    elif name == "zfp":  # blocks of values in a row have a whole number of bits
        least = 9 if real.itemsize < 8 else 12
        ladder = [f"zfp:rate={n / 4:g}" for n in range(least, 32 * real.itemsize)]
        yield name, ladder, len(ladder) // 4
    elif name == "szp":
        yield _bounds(peak, goal)
    else:
        yield name, [name], 0
        if name == "mpc" and dim:
            yield f"{name}, dim={dim}", [f"{name}:dim={dim}"], 0


def _bounds(peak: float, goal: Goal) -> tuple[str, list[str], int]:
    """Those of `szp`, from the largest magnitude down to what changes no bit; one of them is the goal's."""
    peak = min(max(peak or 1.0, szp.BOUND_MIN * 2.0**_OCTAVES), szp.BOUND_MAX)
    bound = min(max(goal.error, peak * 2.0**-_OCTAVES), peak)
    coarser = ceil(_STEPS * log2(peak / bound))
    exponents = np.arange(coarser, coarser - _STEPS * _OCTAVES - 1, -1) / _STEPS
    rounded = (_rounded_down(bound * float(2**x)) for x in exponents)
    found = [min(max(x, szp.BOUND_MIN), szp.BOUND_MAX) for x in rounded]
    return "szp", [f"szp:abs={x!r}" for x in found], coarser


def _interleaved(array: np.ndarray) -> int:
    """How many real numbers the rows of an array have that are quantities side by side; 0 for longer rows."""
    n = array.shape[-1] * (2 if array.dtype.kind == "c" else 1)
    return n if array.ndim > 1 and array.shape[-1] > 1 and n <= bfp.MAX_DIM else 0


def _rounded_down(value: float) -> float:
    """The largest number of 4 digits that is no larger."""
    return float(Context(prec=4, rounding=ROUND_DOWN).create_decimal(repr(value)))

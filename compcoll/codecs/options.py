"""Checks of codecs' options."""

from __future__ import annotations

import math

ROUNDINGS = ("nearest", "stochastic")


def rounding(codec: str, value: str, seed: int) -> tuple[str, int]:
    """Check a rounding mode and the seed of stochastic rounding; ValueError for wrong values."""
    if value not in ROUNDINGS:
        raise ValueError(f"{codec}: rounding={value!r} is not one of {', '.join(ROUNDINGS)}")
    return value, integer(codec, "seed", seed, 0, 2**64 - 1)


def integer(codec: str, key: str, value, least: int, most: int) -> int:
    """An integer within limits; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limit = "2**64 - 1" if most == 2**64 - 1 else most
        raise ValueError(f"{codec}: {key}={value!r} is not an integer from {least} to {limit}")
    return value


def number(codec: str, key: str, value, least: float, most: float) -> float:
    """A finite number within limits; ValueError for anything else."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{codec}: {key}={value!r} is not a number") from None
    if not math.isfinite(result) or not least <= result <= most:
        raise ValueError(f"{codec}: {key}={value} is not between {least:.4g} and {most:.4g}")
    return result

"""Shapes in which codecs with blocks of 4^d values code an array: up to three dimensions, as many as pay.

Fixed-rate blocks cost the same bits whether they are full or not, so dimensions that are not a multiple of 4
cost bytes, and short ones many. Neighbouring dimensions can be merged, which costs nothing if the inner one
is a multiple of 4, because no block then spans two rows. Among all ways to merge, the one with most
dimensions wins, then the one with the fewest blocks across rows, then the one with the least padding. On
turbulent fields at 8 bits per value, 2 dimensions are worth about 15 dB, which is 2.5 bits per value, the
third 3 or 4 dB more, and dimensions of unrelated values nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, pairwise
from math import inf, prod

__all__ = ["fitted"]

#: Largest padding, as a fraction of the array.
PADDING = 1 / 8


@lru_cache(4096)
def fitted(shape: tuple[int, ...], largest_plane: float = inf, padding: float = PADDING) -> tuple[int, ...]:
    """The shape of 2 or 3 dimensions in which to code an array; empty if values in a row are best.

    Parameters
    ----------
    shape : tuple of int
    largest_plane : int
        Largest number of values per index of the first dimension.
    padding : float
        Largest padding to whole blocks, as a fraction of the array.
    """
    dims = [n for n in shape if n != 1]
    n = prod(dims)
    best: tuple[int, ...] = ()
    least: tuple[float, ...] = ()
    for parts in _parts(dims) if n else ():
        found = tuple(map(prod, parts))
        added = prod(-(-size // 4) * 4 for size in found) / n - 1
        if added > padding or prod(found[1:]) > largest_plane:
            continue
        cost = -len(found), sum(map(_across, parts)), added, -found[0]
        if not best or cost < least:
            best, least = found, cost
    return best


def _parts(dims: list[int]) -> Iterator[list[list[int]]]:
    """List the ways to merge neighbouring dimensions into two or three."""
    for ndim in (2, 3):
        for cuts in combinations(range(1, len(dims)), ndim - 1):
            yield [dims[a:b] for a, b in pairwise((0, *cuts, len(dims)))]


def _across(part: list[int]) -> float:
    """Fraction of blocks that span two rows if these dimensions are merged."""
    inner = [prod(part[i:]) for i in range(1, len(part))]
    return sum(min(4 / n, 1.0) for n in inner if n % 4)

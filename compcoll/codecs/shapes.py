"""In which shape a codec of blocks of 4^d values codes an array: as many dimensions as pay, up to three.

Fixed-rate blocks cost the same bits whether they are full or not, so dimensions that are no multiple of 4
cost bytes, short ones many. Neighbouring dimensions can be taken for one, which costs nothing where the
inner one is a multiple of 4, for then no block reaches from one row into the next. Of all ways to do so the
one with most dimensions wins, then that with the fewest blocks across rows, then the one that adds least. On
turbulent fields at 8 bits per value, 2 dimensions are worth about 15 dB, which is 2.5 bits per value, the
third 3 or 4 dB more, and dimensions of unrelated values nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, pairwise
from math import inf, prod

__all__ = ["fitted"]

#: By how much padding may enlarge an array, as a part of it.
PADDING = 1 / 8


@lru_cache(4096)
def fitted(shape: tuple[int, ...], largest_plane: float = inf, padding: float = PADDING) -> tuple[int, ...]:
    """The shape of 2 or 3 dimensions for an array of any; empty where values in a row are the best.

    Parameters
    ----------
    shape : tuple of int
    largest_plane : int
        The most values behind one index of the first dimension.
    padding : float
        By how much padding to blocks may enlarge the array, as a part of it.
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
    """All ways to take neighbouring dimensions together so that two or three are left."""
    for ndim in (2, 3):
        for cuts in combinations(range(1, len(dims)), ndim - 1):
            yield [dims[a:b] for a, b in pairwise((0, *cuts, len(dims)))]


def _across(part: list[int]) -> float:
    """The part of the blocks that reach across the ends of rows where these dimensions are one."""
    inner = [prod(part[i:]) for i in range(1, len(part))]
    return sum(min(4 / n, 1.0) for n in inner if n % 4)

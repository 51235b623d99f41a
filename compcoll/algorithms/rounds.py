"""Ranks in groups, one round after the other: each rank meets all others within few rounds."""

from __future__ import annotations

__all__ = ["others", "radices"]


def radices(size: int) -> list[int]:
    """The sizes of the groups of each round, the largest first: fours, a two, and odd primes.

    Their product is ``size``. Rank r of the first round's groups of k meets those whose numbers differ from
    its own by multiples of ``size / k``; later groups lie within one k-th of the ranks (Ruefenacht, Bull and
    Booth, "Generalisation of recursive doubling for AllReduce", 2017).
    """
    found = []
    for factor in (4, 2, *range(3, size + 1, 2)):
        while size % factor == 0:
            found.append(factor)
            size //= factor
    return sorted(found, reverse=True)


def others(place: int, size: int) -> list[int]:
    """The other places of a group, in an order in which pairs meet at the same time if there are 2 or 4."""
    return [place ^ i if size in (2, 4) else (place + i) % size for i in range(1, size)]

"""Groups of ranks: ranks of a node, ranks that exchange in a round, and the runtime among some ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["Placement", "Subgroup", "others", "placement", "radices"]


class Placement:
    """Ranks on their nodes.

    Attributes
    ----------
    members : list of list of int
        The ranks of each node, in order; nodes in the order of their first ranks.
    node, place : list of int
        Node of each rank, and its index among that node's ranks.
    width : int
        Leaders of each node: as many as the smallest node has ranks.
    turns : int
        Largest number of ranks of a node that one leader serves.
    """

    def __init__(self, nodes: tuple[int, ...]):
        found: dict[int, list[int]] = {}
        for rank, node in enumerate(nodes):
            found.setdefault(node, []).append(rank)
        self.members = list(found.values())
        self.width = min(map(len, self.members))
        self.turns = -(-max(map(len, self.members)) // self.width)
        numbers = {node: i for i, node in enumerate(found)}
        self.node = [numbers[node] for node in nodes]
        self.place = [self.members[self.node[rank]].index(rank) for rank in range(len(nodes))]

    def node_peers(self, rank: int) -> list[int]:
        """The other ranks of a rank's node, the next one first."""
        ranks, place = self.members[self.node[rank]], self.place[rank]
        return ranks[place + 1 :] + ranks[:place]

    def leaders(self, part: int) -> list[int]:
        """Leader ``part`` of every node."""
        return [ranks[part] for ranks in self.members]

    def served(self, part: int, turn: int) -> list[int | None]:
        """The rank of each node that leader ``part`` serves at a turn; None if there is none."""
        at = part + turn * self.width
        return [ranks[at] if at < len(ranks) else None for ranks in self.members]


@lru_cache(maxsize=64)
def placement(nodes: tuple[int, ...]) -> Placement:
    """The placement of ranks, given the node of each."""
    return Placement(nodes)


class Subgroup:
    """A runtime's operations among some of its ranks, which are numbered by their positions in the list.

    Parameters
    ----------
    rt : Tracer or Subgroup
    ranks : list of int
        This one among them.
    turn, turns : int
        Messages of several turns between two ranks have tags of their own.
    """

    def __init__(self, rt: Any, ranks: list[int], turn: int = 0, turns: int = 1):
        self._rt, self._ranks, self._turn, self._turns = rt, ranks, turn, turns
        self.rank, self.size = ranks.index(rt.rank), len(ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rt, name)

    def send(self, frame: int, dest: int, tag: int = 0) -> Any:
        return self._rt.send(frame, self._ranks[dest], tag * self._turns + self._turn)

    def recv(self, source: int, like: Any, tag: int = 0) -> Any:
        return self._rt.recv(self._ranks[source], like, tag * self._turns + self._turn)


def radices(size: int) -> list[int]:
    """The sizes of the groups of each round, the largest first: fours, a two, and odd primes.

    Their product is ``size``. In the first round, with groups of k, a rank exchanges with ranks whose numbers
    differ from its own by multiples of ``size / k``; later groups are within one k-th of the ranks
    (Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for AllReduce", 2017).
    """
    found = []
    for factor in (4, 2, *range(3, size + 1, 2)):
        while size % factor == 0:
            found.append(factor)
            size //= factor
    return sorted(found, reverse=True)


def others(place: int, size: int) -> list[int]:
    """The other positions of a group; in groups of 2 or 4 both ranks of a pair exchange at the same time."""
    return [place ^ i if size in (2, 4) else (place + i) % size for i in range(1, size)]

"""Which ranks are on which node."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["Placement", "placement"]


class Placement:
    """Ranks on their nodes.

    Attributes
    ----------
    members : list of list of int
        The ranks of each node, in order; nodes in the order of their first ranks.
    node, place : list of int
        Of each rank: its node, and where it stands among that node's.
    width : int
        Leaders of each node: ranks of the smallest.
    turns : int
        Ranks of a node that a leader stands for, at most.
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
        """The rank of each node for which leader ``part`` stands at a turn; None where there is none."""
        at = part + turn * self.width
        return [ranks[at] if at < len(ranks) else None for ranks in self.members]


@lru_cache(maxsize=64)
def placement(nodes: tuple[int, ...]) -> Placement:
    """The placement of ranks, given the node of each."""
    return Placement(nodes)

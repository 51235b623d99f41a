"""The verbs among some of the ranks."""

from __future__ import annotations

from typing import Any

__all__ = ["Subgroup"]


class Subgroup:
    """The verbs of a runtime among some of its ranks, which have the numbers of their places in the list.

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

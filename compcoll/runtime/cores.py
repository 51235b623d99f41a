"""The cores that simulated ranks share."""

from __future__ import annotations

import heapq

__all__ = ["Cores"]


class Cores:
    """When each of some cores is free, and who worked there.

    Attributes
    ----------
    ends : list of float
        Seconds at which each core is free.
    """

    def __init__(self, n: int):
        self.ends = [0.0] * n
        self._heap = [(0.0, core) for core in range(n)]  # what has changed since is passed over
        self._last: dict[tuple, int] = {}

    def choose(self, who: tuple, now: float, free: float) -> int:
        """The core on which somebody is still at work, up to ``free``, else the one that is free first."""
        core = self._last.get(who)
        if core is not None and now < free == self.ends[core]:
            return core
        while self._heap[0][0] != self.ends[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def use(self, core: int, who: tuple, end: float) -> float:
        """Occupy a core until ``end``, which is returned."""
        self.ends[core], self._last[who] = end, core
        heapq.heappush(self._heap, (end, core))
        return end

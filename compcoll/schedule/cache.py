"""A cache of schedules, by everything that they depend on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from compcoll.schedule.graph import Schedule

__all__ = ["OPS_OF_SCHEDULE", "Cache"]

#: Operations of all cached schedules; each takes 100 bytes, and a schedule as much as several more.
MOST_OPS, OPS_OF_SCHEDULE = 1 << 18, 32


class Cache:
    """The most recently used schedules, up to the memory of ``most_ops`` operations."""

    def __init__(self, most_ops: int = MOST_OPS):
        self.most_ops = most_ops
        self.n_ops = 0
        self._kept: OrderedDict[Hashable, Schedule] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Schedule]) -> Schedule:
        """The schedule of a key; it is made if the cache does not have it."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self.n_ops += len(made) + OPS_OF_SCHEDULE
            while self.n_ops > self.most_ops and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self.n_ops -= len(oldest) + OPS_OF_SCHEDULE
        return made

"""Calls that ranks wait in, told through the group's store: the words for time-outs and mismatches."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

__all__ = ["AFTER", "RollCall"]

#: Seconds after which a rank that waits tells in which call.
AFTER = 1.0
#: Seconds to wait for the words of others.
_PATIENCE = timedelta(seconds=2)


class RollCall:
    """What the ranks of a group tell each other where something goes wrong.

    Parameters
    ----------
    store : torch.distributed.Store
    rank, size : int
    """

    def __init__(self, store: Any, rank: int, size: int):
        self._store, self._rank, self._size = store, rank, size

    def tell(self, number: int, words: str) -> None:
        """Say in which of the group's collectives this rank waits."""
        with suppress(Exception):  # without its words the others know less
            self._store.set(_key("waits", self._rank), json.dumps([number, words]))

    def missing(self, number: int) -> str:
        """Who has not come to a call, as far as they have told."""
        found = [(rank, self._of("waits", rank)) for rank in range(self._size) if rank != self._rank]
        absent = []
        for rank, told in found:
            if told is None:
                absent.append(f"rank {rank}")
            elif told[0] != number:
                absent.append(f"rank {rank} (it waited in call {told[0]}, {told[1]})")
        return f"missing: {', '.join(absent)}" if absent else "all other ranks wait in it, too"

    def everyone(self, number: int, words: str) -> list[str]:
        """What each rank has called as this number; the others ask at the same time."""
        kind = f"call {number}"
        with suppress(Exception):
            self._store.set(_key(kind, self._rank), json.dumps([number, words]))
            self._store.wait([_key(kind, rank) for rank in range(self._size)], _PATIENCE)
        found = [self._of(kind, rank) for rank in range(self._size)]
        return [
            words if rank == self._rank else "unknown" if told is None else told[1]
            for rank, told in enumerate(found)
        ]

    def _of(self, kind: str, rank: int) -> Any:
        with suppress(Exception):
            if self._store.check([_key(kind, rank)]):
                return json.loads(self._store.get(_key(kind, rank)))
        return None


def _key(kind: str, rank: int) -> str:
    return f"compcoll/{kind}/{rank}"

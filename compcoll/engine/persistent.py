"""Tags for calls that are prepared once and begun again and again, by each rank in an order of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.core._calls import CallTags
from compcoll.engine import _engine
from compcoll.engine._shared import Neighbours

__all__ = ["PersistentPool", "PersistentTags"]

#: Calls that share a private communicator.
_PLACES = 64


class _PrivateComm:
    """A private communicator, and how many of its places were given away and how many are in use."""

    def __init__(self, comm: MPI.Intracomm, neighbours: Neighbours | None):
        self.comm, self.handle, self.neighbours = comm, _engine.handle(comm), neighbours
        self.given = self.used = 0
        self.orphaned = False

    def free_unused(self) -> None:
        if self.orphaned and not self.used:
            self.comm.Free()


class PersistentTags:
    """Communicator and tags of one persistent call, in the place of its `Group`."""

    def __init__(self, group: Any, comm: _PrivateComm, first: int, n: int):
        self.rank, self.size, self.facts = group.rank, group.size, group.facts
        self.private_comm, self.private_handle = comm.comm, comm.handle
        self.neighbours = comm.neighbours
        self._comm = comm
        #: The call has the same ones each time: it ends before it begins again.
        self.tags = CallTags(first, n, 1)

    def next_tags(self) -> tuple[int, int]:
        """First tag and number of tags."""
        return self.tags.next(), self.tags.n

    def free(self) -> None:
        """The call will not be begun any more."""
        self._comm.used -= 1
        self._comm.free_unused()


class PersistentPool:
    """The places of a group's prepared calls.

    Parameters
    ----------
    group : Group
    tags : int
        How many tags there are.
    """

    def __init__(self, group: Any, tags: int):
        self._group, self._tags = group, tags // _PLACES
        self._comms: list[_PrivateComm] = []
        self._comm: _PrivateComm | None = None

    def take(self) -> PersistentTags:
        """A place for a call that all ranks prepare; collective."""
        if self._comm is None or self._comm.given == _PLACES:
            self._comm = self._unused() or self._another()
        comm = self._comm
        first = comm.given * self._tags
        comm.given += 1
        comm.used += 1
        return PersistentTags(self._group, comm, first, self._tags)

    def free(self) -> None:
        """The group ends: free the communicators, those in use with the last of their calls."""
        for comm in self._comms:
            comm.orphaned = True
            comm.free_unused()

    def _unused(self) -> _PrivateComm | None:
        """A communicator of which no rank uses any place."""
        unused = np.array([not comm.used for comm in self._comms], bool)
        self._group.private_comm.Allreduce(MPI.IN_PLACE, unused, MPI.LAND)
        comm = next((comm for comm, free in zip(self._comms, unused, strict=True) if free), None)
        if comm is not None:
            comm.given = 0
        return comm

    def _another(self) -> _PrivateComm:
        comm = self._group.comm.Dup()
        self._comms.append(_PrivateComm(comm, self._group.find_neighbours(len(self._comms) + 1)))
        return self._comms[-1]

"""Where the chunks of compressed messages travel: a private communicator, one for a whole family.

Sender and receiver of a message cannot make a communicator when they need it, since the others are not
there. So a communicator that is wrapped makes one, and whatever is made from it sends its chunks there, too:
each message has a tag of its own.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from threading import Lock
from typing import Any
from uuid import uuid4

from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.group import largest_tag
from compcoll.mpi.lost import VISITS, Lost

__all__ = ["Channel", "find"]

# A program may put another communicator into its place.
_SELF = MPI.COMM_SELF


class _Home:
    """The communicator of a family, freed with the last of its members; made by all its ranks together."""

    def __init__(self, comm: MPI.Intracomm):
        self.comm, self.handle = comm, _engine.handle(comm)
        self.key: str = comm.bcast(uuid4().hex)
        _HOMES[self.key] = self
        self.members: list[Channel] = []
        self.under_way: list[Any] = []
        self.lost = Lost(comm, largest_tag(), self._waits)
        self._lock, self._used = Lock(), 0

    def reserve(self, n: int) -> int:
        """The first of ``n`` tags of no other message on its way from here; all are below `largest_tag`."""
        with self._lock:
            first = self._used if self._used + n <= largest_tag() else 0
            self._used = first + n
            return first

    def goes_on(self, message: Any) -> None:
        """Keep the communicator until a message has ended, which then says so."""
        with self._lock:
            self.under_way = [other for other in self.under_way if not other.ended]
            self.under_way.append(message)

    def free(self) -> bool:
        """Free the communicator if nothing is under way on it any more; whether that was so."""
        if not all(message.ended for message in self.under_way):
            return False
        self.lost.close()
        del _HOMES[self.key]
        self.comm.Free()
        return True

    def _waits(self, rank: int, tag: int) -> bool:
        """Whether a message of a rank waits to be received on any of the users' communicators."""
        places = ((member.user, member.user_rank_of(rank)) for member in self.members)
        return any(user.Iprobe(source, tag) for user, source in places if source is not None)


#: All families of this process, by keys that all their ranks know.
_HOMES: dict[str, _Home] = {}


def find(key: str) -> _Home | None:
    """The communicator of a family, and its handle; None where this process does not belong to it."""
    return _HOMES.get(key)


@cache
def _alone() -> _Home:
    """The family of all communicators of one rank."""
    return _Home(MPI.Intracomm(_SELF).Dup())


class Channel:
    """One communicator's way to the private one of its family.

    Parameters
    ----------
    user : MPI.Intracomm
    parent : Channel, optional
        That of the communicator from which ``user`` was made; without it a private one is made, which is
        collective.

    Attributes
    ----------
    comm : MPI.Intracomm
    handle : int
        That of `comm`.
    key : str
        What all ranks of the family know it by.
    lost : Lost
    control : int
        A tag that no chunk has.
    """

    def __init__(self, user: MPI.Intracomm, parent: Channel | None = None):
        if user.Get_size() == 1:
            self._home = _alone()
        else:
            self._home = parent._home if parent is not None else _Home(user.Dup())
        self.user, self.comm, self.lost = user, self._home.comm, self._home.lost
        self.handle, self.reserve, self.key = self._home.handle, self._home.reserve, self._home.key
        self.goes_on = self._home.goes_on
        self.control = largest_tag()
        mine, theirs = user.Get_group(), self.comm.Get_group()
        self._ranks = MPI.Group.Translate_ranks(mine, list(range(mine.size)), theirs)
        self._users = {there: here for here, there in enumerate(self._ranks)}
        mine.Free()
        theirs.Free()
        with self.lost.lock:
            self._home.members.append(self)

    def duplicate(self, user: MPI.Intracomm) -> Channel:
        """That of a duplicate of the user's communicator, which need not be complete."""
        new = copy(self)
        new.user = user
        with self.lost.lock:
            self._home.members.append(new)
        return new

    def rank_of(self, user_rank: int) -> int:
        """The rank in the private communicator of one in the user's; `MPI.ANY_SOURCE` stays."""
        rank = int(user_rank)  # mpi4py takes a float, such as half of a number of ranks
        return self._ranks[rank] if 0 <= rank < len(self._ranks) else rank

    def user_rank_of(self, rank: int) -> int | None:
        """The reverse; None for a rank of the family that this communicator does not have."""
        return self._users.get(rank)

    def leave(self) -> None:
        """The communicator is about to be freed."""
        with self.lost.lock:
            self._home.members.remove(self)
        if not self._home.members and self._home is not _alone() and not self._home.free():
            VISITS.begin_until(self._home.free)

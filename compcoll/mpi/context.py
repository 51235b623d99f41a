"""State beside a communicator of mpi4py: the engine's side, and a channel for messages.

It is made once per communicator, by all its ranks together in the call that makes or wraps the communicator,
hangs on it as an MPI attribute, and is freed with it.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

from mpi4py import MPI

from compcoll.engine.finalize import has_begun
from compcoll.engine.group import Group, RankFacts, facts_of
from compcoll.mpi.p2p.channel import Channel

if TYPE_CHECKING:
    from compcoll.mpi.comm import Comm

__all__ = ["Context"]

# A program may put others into their places.
_WORLD, _SELF = MPI.COMM_WORLD, MPI.COMM_SELF


class Context(Group):
    """The private side of a communicator.

    Attributes
    ----------
    channel : Channel or None
        For the chunks of point-to-point messages; None where none is ever compressed.
    least : int
        Smallest message between two ranks, in bytes, that is compressed, whichever wrapper sends it: that of
        the first wrapper. A smaller one would arrive at receives that MPI alone has begun.
    wrappers : list of weakref.ref
        All that wrap the communicator.
    checker : Agreement or None
        Comparison of calls between ranks, with ``COMPCOLL_CHECK``.
    reduces_objects : bool
        Whether mpi4py has the communicator on which it reduces objects.
    everyone : list of RankFacts
    """

    def __init__(
        self, comm: MPI.Intracomm, everyone: list[RankFacts], workers: int, parent: Context | None, key: int
    ):
        self.everyone, self.workers = everyone, workers
        self.channel: Channel | None = None
        self._heir: Context | None = None
        super().__init__(comm, facts_of(everyone), workers, str(key))
        if self.facts.multithreaded:
            self.channel = Channel(self.comm, parent.channel if parent is not None else None, key)

    def _begin(self) -> None:
        super()._begin()
        self.least: int | None = None
        self.wrappers: list[ref[Comm]] = []
        self.checker: Any = None
        self.reduces_objects = False

    def duplicate_for(self, comm: MPI.Intracomm) -> Context:
        """A context for a duplicate of the communicator; collective."""
        new = self.duplicate()
        new.belong_to(comm, self.private_comm.Dup() if self.size > 1 else comm)
        comm.Set_attr(_keyval(), new)
        return new

    @contextmanager
    def heir(self) -> Iterator[Context]:
        """A context that MPI attaches to the duplicate that meanwhile begins to be made; local."""
        self._heir = self.duplicate()
        self._begun = [known for known in self._begun if known() is not None] + [ref(self._heir)]
        try:
            yield self._heir
        finally:
            self._heir = None

    def belong_to(self, comm: MPI.Intracomm, *private: Any) -> None:
        super().belong_to(comm, *private)
        if self.channel is not None:
            self.channel = self.channel.duplicate(self.comm)

    @classmethod
    def find(cls, comm: MPI.Intracomm) -> Context | None:
        """The context of a communicator, None where it was never wrapped."""
        context = comm.Get_attr(_keyval())
        if not isinstance(context, Context):
            return None
        context.wait_until_made()
        return context

    @classmethod
    def make(
        cls,
        comm: MPI.Intracomm,
        everyone: list[RankFacts],
        workers: int,
        key: int,
        parent: Context | None = None,
    ) -> Context:
        """A context for a communicator that has none, with the ``key`` of its channel; collective."""
        context = cls(comm, everyone, workers, parent, key)
        comm.Set_attr(_keyval(), context)
        return context

    def make_for(self, comm: MPI.Intracomm) -> Context:
        """A context for a communicator of some of the ranks, of which all is known but a key; collective."""
        mine, theirs = comm.Get_group(), self.comm.Get_group()
        everyone = [self.everyone[rank] for rank in mine.Translate_ranks(None, theirs)]
        mine.Free()
        theirs.Free()
        key = array("Q", os.urandom(8))
        MPI.Intracomm(comm).Bcast([key, MPI.UINT64_T])
        return Context.make(comm, everyone, self.workers, key[0], self)

    @staticmethod
    def part(comm: MPI.Intracomm) -> None:
        """Free the context of a communicator that is about to be freed; collective.

        MPI frees attributes when the last message has ended, in whichever thread finds that.
        """
        if comm not in (MPI.COMM_NULL, _WORLD, _SELF) and Context.find(comm) is not None:
            comm.Delete_attr(_keyval())

    @property
    def attached(self) -> list[Comm]:
        """The wrappers that there still are."""
        return [known for reference in self.wrappers if (known := reference()) is not None]

    def add(self, wrapper: Any) -> None:
        """Let a wrapper of the communicator be known."""
        if all(known is not wrapper for known in self.attached):
            self.wrappers = [*map(ref, self.attached), ref(wrapper)]

    def free(self) -> None:
        """Free the private communicators; collective."""
        if self.channel is not None and self.comm != MPI.COMM_NULL:
            self.channel.leave()
        if self.checker is None or not self.checker.left:  # else messages may still be on their way
            super().free()


@cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval(
        copy_fn=lambda comm, keyval, context: context._heir or NotImplemented,
        delete_fn=lambda comm, keyval, context: None if has_begun() else context.free(),
    )

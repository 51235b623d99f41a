"""What compcoll keeps beside a communicator of mpi4py: the engine's side, and messages on their way in.

It is made once per communicator, by all its ranks together, hangs on it as an MPI attribute, and is
freed with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mpi4py import MPI

from compcoll.engine.group import Facts, Group
from compcoll.mpi.channel import Channel
from compcoll.mpi.inbox import Inbox

__all__ = ["Context"]

# A program may put others into their places.
_WORLD, _SELF = MPI.COMM_WORLD, MPI.COMM_SELF


class Context(Group):
    """The private side of a communicator.

    Attributes
    ----------
    channel : Channel or None
        For the chunks of point-to-point messages; None where none is ever compressed.
    inbox : Inbox
        Point-to-point messages on their way in.
    least : int
        Smallest message, in bytes, that any wrapper of the communicator compresses.
    wrappers : list of weakref.ref
        All that wrap the communicator.
    checker : Checker or None
        What compares calls, where ``COMPCOLL_CHECK`` says so.
    """

    def __init__(self, comm: MPI.Intracomm, facts: Facts, workers: int, parent: Context | None):
        super().__init__(comm, facts, workers)
        self.workers = workers
        self.least = 1 << 62
        self.wrappers: list[Any] = []
        self.checker: Any = None
        self.channel: Channel | None = None
        if facts.multithreaded:
            self.channel = Channel(self.comm, parent.channel if parent is not None else None)
        self.inbox = Inbox(self.comm, self.channel)

    @classmethod
    def find(cls, comm: MPI.Intracomm) -> Context | None:
        """The context of a communicator, None where it was never wrapped."""
        context: Any = comm.Get_attr(_keyval())
        return context

    @classmethod
    def make(cls, comm: MPI.Intracomm, facts: Facts, workers: int, parent: Context | None) -> Context:
        """A context for a communicator that has none; collective, but for one made from another."""
        context = cls(comm, facts, workers, parent)
        comm.Set_attr(_keyval(), context)
        return context

    @staticmethod
    def part(comm: MPI.Intracomm) -> None:
        """Free the context of a communicator that is about to be freed; collective.

        MPI frees attributes when the last message has ended, in whichever thread finds that.
        """
        if comm not in (MPI.COMM_NULL, _WORLD, _SELF) and Context.find(comm) is not None:
            comm.Delete_attr(_keyval())

    @property
    def living(self) -> list[Any]:
        """The wrappers that there still are."""
        return [known for reference in self.wrappers if (known := reference()) is not None]

    def free(self) -> None:
        """Free the private communicators; collective."""
        if self.channel is not None:
            self.channel.leave()
        if self.checker is not None:
            self.checker.free()
        super().free()


@cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, context: context.free())

"""What compcoll keeps beside a communicator: a private duplicate, threads, scratch memory.

It is made once per communicator, by all its ranks together, hangs on it as an MPI attribute, and is
freed with it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from mpi4py import MPI

from compcoll.messages import Inbox
from compcoll.runtime.pool import Pool

__all__ = ["Context"]

POOL = Pool()


class Context:
    """The private side of a communicator.

    Attributes
    ----------
    shadow : MPI.Intracomm
        Duplicate that carries the frames, so that no tag ever meets a user's.
    link : str
        ``"node"`` where all ranks share one, else ``"network"``.
    pairs : MPI.Intracomm
        Another one, for the chunks of point-to-point messages.
    inbox : Inbox
        Point-to-point messages on their way in.
    pairwise_tags : tuple of int
        For calls in which some ranks have no part, so that a count of calls would differ.
    multithreaded : bool
        Whether all ranks may call MPI from several threads.
    threads : ThreadPoolExecutor or None
        Workers for encoding and decoding, where each rank of a node has cores to spare.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.shadow = MPI.Intracomm(comm).Dup()
        node = self.shadow.Split_type(MPI.COMM_TYPE_SHARED)
        together = self.shadow.allreduce(node.Get_size(), MPI.MIN) == comm.Get_size()
        self.link = "node" if together else "network"
        self.threads = _threads(_workers(node))
        node.Free()
        self.pool = POOL
        self.multithreaded = self.shadow.allreduce(MPI.Query_thread(), MPI.MIN) == MPI.THREAD_MULTIPLE
        self.pairs = self.shadow.Dup()
        self.inbox = Inbox(MPI.Intracomm(comm))
        self.calls = self.streams = 0
        self._tags = self.shadow.Get_attr(MPI.TAG_UB) // 65
        self.pairwise_tags = (64 * self._tags, 1)

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> Context:
        """The context of a communicator, made where there is none yet; collective."""
        context = comm.Get_attr(_keyval())
        if context is None:
            context = cls(comm)
            comm.Set_attr(_keyval(), context)
        return context

    def free(self) -> None:
        """Free the private communicators; collective."""
        self.inbox.mirror.Free()
        self.pairs.Free()
        self.shadow.Free()

    def next_stream(self) -> int:
        """Tag of the next compressed message's chunks."""
        self.streams += 1
        return self.streams % (64 * self._tags)

    def next_tags(self) -> tuple[int, int]:
        """First tag and number of tags of the next call: 64 calls pass before a tag is used again."""
        self.calls += 1
        return (self.calls % 64) * self._tags, self._tags


@cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, context: context.free())


def _workers(node: MPI.Intracomm) -> int:
    """Threads for each rank: the cores that no rank of the node runs on, shared out; at most 8."""
    if "COMPCOLL_THREADS" in os.environ:
        return max(0, int(os.environ["COMPCOLL_THREADS"]))
    cores = set().union(*node.allgather(os.sched_getaffinity(0)))
    return min(8, max(0, len(cores) // node.Get_size() - 1))


@cache
def _threads(workers: int) -> ThreadPoolExecutor | None:
    return ThreadPoolExecutor(workers, thread_name_prefix="compcoll") if workers else None

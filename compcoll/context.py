"""What compcoll keeps beside a communicator: a private duplicate, threads, scratch memory.

It is made once per communicator, by all its ranks together, hangs on it as an MPI attribute, and is
freed with it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from mpi4py import MPI

from compcoll.messages import Inbox
from compcoll.model.ask import Advisor
from compcoll.model.network import measure_links
from compcoll.model.profile import MachineProfile, load
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
    ranks_per_node, workers : int
        The most of any node, and the fewest threads of any rank.
    advisor : Advisor or None
        What the model says, where a policy asks for it.
    threads : ThreadPoolExecutor or None
        Workers for encoding and decoding, where each rank of a node has cores to spare.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.shadow = MPI.Intracomm(comm).Dup()
        node = self.shadow.Split_type(MPI.COMM_TYPE_SHARED)
        self.ranks_per_node = self.shadow.allreduce(node.Get_size(), MPI.MAX)
        self.link = (
            "node" if self.shadow.allreduce(node.Get_size(), MPI.MIN) == comm.Get_size() else "network"
        )
        workers = _workers(node)
        self.workers = self.shadow.allreduce(workers, MPI.MIN)
        self.threads = _threads(workers)
        self.advisor: Advisor = None  # type: ignore[assignment]
        node.Free()
        self.pool = POOL
        self.multithreaded = self.shadow.allreduce(MPI.Query_thread(), MPI.MIN) == MPI.THREAD_MULTIPLE
        self.pairs = self.shadow.Dup()
        self.inbox = Inbox(MPI.Intracomm(comm))
        self.calls = self.streams = 0
        largest_tag: Any = self.shadow.Get_attr(MPI.TAG_UB)
        self._tags: int = largest_tag // 65
        self.pairwise_tags = (64 * self._tags, 1)

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> Context:
        """The context of a communicator, made where there is none yet; collective."""
        context: Any = comm.Get_attr(_keyval())
        if context is None:
            context = cls(comm)
            comm.Set_attr(_keyval(), context)
        return context

    def prepare_advisor(self) -> None:
        """Have the model ready; collective. Rank 0's stored profile is taken, else links are measured."""
        if self.advisor is None:
            machine = self.shadow.bcast(load() if self.shadow.rank == 0 else None)
            if machine is None:
                machine = MachineProfile("measured", *measure_links(self.shadow), source="when it was needed")
            self.advisor = Advisor(self.shadow, machine, self.ranks_per_node, self.workers)

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


def _workers(node: MPI.Comm) -> int:
    """Threads for each rank: the cores that no rank of the node runs on, shared out; at most 8."""
    if "COMPCOLL_THREADS" in os.environ:
        return max(0, int(os.environ["COMPCOLL_THREADS"]))
    cores = set().union(*node.allgather(os.sched_getaffinity(0)))
    return min(8, max(0, len(cores) // node.Get_size() - 1))


@cache
def _threads(workers: int) -> ThreadPoolExecutor | None:
    return ThreadPoolExecutor(workers, thread_name_prefix="compcoll") if workers else None

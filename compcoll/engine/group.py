"""A communicator as the engine uses it: what its ranks know of each other, what is private to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self
from weakref import WeakSet

from mpi4py import MPI

from compcoll.devices import driver
from compcoll.engine import _engine
from compcoll.engine.auto import Advisor
from compcoll.engine.measure import measure_links
from compcoll.engine.persistent import PersistentPool
from compcoll.engine.start import start_engine
from compcoll.model.profile import UNKNOWN, load

__all__ = ["Facts", "Group", "RankFacts", "facts_of", "largest_tag", "survey"]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
#: Calls that may be under way at once: the most, as far as each then has so many tags, and the fewest.
_MOST, _TAGS, _FEWEST = 1024, 1 << 14, 64


@cache
def largest_tag() -> int:
    """The largest tag of any communicator: an attribute that MPI promises of COMM_WORLD alone."""
    found: Any = _WORLD.Get_attr(MPI.TAG_UB)
    return found


@dataclass(frozen=True)
class Facts:
    """Properties of a communicator that all its ranks know.

    Attributes
    ----------
    link : str
        ``"node"`` where all ranks share one, else ``"network"``.
    ranks_per_node, workers : int
        The most of any node, and the fewest threads of any rank.
    multithreaded : bool
        Whether all ranks may call MPI from several threads.
    gpus : bool
        Whether all ranks have a GPU that arrays may lie on.
    nodes : tuple of int
        The node of each rank, by the first of its ranks; empty where all share one.
    """

    link: str
    ranks_per_node: int
    workers: int
    multithreaded: bool
    gpus: bool = False
    nodes: tuple[int, ...] = ()

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        return len(set(self.nodes)) or 1


class Group:
    """The ranks of a communicator, and what the engine needs to run schedules on them; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    facts : Facts
    workers : int
        Threads of this rank that encode and decode.

    Attributes
    ----------
    comm : MPI.Intracomm
        As mpi4py knows it.
    rank, size : int
    private_comm : MPI.Intracomm
        A duplicate that carries frames, so that no tag ever meets a user's. It is made with the group, since
        no call that comes later has to wait for all ranks; a single rank, which sends nothing, needs none.
    private_handle : int
    facts : Facts
    tags : CallTags
        Of the calls that all ranks make in the same order.
    pairwise_tags : tuple of int
        For calls in which some ranks have no part, so that a count of calls would differ.
    advisor : Advisor or None
        Predictions of the model, where a policy asks for them.
    persistent : PersistentPool
        For persistent calls.
    broken : str
        Why the communicator is in an error state; empty where it is not.
    abandoned : list
        Tasks of failed calls, as MPI may still write to their buffers.
    """

    def __init__(self, comm: MPI.Intracomm, facts: Facts, workers: int):
        self.facts = facts
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.advisor: Advisor = None  # type: ignore[assignment]
        self._most = max(_FEWEST, min(_MOST, largest_tag() // _TAGS))
        n = largest_tag() // (self._most + 1)
        self.pairwise_tags = (self._most * n, n)
        self._begin()
        self.belong_to(comm, MPI.Intracomm(comm).Dup() if self.size > 1 else comm)
        start_engine(workers if self.size > 1 else None)

    def _begin(self) -> None:
        """Be as new."""
        self.broken = ""
        self.abandoned: list[Any] = []
        self.tags = _engine.CallTags(0, self.pairwise_tags[1], self._most)
        self.persistent = PersistentPool(self, largest_tag())
        self.comm = self.private_comm = MPI.Intracomm(MPI.COMM_NULL)
        self._made: MPI.Request = MPI.REQUEST_NULL
        self._duplicates: WeakSet[Group] = WeakSet()

    def belong_to(
        self, comm: MPI.Intracomm, private_comm: MPI.Intracomm, made: MPI.Request = MPI.REQUEST_NULL
    ) -> None:
        """Have communicators, of which the private one is complete when ``made`` is; local."""
        self.comm, self.private_comm, self._made = MPI.Intracomm(comm), private_comm, made
        self.private_handle = _engine.handle(private_comm)
        if self.advisor is not None:
            machine, facts = self.advisor.machine, self.facts
            self.advisor = Advisor(self.comm, machine, facts.ranks_per_node, facts.workers)

    def duplicate(self) -> Self:
        """A group of the same ranks and facts, still without communicators; local."""
        new = copy(self)
        new._begin()
        self._duplicates.add(new)
        return new

    def wait_until_made(self) -> None:
        """Complete the private communicator: all ranks have begun to make it, so none has to come to this."""
        self._made.Wait()

    @contextmanager
    def apart(self) -> Iterator[MPI.Intracomm]:
        """A communicator of all ranks on which nothing else is under way; collective."""
        comm = self.comm.Dup()
        try:
            yield comm
        finally:
            comm.Free()

    def next_tags(self) -> tuple[int, int]:
        """First tag and number of tags of the next call, once the last one that had them has ended here."""
        return self.tags.next(), self.tags.n

    def prepare_advisor(self, parent: Group | None) -> None:
        """Have the model ready; collective. Links that rank 0's stored profile lacks are measured."""
        if self.advisor is None:
            machine = parent.advisor.machine if parent is not None and parent.advisor is not None else None
            if machine is None:
                machine = self.comm.bcast(load() if self.comm.rank == 0 else None)
            if machine is None:
                machine = replace(UNKNOWN, name="measured", source="when it was needed")
            needed = {self.facts.link, *(["node"] if self.facts.ranks_per_node > 1 else [])}
            missing = needed.difference(machine.measured)
            if missing and self.size > 1:
                with self.apart() as comm:
                    links = measure_links(comm)
                machine = machine.with_links(**{name: links[name] for name in missing})
            self.advisor = Advisor(self.comm, machine, self.facts.ranks_per_node, self.facts.workers)

    def free(self) -> None:
        """Free the private communicators, once nothing is under way; collective."""
        for group in (
            self,
            *self._duplicates,
        ):  # Open MPI crashes where their origin is freed first
            group.wait_until_made()
        self.tags.join()
        self.persistent.free()
        if self.size > 1 and self.private_comm != MPI.COMM_NULL:
            self.private_comm.Free()


@dataclass(frozen=True)
class RankFacts:
    """Properties of one rank, from which `facts_of` derives `Facts`.

    Attributes
    ----------
    workers : int
        Its threads.
    multithreaded : bool
    gpu : bool
        Whether it has a GPU, and something to reach it with.
    node : int
        What all ranks of its node, and no others, call that.
    """

    workers: int
    multithreaded: bool
    gpu: bool = False
    node: int = 0


def survey(comm: MPI.Intracomm, workers: int | None, nodes: list[int] | None = None) -> RankFacts:
    """Look around; collective. ``workers`` are those that somebody asked for, ``nodes`` those of
    COMM_WORLD's ranks where they are not to be found.
    """
    comm = MPI.Intracomm(comm)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    affinities = node.allgather((os.sched_getaffinity(0), comm.Get_rank()))
    cores = set().union(*(some for some, _ in affinities))
    near = node.Get_size()
    node.Free()
    # The cores that no rank of the node runs on, shared out; at most 8.
    spare = min(8, max(0, len(cores) // near - 1))
    multithreaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    name = min(rank for _, rank in affinities) if nodes is None else -1 - nodes[_WORLD.Get_rank()]
    return RankFacts(spare if workers is None else workers, multithreaded, driver.is_usable(), name)


def facts_of(everyone: list[RankFacts]) -> Facts:
    """The `Facts` of a communicator, from those of each rank."""
    names = [one.node for one in everyone]
    nodes = tuple(map(names.index, names))
    on_one_node = len(set(nodes)) == 1
    return Facts(
        "node" if on_one_node else "network", max(map(nodes.count, nodes)),
        min(one.workers for one in everyone), all(one.multithreaded for one in everyone),
        all(one.gpu for one in everyone), () if on_one_node else nodes,
    )  # fmt: skip

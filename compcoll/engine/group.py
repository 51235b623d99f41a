"""A communicator as the engine uses it: what its ranks know of each other, what is private to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from time import monotonic
from typing import Any, Self
from weakref import ref

from mpi4py import MPI

from compcoll.core import environment
from compcoll.core._calls import CallTags
from compcoll.devices import driver
from compcoll.engine import _engine, _shared
from compcoll.engine.measure import estimate_link
from compcoll.engine.persistent import PersistentPool
from compcoll.engine.start import start_engine
from compcoll.model.profile import UNKNOWN, load
from compcoll.model.trials import Advisor

__all__ = [
    "Facts",
    "Group",
    "RankFacts",
    "complete",
    "facts_of",
    "largest_tag",
    "survey",
    "wait_for_duplicates",
]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
#: Calls that may be under way at once: the most, as far as each then has so many tags, and the fewest.
_MOST, _TAGS, _FEWEST = 1024, 1 << 14, 64
#: Tags of messages about calls that do not match.
_AGREEMENT_TAGS = 256
#: Whether MPI mixes up a communicator that is made while Idup makes another one: Open MPI 4 does.
_MIXES_UP = MPI.get_vendor()[0] == "Open MPI"
#: Groups whose private communicators Idup may still be making, where that matters.
_unmade: list[ref[Group]] = []


@cache
def largest_tag() -> int:
    """The largest tag of any communicator: an attribute that MPI promises of COMM_WORLD alone."""
    found: Any = _WORLD.Get_attr(MPI.TAG_UB)
    return found


def complete(request: MPI.Request, what: str, seconds: float) -> None:
    """Wait for the request of a collective ``what``; TimeoutError where that takes too many seconds."""
    until = monotonic() + seconds
    while not request.Test():
        if monotonic() > until:
            raise TimeoutError(f"{what}: not all ranks have come within COMPCOLL_TIMEOUT = {seconds:g} s")
        os.sched_yield()


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
    segments : tuple of (int, int)
        Of each rank: what all ranks call the memory that it can share, and the token of its segment there;
        0 where it shares none. Empty where all ranks are on one node.
    sharing : float
        The most ranks of any node for each of its cores, at least 1.
    """

    link: str
    ranks_per_node: int
    workers: int
    multithreaded: bool
    gpus: bool = False
    nodes: tuple[int, ...] = ()
    segments: tuple[tuple[int, int], ...] = ()
    sharing: float = 1.0

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
    key : str
        The same on all ranks; no other group of any of them has it.

    Attributes
    ----------
    comm : MPI.Intracomm
        As mpi4py knows it.
    rank, size : int
    private_comm : MPI.Intracomm
        A duplicate that carries frames, so that no tag ever meets a user's. It is made with the group, since
        no call that comes later has to wait for all ranks; a single rank, which sends nothing, needs none.
    private_handle : int
    neighbours : Neighbours or None
        Ranks that share memory with this one.
    facts : Facts
    tags : CallTags
        Of the calls that all ranks make in the same order.
    pairwise_tags : CallTags
        Of blocking calls in which pairs of ranks decide: always the same, as not all ranks count them, and
        messages of a pair arrive in order. Nonblocking ones take `tags` on all ranks.
    agreement_tags : range
        For messages about calls that do not match.
    advisor : Advisor or None
        Predictions of the model, where a policy asks for them.
    persistent : PersistentPool
        For persistent calls.
    broken : str
        Why the communicator is in an error state; empty where it is not.
    """

    def __init__(self, comm: MPI.Intracomm, facts: Facts, workers: int, key: str = ""):
        self.facts, self._key = facts, key
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.advisor: Advisor = None  # type: ignore[assignment]
        self._most = max(_FEWEST, min(_MOST, largest_tag() // _TAGS))
        n = (largest_tag() - _AGREEMENT_TAGS) // (self._most + 1)
        self.pairwise_tags = CallTags(self._most * n, n, 1)
        self.agreement_tags = range((self._most + 1) * n, largest_tag() + 1)[:_AGREEMENT_TAGS]
        self._begin()
        self.belong_to(comm, MPI.Intracomm(comm).Dup() if self.size > 1 else comm)
        start_engine(workers if self.size > 1 else None)
        if facts.sharing > 1:
            _engine.crowd()

    def _begin(self) -> None:
        """Be as new."""
        self.broken = ""
        self.tags = CallTags(0, self.pairwise_tags.n, self._most)
        self.persistent = PersistentPool(self, largest_tag())
        self.comm = self.private_comm = MPI.Intracomm(MPI.COMM_NULL)
        self._n_duplicates = 0
        self._made: _engine.Request | None = None
        self._begun: list[ref[Group]] = []  # duplicates that may not be complete

    def belong_to(
        self, comm: MPI.Intracomm, private_comm: MPI.Intracomm, made: MPI.Request = MPI.REQUEST_NULL
    ) -> None:
        """Have communicators, of which the private one is complete when ``made`` is; local."""
        self.comm, self.private_comm = MPI.Intracomm(comm), private_comm
        if made != MPI.REQUEST_NULL:  # in the background: MPICH makes no communicator of one rank meanwhile
            self._made = _engine.Request(made)
            _engine.leave(self._made)
            if _MIXES_UP:
                _unmade.append(ref(self))
        self.private_handle = _engine.handle(private_comm)
        self.neighbours = self.find_neighbours()
        if self.advisor is not None:
            machine, facts = self.advisor.machine, self.facts
            self.advisor = Advisor(self.comm, machine, facts.ranks_per_node, facts.workers)

    def duplicate(self) -> Self:
        """A group of the same ranks and facts, still without communicators; local."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._begin()
        self._n_duplicates += 1
        new._key = f"{self._key}/{self._n_duplicates}"
        return new

    def find_neighbours(self, n: int = 0) -> _shared.Neighbours | None:
        """The ranks that share memory with this one, for private communicator ``n`` of the group."""
        nodes, segments = self.facts.nodes, self.facts.segments
        if not segments or not segments[self.rank][1]:
            return None
        tokens = [0] * self.size
        for rank, (memory, token) in enumerate(segments):
            if rank != self.rank and (nodes[rank], memory) == (nodes[self.rank], segments[self.rank][0]):
                tokens[rank] = token
        if not any(tokens):
            return None
        digest = hashlib.blake2b(f"{self._key}, {n}".encode(), digest_size=8).digest()
        return _shared.Neighbours(int.from_bytes(digest, "little"), self.rank, tokens)

    def wait_until_made(self) -> None:
        """Complete the private communicator: all ranks have begun to make it, so none has to come to this."""
        if self._made is not None:
            if not _engine.join(self._made, seconds := environment.timeout()):
                raise TimeoutError(f"Idup: not all ranks have come within COMPCOLL_TIMEOUT = {seconds:g} s")
            self._made = None

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
        """Have the model ready; collective. A link that rank 0's stored profile lacks is estimated."""
        if self.advisor is None:
            machine = parent.advisor.machine if parent is not None and parent.advisor is not None else None
            if machine is None:
                machine = self.comm.bcast(load() if self.comm.rank == 0 else None)
            if machine is None:
                machine = replace(UNKNOWN, name="measured", source="when it was needed")
            link, nodes = self.facts.link, self.facts.nodes or (0,) * self.size
            if link not in machine.measured and self.size > 1:
                peer = next(r for r in range(1, self.size) if link == "node" or nodes[r] != nodes[0])
                with self.apart() as comm:
                    machine = machine.with_links(**{link: estimate_link(comm, peer)})
            machine = replace(machine, sharing=max(machine.sharing, self.facts.sharing))
            self.advisor = Advisor(self.comm, machine, self.facts.ranks_per_node, self.facts.workers)

    def free(self) -> None:
        """Free the private communicators, once nothing is under way; collective."""
        self.wait_until_made()
        for known in self._begun:  # Open MPI crashes where their origin is freed first
            if (group := known()) is not None:
                group.wait_until_made()
        self.tags.join()
        self.persistent.free()
        if self.size > 1 and self.private_comm != MPI.COMM_NULL:
            self.private_comm.Free()


def wait_for_duplicates() -> None:
    """Complete the private communicators of duplicates before another communicator is made.

    All ranks have begun them if the program has completed its own, as it has to where this matters.
    """
    while _unmade:
        group = _unmade.pop()()
        if group is not None:
            group.wait_until_made()


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
    memory, token : int
        What all ranks call the memory that it can share, and the token of its segment; 0 if it shares none.
    sharing : float
        Ranks of its node for each of the cores that they may use.
    """

    workers: int
    multithreaded: bool
    gpu: bool = False
    node: int = 0
    memory: int = 0
    token: int = 0
    sharing: float = 1.0


def survey(
    comm: MPI.Intracomm, workers: int | None, nodes: list[int] | None = None, shares: bool = True
) -> RankFacts:
    """Look around; collective. ``workers`` are those that somebody asked for, ``nodes`` those of
    COMM_WORLD's ranks where they are not to be found, ``shares`` whether memory may be shared.
    """
    comm = MPI.Intracomm(comm)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    near = node.Get_size()
    several = nodes is not None or near < comm.Get_size()
    address = _shared.address() if shares and several else None
    found = node.allgather((os.sched_getaffinity(0), comm.Get_rank(), address))
    shares = node.allreduce(_shared.attach([one for *_, one in found]), MPI.LAND)
    cores = set().union(*(some for some, *_ in found))
    node.Free()
    # The cores that no rank of the node runs on, shared out; at most 8.
    spare = min(8, max(0, len(cores) // near - 1))
    multithreaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    memory = min(rank for _, rank, _ in found)
    name = memory if nodes is None else -1 - nodes[_WORLD.Get_rank()]
    return RankFacts(
        spare if workers is None else workers,
        multithreaded,
        driver.is_usable(),
        name,
        memory,
        address[-1] if address is not None and shares else 0,
        near / len(cores),
    )


def facts_of(everyone: list[RankFacts]) -> Facts:
    """The `Facts` of a communicator, from those of each rank."""
    names = [one.node for one in everyone]
    nodes = tuple(map(names.index, names))
    on_one_node = len(set(nodes)) == 1
    # Frames in the memory of GPUs are not for other processes to read.
    shares = not on_one_node and not any(one.gpu for one in everyone)
    return Facts(
        "node" if on_one_node else "network",
        max(map(nodes.count, nodes)),
        min(one.workers for one in everyone),
        all(one.multithreaded for one in everyone),
        all(one.gpu for one in everyone),
        () if on_one_node else nodes,
        tuple((one.memory, one.token) for one in everyone) if shares else (),
        max(1.0, *(one.sharing for one in everyone)),
    )

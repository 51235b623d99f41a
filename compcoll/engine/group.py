"""A communicator for the engine: facts that its ranks know of each other, and its private parts."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from math import inf
from time import monotonic
from typing import Any

from mpi4py import MPI

from compcoll.devices import cuda
from compcoll.devices.aware import reported
from compcoll.engine import _engine
from compcoll.engine.cores import cores_of_process, spare_cores
from compcoll.engine.start import start_threads

__all__ = [
    "Facts",
    "RankFacts",
    "complete",
    "facts_of",
    "find_neighbours",
    "largest_tag",
    "make_private",
    "survey",
    "tell_long_wait",
]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD


@cache
def largest_tag() -> int:
    """The largest tag on any communicator; MPI guarantees this attribute only for COMM_WORLD."""
    found: Any = _WORLD.Get_attr(MPI.TAG_UB)
    return found


def complete(comm: MPI.Intracomm, request: MPI.Request, what: str, limit: float, notice: float) -> None:
    """Wait for the request of a collective ``what``.

    TimeoutError after ``limit`` seconds; after ``notice`` seconds, the wait is told on stderr.
    """
    began = monotonic()
    while not request.Test():
        waited = monotonic() - began
        if waited > limit:
            raise TimeoutError(f"{what}: not all ranks have come within COMPCOLL_TIMEOUT = {limit:g} s")
        if waited > notice:
            tell_long_wait(comm, f"{what} has waited {notice:g} s for other ranks")
            notice = inf
        os.sched_yield()


def make_private(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Make a communicator of the same ranks for the library's own messages; collective.

    Unlike a duplicate it has none of the program's attributes, whose callbacks would run.
    """
    group = comm.Get_group()
    made = MPI.Intracomm(comm).Create(group)
    group.Free()
    return MPI.Intracomm(made)


def tell_long_wait(comm: MPI.Intracomm, what: str) -> None:
    """Say on stderr that a call waits; only ranks 0, 1, 2, 4, 8, ... do, as all ranks may wait for one."""
    rank = comm.Get_rank()
    if not rank & (rank - 1):
        text = (
            f"compcoll: rank {rank} of {comm.Get_size()}: {what}; COMPCOLL_TIMEOUT=SECONDS makes it an error"
        )
        print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Facts:
    """Properties of a communicator that all its ranks know.

    Attributes
    ----------
    link : str
        ``"node"`` where all ranks share one, else ``"network"``.
    ranks_per_node, workers : int
        The largest number of ranks of a node, and the smallest number of threads of a rank.
    multithreaded : bool
        True if all ranks may call MPI from several threads, and have them.
    gpus : bool
        True if all ranks have a GPU that arrays may be on.
    nodes : tuple of int
        The node of each rank, by the first of its ranks; empty if all share one.
    segments : tuple of (int, int)
        For each rank, the identifier of the memory that it can share, and the token of its segment there; 0
        if it shares none. Empty if only some ranks have GPUs, and on one node unless all have.
    sharing : float
        Largest number of ranks per core of any node, at least 1.
    processors : tuple of str
        Models of all nodes' processors.
    takes_devices : bool
        True if MPI says on all ranks that it takes memory of GPUs.
    """

    link: str
    ranks_per_node: int
    workers: int
    multithreaded: bool
    gpus: bool = False
    nodes: tuple[int, ...] = ()
    segments: tuple[tuple[int, int], ...] = ()
    sharing: float = 1.0
    processors: tuple[str, ...] = ()
    takes_devices: bool = False

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(set(self.nodes)) or 1


def find_neighbours(facts: Facts, rank: int, key: int) -> _engine.Neighbours | None:
    """The ranks that share memory with one, of a communicator of which ``key`` is that of no other."""
    segments = facts.segments
    if not segments or not segments[rank][1]:
        return None
    nodes = facts.nodes or (0,) * len(segments)
    tokens = [0] * len(segments)
    for other, (memory, token) in enumerate(segments):
        if other != rank and (nodes[other], memory) == (nodes[rank], segments[rank][0]):
            tokens[other] = token
    return _engine.Neighbours(key, rank, tokens) if any(tokens) else None


@dataclass(frozen=True)
class RankFacts:
    """Properties of one rank, from which `facts_of` derives `Facts`.

    Attributes
    ----------
    workers : int
        Its threads.
    multithreaded : bool
    gpu : bool
        True if it has a GPU, and a library to use it.
    node : int
        Identifier of its node, equal on all ranks of the node and on no others.
    memory, token : int
        Identifier of the memory that it can share, and the token of its segment; 0 if it shares none.
    sharing : float
        Ranks of its node per core that they may use.
    processor : str
        Model of its processor.
    takes_devices : bool
        True if MPI says that it takes memory of GPUs.
    """

    workers: int
    multithreaded: bool
    gpu: bool = False
    node: int = 0
    memory: int = 0
    token: int = 0
    sharing: float = 1.0
    processor: str = ""
    takes_devices: bool = False


def survey(
    comm: MPI.Intracomm, workers: int | None, nodes: list[int] | None = None, shares: bool = True
) -> RankFacts:
    """Collect the facts of all ranks, and start threads; collective.

    ``workers``: a requested number of threads; ``nodes``: nodes of COMM_WORLD's ranks, instead of detecting
    them; ``shares``: true if memory may be shared.
    """
    comm = MPI.Intracomm(comm)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    near = node.Get_size()
    several = nodes is not None or near < comm.Get_size()
    gpu = cuda.is_usable()
    address = _engine.segment_address() if shares and (several or gpu) else None
    mine = cores_of_process()
    found = node.allgather((mine, comm.Get_rank(), address))
    shares = node.allreduce(_engine.attach_segments([one for *_, one in found]), MPI.LAND)
    spare, sharing = spare_cores(mine, [one for one, *_ in found])
    node.Free()
    memory = min(rank for _, rank, _ in found)
    name = memory if nodes is None else -1 - nodes[_WORLD.Get_rank()]
    return RankFacts(
        spare if workers is None else workers,
        start_threads(),
        gpu,
        name,
        memory,
        address[-1] if address is not None and shares else 0,
        sharing,
        _processor(),
        bool(reported()),
    )


def facts_of(everyone: list[RankFacts]) -> Facts:
    """The `Facts` of a communicator, from those of each rank."""
    names = [one.node for one in everyone]
    nodes = tuple(map(names.index, names))
    on_one_node = len(set(nodes)) == 1
    gpus = [one.gpu for one in everyone]
    # On one node MPI's messages are as fast for host memory, but need copies for GPUs.
    shares = all(gpus) or not (on_one_node or any(gpus))
    return Facts(
        "node" if on_one_node else "network",
        max(map(nodes.count, nodes)),
        min(one.workers for one in everyone),
        all(one.multithreaded for one in everyone),
        all(gpus),
        () if on_one_node else nodes,
        tuple((one.memory, one.token) for one in everyone) if shares else (),
        max(1.0, *(one.sharing for one in everyone)),
        tuple(sorted({one.processor for one in everyone})),
        all(one.takes_devices for one in everyone),
    )


@cache
def _processor() -> str:
    """The model of this node's processor, in few words."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":") for line in file.read(4096).splitlines()]
    except OSError:
        return platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in lines}
    known = (facts.get("model name"), facts.get("cpu family"), facts.get("model"), facts.get("CPU part"))
    return "/".join(filter(None, known)) or platform.machine()

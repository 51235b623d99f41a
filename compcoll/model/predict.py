"""How long a collective takes: the real algorithms under a virtual clock, over a machine's profile.

Most algorithms look the same from every rank, so one rank is simulated and its own messages, mirrored,
stand for those of the others: what it sends to rank r + d at a time is what comes from rank r - d then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, inf, log2

from compcoll import algorithms as alg
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.runtime.base import Future
from compcoll.runtime.simulated import Link, Profile, SimulatedFrame, SimulatedRuntime, SizeBlock, World

__all__ = ["Call", "plain_seconds", "predict"]

#: Algorithms in which all ranks of a node send to other nodes at the same time.
_CROWDED = {"pairwise", "direct", "recursive_doubling"}
_SUM = {"ring": alg.ring_sum, "direct": alg.direct_sum, "compressed": alg.compressed_sum}


@dataclass(frozen=True)
class Call:
    """A collective as the model sees it.

    Attributes
    ----------
    op : str
        Name of the method.
    nbytes : int
        Bytes of one message, as policies count them: a peer's block; a P-th of an Allreduce.
    size : int
        Ranks.
    ranks_per_node : int
    workers : int
        Cores of each rank that encode and decode beside its messages.
    """

    op: str
    nbytes: int
    size: int
    ranks_per_node: int = 1
    workers: int = 0

    @property
    def on_one_node(self) -> bool:
        """Whether no message leaves the node."""
        return self.ranks_per_node >= self.size


class MirrorWorld(World):
    """One rank that stands for all of a symmetric algorithm."""

    def __init__(self, size: int, profile: Profile, flip: bool = False):
        super().__init__(1, profile)
        self.size, self.flip = size, flip
        self.ranks = [SimulatedRuntime(self, 0, size)]

    def transmit(self, rt: SimulatedRuntime, frame: SimulatedFrame, dest: int, tag: int) -> Future:
        source = dest if self.flip else -dest % self.size
        return self.carry(rt, frame, dest, (source, 0, tag))


def predict(
    call: Call, machine: MachineProfile, speed: CodecSpeed, algorithm: str, chunk_nbytes: int
) -> float:
    """Seconds of a compressed collective.

    Parameters
    ----------
    call : Call
    machine : MachineProfile
    speed : CodecSpeed
        Of the codec, on data like the caller's.
    algorithm : str
        One of `compcoll.policy.ALGORITHMS` for the operation.
    chunk_nbytes : int
    """
    return _simulate(call, machine, speed, machine.call, algorithm, chunk_nbytes)


def plain_seconds(call: Call, machine: MachineProfile, algorithms: Iterable[str]) -> float:
    """Seconds of the same collective in plain MPI.

    Where the library is known, of the algorithms that it uses; otherwise the least of those and of what
    the algorithms of this library take without a codec, so that no gain is promised that may not be had.
    """
    book = _by_the_book(call, machine)
    if machine.library in _MPICH:
        return book
    whole, pipelined = max(call.nbytes, 1), 128 << 10
    times = [book]
    for algorithm in algorithms:
        chunk = pipelined if algorithm in ("chain", "tree") else whole
        times.append(_simulate(call, machine, _RAW, machine.message / 2, algorithm, chunk))
    return min(times)


#: Libraries with the collectives of MPICH.
_MPICH = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2")


def _by_the_book(call: Call, machine: MachineProfile) -> float:
    """MPICH's algorithms for long messages, bytes through one port and a latency a round.

    Thakur, Rabenseifner and Gropp: Optimization of Collective Communication Operations in MPICH, 2005.
    """
    link = machine.node if call.on_one_node else machine.network
    size, others, n = call.size, call.size - 1, call.nbytes
    parts: list[tuple[float, str]]
    if call.op.startswith("Alltoall"):  # what leaves the node, through the port that its ranks share
        k = min(call.ranks_per_node, size)
        outside = others * n if call.on_one_node else (size - k) * n * k
        rounds, parts = float(others), [(outside, "shift" if size & others else "pairs")]
    elif call.op == "Bcast" and size < 8:  # a binomial tree
        rounds, parts = ceil(log2(size)), [(n * ceil(log2(size)), "")]
    elif call.op == "Bcast":  # scatter and allgather
        rounds, parts = log2(size) + others, [(n * others / size, ""), (n * others / size, "ring")]
    elif call.op in ("Allreduce", "Reduce"):  # halving and doubling
        rounds, parts = 2 * log2(size), [(2 * others * n, "pairs")]
    elif call.op.startswith("Reduce_scatter"):
        rounds, parts = float(others), [(others * n, "shift")]
    elif call.op in ("Send", "Recv", "Sendrecv"):
        rounds, parts = 1.0, [(n, "")]
    else:
        rounds, parts = log2(size), [(others * n, "ring" if call.op.startswith("Allgather") else "")]
    added = others * n if "educe" in call.op else 0  # read, added and written by processors
    moving = 0.0
    for nbytes, pattern in parts:
        part = 1.0 if call.on_one_node else machine.share(pattern, n)
        moving += nbytes / (link.bandwidth * part)
    return rounds * (link.latency + machine.message) + moving + added * machine.sharing / machine.memory


_RAW = CodecSpeed(inf, inf, 1.0)


def _simulate(
    call: Call,
    machine: MachineProfile,
    speed: CodecSpeed,
    per_chunk: float,
    algorithm: str,
    chunk_nbytes: int,
) -> float:
    crowded, slower = algorithm in _CROWDED, machine.sharing
    network = _port(call, machine.network, crowded)
    pattern = "all" if crowded else "ring" if algorithm == "ring" else ""
    part = machine.share(pattern, call.nbytes / speed.ratio)
    profile = Profile(
        replace(network, bandwidth=network.bandwidth * part, cpu=network.cpu * slower), machine.node,
        # On a ring or a tree, the ranks whose neighbours are on other nodes are those that all wait for.
        call.ranks_per_node if crowded or call.on_one_node else 1,
        speed.encode / slower, speed.decode / slower, speed.ratio, per_chunk * slower, chunk_nbytes,
        call.workers, memory=machine.memory / slower if speed.encode < inf else inf,
        reconstruct=speed.reconstruct / slower,
    )  # fmt: skip
    return _run(call, profile, algorithm)


def _port(call: Call, network: Link, crowded: bool) -> Link:
    """A rank's part of its node's port, which all its ranks use at once where it is crowded."""
    share = min(call.ranks_per_node, call.size) if crowded else 1
    return replace(network, bandwidth=network.bandwidth / share)


def _run(call: Call, profile: Profile, algorithm: str) -> float:
    size, block = call.size, SizeBlock(call.nbytes)
    blocks = [block] * size
    mirrored = MirrorWorld(size, profile, flip=algorithm == "recursive_doubling")
    if call.op in ("Alltoall", "Alltoallv"):
        return mirrored.run(lambda rt: alg.alltoall(rt, blocks, blocks))
    if call.op in ("Allgather", "Allgatherv"):
        gather = alg.ring_allgather if algorithm == "ring" else alg.recursive_doubling_allgather
        return mirrored.run(lambda rt: gather(rt, block, blocks))
    if call.op.startswith("Reduce_scatter"):
        return mirrored.run(lambda rt: alg.reduce_scatter(rt, blocks, block, _SUM[algorithm]))
    if call.op == "Allreduce":
        return mirrored.run(lambda rt: alg.allreduce(rt, blocks, blocks, _SUM[algorithm]))
    world = World(size, profile)
    if call.op == "Bcast":
        bcast = alg.chain_bcast if algorithm == "chain" else alg.tree_bcast
        return world.run(lambda rt: bcast(rt, block, 0))
    if call.op in ("Gather", "Gatherv"):
        return world.run(lambda rt: alg.gather(rt, block, blocks, 0))
    if call.op in ("Scatter", "Scatterv"):
        return world.run(lambda rt: alg.scatter(rt, blocks, block, 0))
    if call.op == "Reduce":
        scattered = mirrored.run(lambda rt: alg.reduce_scatter(rt, blocks, block, _SUM[algorithm]))
        return scattered + world.run(lambda rt: alg.gather(rt, block, blocks, 0))
    pair = World(2, profile)
    return pair.run(lambda rt: alg.gather(rt, block, [block, block], 0))

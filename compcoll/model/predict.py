"""How long a collective takes: the real algorithms under a virtual clock, over a machine's profile.

Most algorithms look the same from every rank, so one rank is simulated and its own messages, mirrored,
stand for those of the others: what it sends to rank r + d at a time is what comes from rank r - d then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, log2

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

    The least of what the same algorithms take without a codec, and of what those take that MPI libraries
    use (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
    2005): the lower bound of bytes through one port, and a latency a round.
    """
    whole, pipelined = max(call.nbytes, 1), 128 << 10
    times = [_by_the_book(call, machine)]
    for algorithm in algorithms:
        chunk = pipelined if algorithm in ("chain", "tree") else whole
        times.append(_simulate(call, machine, _RAW, machine.message / 2, algorithm, chunk))
    return min(times)


def _by_the_book(call: Call, machine: MachineProfile) -> float:
    link = machine.node if call.on_one_node else machine.network
    others, n = call.size - 1, call.nbytes
    rounds: float
    nbytes: float
    if call.op.startswith("Alltoall"):  # what leaves the node, through the port that its ranks share
        k = min(call.ranks_per_node, call.size)
        outside = others if call.on_one_node else call.size - k
        rounds, nbytes = others, outside * n * (1 if call.on_one_node else k)
    elif call.op == "Bcast":  # scatter and allgather
        rounds, nbytes = log2(call.size) + others, n if call.size == 2 else 2 * n * others / call.size
    elif call.op in ("Allreduce", "Reduce"):
        rounds, nbytes = 2 * log2(call.size), 2 * others * n
    elif call.op in ("Send", "Recv", "Sendrecv"):
        rounds, nbytes = 1, n
    else:
        rounds, nbytes = log2(call.size), others * n
    return rounds * (link.latency + machine.message) + nbytes / link.bandwidth


_RAW = CodecSpeed(inf, inf, 1.0)


def _simulate(
    call: Call,
    machine: MachineProfile,
    speed: CodecSpeed,
    per_chunk: float,
    algorithm: str,
    chunk_nbytes: int,
) -> float:
    crowded = algorithm in _CROWDED
    profile = Profile(
        _port(call, machine.network, crowded), machine.node,
        # On a ring or a tree, the ranks whose neighbours are on other nodes are those that all wait for.
        call.ranks_per_node if crowded or call.on_one_node else 1,
        speed.encode, speed.decode, speed.ratio, per_chunk, chunk_nbytes, call.workers,
        memory=machine.memory if speed.encode < inf else inf, reconstruct=speed.reconstruct,
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

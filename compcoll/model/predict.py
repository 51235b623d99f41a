"""How long a collective takes: the real algorithms under a virtual clock, over a machine's profile.

Most algorithms look the same from every rank, so one rank is simulated and its own messages, mirrored,
stand for those of the others: what it sends to rank r + d at a time is what comes from rank r - d then.
"""

from __future__ import annotations

from dataclasses import dataclass

from compcoll import algorithms as alg
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.runtime.base import Future
from compcoll.runtime.simulated import Link, Profile, SimulatedFrame, SimulatedRuntime, SizeBlock, World

__all__ = ["Call", "plain_seconds", "predict"]

_SUM = {"ring": alg.ring_sum, "direct": alg.direct_sum}


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
    profile = Profile(
        _shared(call, machine.network), machine.node, call.ranks_per_node, speed.encode, speed.decode,
        speed.ratio, machine.call, chunk_nbytes, call.workers,
    )  # fmt: skip
    return _simulate(call, profile, algorithm)


def _shared(call: Call, network: Link) -> Link:
    """A rank's part of its node's port: all ranks of a node use it at once, but for rings and chains."""
    if call.op in ("Alltoall", "Alltoallv"):
        return Link(
            network.latency, network.bandwidth / min(call.ranks_per_node, call.size), network.overhead
        )
    return network


def _simulate(call: Call, profile: Profile, algorithm: str) -> float:
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


def plain_seconds(call: Call, machine: MachineProfile) -> float:
    """Seconds of the same collective in plain MPI, by the algorithms that MPI libraries use.

    Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"
    (2005): the lower bound of bytes through one port, and a latency a round.
    """
    link = machine.node if call.on_one_node else _shared(call, machine.network)
    others, n = call.size - 1, call.nbytes
    rounds, ports = {
        "Alltoall": (others, others * n), "Alltoallv": (others, others * n),
        "Allgather": (others, others * n), "Allgatherv": (others, others * n),
        "Reduce_scatter": (others, others * n), "Reduce_scatter_block": (others, others * n),
        "Allreduce": (2 * others, 2 * others * n), "Reduce": (2 * others, 2 * others * n),
        "Bcast": (others, n if call.size == 2 else 2 * n * others / call.size),
        "Gather": (1, others * n), "Gatherv": (1, others * n),
        "Scatter": (1, others * n), "Scatterv": (1, others * n),
    }.get(call.op, (1, n))  # fmt: skip
    return rounds * (link.latency + machine.message) + ports / link.bandwidth

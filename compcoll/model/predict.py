"""How long a collective takes: the real algorithms under a virtual clock, over a machine's profile.

Symmetric algorithms are simulated on one rank or one node, which stands for all: see `mirror`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from compcoll import algorithms as alg
from compcoll.model.mirror import MirrorWorld
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.runtime.links import Profile
from compcoll.runtime.simulated import SizeBlock, World

__all__ = ["Call", "not_hidden", "predict", "simulated"]

#: What ranks do to the network; see `MachineProfile`.
_PATTERNS = {
    "pairwise": "all", "direct": "all", "recursive_doubling": "all", "ring": "ring", "compressed": "ring",
    "chain": "chain",
}  # fmt: skip
#: Algorithms of which only the ranks at a node's ends send to other nodes.
_RINGS = {"ring", "compressed"}
#: Ranks of a node that are simulated: on a ring, where more take as long, and at most where they take turns
#: at its port. Where they do not, or are more, a rank with its part of the port stands for all.
_ENOUGH, _MOST = 4, 16
#: Where work takes so many times longer while all ranks work, they have too few cores; below, it is noise.
_SHARED = 1.2
#: Seconds for which a rank that works goes on before the operating system gives its core to one that waits:
#: two slices of Linux's scheduler, of some 3 ms.
_SLICE_SECONDS = 6e-3
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
    hidden = simulated(call, machine, speed, machine.call, algorithm, chunk_nbytes)
    part = machine.exposed_part(_PATTERNS.get(algorithm, ""), call.nbytes / speed.ratio, speed.encode)
    if not part:
        return hidden
    return hidden + part * (not_hidden(call, machine, speed, algorithm, chunk_nbytes) - hidden)


def not_hidden(
    call: Call, machine: MachineProfile, speed: CodecSpeed, algorithm: str, chunk_nbytes: int
) -> float:
    """Seconds of a compressed collective whose ranks either code or send."""
    anywhere = replace(machine, network=replace(machine.network, bandwidth=inf))
    nothing = CodecSpeed(inf, inf, speed.ratio)
    idle = replace(machine, network=replace(machine.network, cpu=0.0))
    return simulated(call, anywhere, speed, machine.call, algorithm, chunk_nbytes) + simulated(
        call, idle, nothing, 0.0, algorithm, chunk_nbytes
    )


def simulated(
    call: Call,
    machine: MachineProfile,
    speed: CodecSpeed,
    per_chunk: float,
    algorithm: str,
    chunk_nbytes: int,
) -> float:
    """Seconds with so much for each chunk, and all hidden that can be."""
    profile = Profile(
        machine.network, machine.node, call.ranks_per_node, speed.encode, speed.decode, speed.ratio,
        per_chunk, chunk_nbytes, call.workers,
        memory=machine.memory if speed.encode < inf else inf, reconstruct=speed.reconstruct,
    )  # fmt: skip
    # Where all ranks work at the same time each has its share of the cores, else those that work have more.
    crowded = profile.slower(machine.sharing)
    cores = round(call.size / machine.sharing) if machine.sharing > _SHARED else call.size
    if call.op in ("Send", "Recv", "Sendrecv"):
        block = SizeBlock(call.nbytes)
        return World(2, crowded).run(lambda rt: alg.gather(rt, block, [block, block], 0))
    if call.op in ("Bcast", "Gather", "Gatherv", "Scatter", "Scatterv"):
        return _rooted(call, profile, crowded, cores, algorithm)
    seconds = _symmetric(call, _mirror(call, crowded, algorithm), algorithm)
    if call.op == "Reduce":
        seconds += _rooted(replace(call, op="Gather"), profile, crowded, cores, "")
    return seconds


def _mirror(call: Call, profile: Profile, algorithm: str) -> MirrorWorld:
    """One rank where all look alike, else the ranks of one node."""
    size, per_node = call.size, min(call.ranks_per_node, call.size)
    flip = algorithm == "recursive_doubling"  # of a power of two of ranks
    if call.on_one_node:
        return MirrorWorld(size, profile, 1, flip)
    if algorithm in _RINGS:
        per_node = min(per_node, _ENOUGH)
        return MirrorWorld(-(-size // per_node) * per_node, profile.with_(ranks_per_node=per_node), per_node)
    if flip and per_node <= _MOST:
        per_node = min(1 << (per_node - 1).bit_length(), size)
        return MirrorWorld(size, profile.with_(ranks_per_node=per_node), per_node, flip)
    network = replace(profile.network, bandwidth=profile.network.bandwidth / per_node)
    return MirrorWorld(size, profile.with_(network=network), 1, flip)


def _symmetric(call: Call, world: MirrorWorld, algorithm: str) -> float:
    block = SizeBlock(call.nbytes)
    blocks = [block] * world.size
    if call.op in ("Alltoall", "Alltoallv"):
        return world.run(lambda rt: alg.alltoall(rt, blocks, blocks))
    if call.op in ("Allgather", "Allgatherv"):
        gather = alg.ring_allgather if algorithm == "ring" else alg.recursive_doubling_allgather
        return world.run(lambda rt: gather(rt, block, blocks))
    if call.op == "Allreduce":
        return world.run(lambda rt: alg.allreduce(rt, blocks, blocks, _SUM[algorithm]))
    return world.run(lambda rt: alg.reduce_scatter(rt, blocks, block, _SUM[algorithm]))


def _rooted(call: Call, profile: Profile, crowded: Profile, cores: int, algorithm: str) -> float:
    """With too few cores, ranks that look for messages take time from those that work, if it lasts."""
    if cores >= call.size:
        return _rooted_in(World(call.size, profile), call, algorithm)
    working = _rooted_in(World(call.size, profile.with_(cores=cores)), call, algorithm)
    all_ranks = _rooted_in(World(call.size, crowded), call, algorithm)
    return working + (all_ranks - working) * working / (working + _SLICE_SECONDS)


def _rooted_in(world: World, call: Call, algorithm: str) -> float:
    block = SizeBlock(call.nbytes)
    blocks = [block] * call.size
    if call.op == "Bcast":
        bcast = alg.chain_bcast if algorithm == "chain" else alg.tree_bcast
        return world.run(lambda rt: bcast(rt, block, 0))
    if call.op.startswith("Gather"):
        return world.run(lambda rt: alg.gather(rt, block, blocks, 0))
    return world.run(lambda rt: alg.scatter(rt, blocks, block, 0))

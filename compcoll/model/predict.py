"""How long a collective takes: the real algorithms under a virtual clock, over a machine's profile.

Symmetric algorithms are simulated on one rank or one node, which stands for all: see `mirror`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, inf, log2

from compcoll import algorithms as alg
from compcoll.model.mirror import MirrorWorld
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.runtime.links import Link, Profile
from compcoll.runtime.simulated import SizeBlock, World

__all__ = ["PIPELINED", "Call", "plain_seconds", "predict"]

#: Algorithms in which all ranks send to other nodes at the same time.
_CROWDED = {"pairwise", "direct", "recursive_doubling", "ring", "compressed"}
#: Algorithms of which only the ranks at a node's ends do.
_RINGS = {"ring", "compressed"}
#: Ranks of a node that are simulated: on a ring, where more take as long, and at most where they take turns
#: at its port. Where they do not, or are more, a rank with its part of the port stands for all.
_ENOUGH, _MOST = 4, 16
#: Where work takes so many times longer while all ranks work, they have too few cores; below, it is noise.
_SHARED = 1.2
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
    return _simulate(call, machine, speed, machine.call, algorithm, chunk_nbytes)


def plain_seconds(call: Call, machine: MachineProfile, algorithms: Iterable[str]) -> float:
    """Seconds of the same collective in plain MPI.

    Where the library is known, of the algorithms that it uses; otherwise the least of those and of what
    the algorithms of this library take without a codec, so that no gain is promised that may not be had.
    """
    book = _by_the_book(call, machine)
    if machine.is_mpich:
        return book
    whole = max(call.nbytes, 1)
    times = [book]
    for algorithm in algorithms:
        chunk = PIPELINED if algorithm in ("chain", "tree") else whole
        times.append(_simulate(call, machine, _RAW, machine.message / 2, algorithm, chunk))
    return min(times)


#: Chunks of pipelined algorithms without a codec, in bytes.
PIPELINED = 128 << 10
#: What a connection's socket buffers hold at least, once it is under way (Linux, tcp_wmem and tcp_rmem).
_SOCKET_NBYTES = 1 << 20
#: MPICH's Allgather goes round a ring from this total size on.
_RING_NBYTES = 512 << 10


def _by_the_book(call: Call, machine: MachineProfile) -> float:
    """MPICH's algorithms for long messages, bytes through one port and a latency a round.

    Thakur, Rabenseifner and Gropp: Optimization of Collective Communication Operations in MPICH, 2005; what
    MPICH 5 selects for long messages is the same. It looks at nodes for Allreduce and small Bcasts only: its
    pairwise Reduce_scatter moves ``k (P - k)`` blocks through the port of ``k`` ranks where a ring moves
    ``P - 1``, as ``make report`` measures on two hosts of eight ranks.
    """
    link = machine.node if call.on_one_node else machine.network
    rounds, hops, parts = _steps(call, link)
    moving = 0.0
    for nbytes, pattern in parts:
        part = 1.0 if call.on_one_node else machine.share(pattern, call.nbytes)
        moving += nbytes / (link.bandwidth * part)
    # Blocks on a ring wait for no others, and most of their way may be inside nodes.
    inside = 1 - 1 / min(call.ranks_per_node, call.size)
    waiting = rounds * link.latency + hops * (inside * machine.node.latency + (1 - inside) * link.latency)
    # Read, added and written by processors.
    added = (call.size - 1) * call.nbytes if "educe" in call.op else 0
    return waiting + (rounds + hops) * machine.message + moving + added * machine.sharing / machine.memory


def _steps(call: Call, link: Link) -> tuple[float, int, list[tuple[float, str]]]:
    """What MPICH does: rounds, hops on a ring, and bytes through one port in a pattern."""
    size, others, n = call.size, call.size - 1, call.nbytes
    k = 1 if call.on_one_node else call.ranks_per_node
    nodes = ceil(size / k)
    if call.op.startswith(("Alltoall", "Reduce_scatter")):  # what leaves a node, through its ranks' one port
        pairs = call.op.startswith("Alltoall") and not size & others
        return others, 0, [((size - k) * n * k, "pairs" if pairs else "shift")]
    if call.op == "Bcast" and size < 8:  # a binomial tree of nodes
        rounds = ceil(log2(nodes))
        # What sockets take leaves for all children at once, and so arrives with the last of them.
        blocks = rounds * (rounds + 1) / 2 if link.cpu and n <= _SOCKET_NBYTES else rounds
        return rounds, 0, [(n * blocks, "")]
    if call.op == "Bcast":  # scatter and allgather
        return log2(size), others, [(n * (nodes - 1) / nodes, ""), (n * others / size, "ring")]
    if call.op in ("Allreduce", "Reduce"):  # halving and doubling
        return 2 * log2(size), 0, [(2 * others * n, "pairs")]
    if call.op in ("Send", "Recv", "Sendrecv"):
        return 1.0, 0, [(n, "")]
    if call.op.startswith("Allgather"):
        ring = size * n >= _RING_NBYTES
        return 0.0 if ring else log2(size), others if ring else 0, [(others * n, "ring")]
    return log2(size), 0, [(others * n, "")]


_RAW = CodecSpeed(inf, inf, 1.0)


def _simulate(
    call: Call,
    machine: MachineProfile,
    speed: CodecSpeed,
    per_chunk: float,
    algorithm: str,
    chunk_nbytes: int,
) -> float:
    pattern = "all" if algorithm in _CROWDED else algorithm
    part = machine.share(pattern, call.nbytes / speed.ratio)
    profile = Profile(
        replace(machine.network, bandwidth=machine.network.bandwidth * part), machine.node,
        call.ranks_per_node, speed.encode, speed.decode, speed.ratio, per_chunk, chunk_nbytes, call.workers,
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
    """With too few cores, between what working ranks take alone and what all take that look for messages."""
    if cores >= call.size:
        return _rooted_in(World(call.size, profile), call, algorithm)
    working, all_ranks = World(call.size, profile.with_(cores=cores)), World(call.size, crowded)
    return (_rooted_in(working, call, algorithm) + _rooted_in(all_ranks, call, algorithm)) / 2


def _rooted_in(world: World, call: Call, algorithm: str) -> float:
    block = SizeBlock(call.nbytes)
    blocks = [block] * call.size
    if call.op == "Bcast":
        bcast = alg.chain_bcast if algorithm == "chain" else alg.tree_bcast
        return world.run(lambda rt: bcast(rt, block, 0))
    if call.op.startswith("Gather"):
        return world.run(lambda rt: alg.gather(rt, block, blocks, 0))
    return world.run(lambda rt: alg.scatter(rt, blocks, block, 0))

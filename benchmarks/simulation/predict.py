"""Time of a collective, from its schedule in virtual time.

Symmetric collectives are simulated on one rank or one node, which represents all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from compcoll.algorithms.bcast import ARITY
from compcoll.algorithms.catalog import program
from compcoll.algorithms.cut import CUT_UNIT
from compcoll.operations import has_two_levels
from compcoll.schedule.cache import Cache
from compcoll.schedule.graph import Kind, Schedule
from compcoll.schedule.trace import trace

from .virtual import Link, Profile, Result, simulate

__all__ = ["NOTICE", "Collective", "predict", "run", "schedule_of"]

#: Algorithms in which only the first and last ranks of a node send to other nodes.
_RINGS = {"ring", "compressed"}
#: Algorithms in which each pair of ranks or nodes exchanges at most once, with equal sizes both ways.
_RECURSIVE = {"recursive_doubling", "recursive_halving"}
#: Simulated ranks of a node: for a ring, where more ranks take equally long, and at most for recursive
#: doubling, where they take turns at the port. Otherwise one rank with its share of the port represents all.
_ENOUGH, _MOST = 4, 16
#: Link inside a node for frames in shared memory: only a notice is sent.
NOTICE = Link(2e-6, inf)
_CACHE = Cache()


@dataclass(frozen=True)
class Collective:
    """A collective to simulate.

    Attributes
    ----------
    op : str
        Alltoall, Allgather, Bcast, Reduce_scatter_block or Allreduce.
    nbytes : int
        Bytes of one message, as policies count them: a peer's block, or a P-th of an Allreduce's buffer.
    size : int
        Ranks.
    ranks_per_node : int
    """

    op: str
    nbytes: int
    size: int
    ranks_per_node: int = 1

    @property
    def on_one_node(self) -> bool:
        """True if no message leaves the node."""
        return self.ranks_per_node >= self.size

    @property
    def levels(self) -> tuple[int, ...]:
        """Possible numbers of levels: 1, preceded by 2 (to win ties) if several nodes have several ranks."""
        several = self.ranks_per_node > 1 and not self.on_one_node
        return (2, 1) if several and has_two_levels(self.op, self.nbytes) else (1,)


def predict(call: Collective, profile: Profile, algorithm: str, chunk_nbytes: int, levels: int = 1) -> float:
    """Seconds of a compressed collective.

    Parameters
    ----------
    call : Collective
    profile : Profile
        Links, the codec's speeds on data like the caller's, and memory. The call says how many ranks share a
        node.
    algorithm : str
        One of `compcoll.operations.ALGORITHMS` for the operation.
    chunk_nbytes : int
    levels : int
        2 for an algorithm inside nodes and among them, if several nodes have several ranks; else 1.
    """
    if levels == 1 or call.op != "Bcast":
        return run(call, profile, algorithm, chunk_nbytes, levels).seconds
    # Time among the nodes, plus that of the last chunk inside a node.
    alone = replace(call, size=-(-call.size // call.ranks_per_node), ranks_per_node=1)
    copied = 2 / profile.memory  # seconds per byte that a leader writes and others copy
    leader = profile.with_(decode=1 / (1 / profile.decode + copied))
    last = min(call.nbytes, chunk_nbytes) * copied
    return run(alone, leader, algorithm, chunk_nbytes).seconds + NOTICE.latency + last


def run(call: Collective, profile: Profile, algorithm: str, chunk_nbytes: int, levels: int = 1) -> Result:
    """Simulate the collective in virtual time."""
    node = NOTICE if levels == 2 or _knows_nodes(call) else profile.node
    # Elements of one byte, so that counts are bytes.
    profile = profile.with_(node=node, ranks_per_node=call.ranks_per_node, itemsize=1)
    size, simulated, flip = call.size, call.size, False
    if call.op != "Bcast":  # in a Bcast ranks behave differently
        size, simulated, flip, profile = _mirrored(call, profile, algorithm, levels)
    if call.op == "Allreduce":  # keep the buffer's size
        call = replace(call, nbytes=-(-call.nbytes * call.size // size))
    call = replace(call, size=size)
    return simulate(
        size,
        lambda rank: schedule_of(call, rank, algorithm, chunk_nbytes, levels),
        profile,
        simulated=simulated,
        flip=flip,
    )


def _mirrored(
    call: Collective, profile: Profile, algorithm: str, levels: int
) -> tuple[int, int, bool, Profile]:
    """World size, simulated ranks (one if all behave alike, else those of one node), flip, and profile."""
    size, per_node = call.size, min(call.ranks_per_node, call.size)
    flip = algorithm in _RECURSIVE
    if levels == 2 or _knows_nodes(call):  # all ranks behave alike
        network = replace(profile.network, bandwidth=profile.network.bandwidth / per_node)
        size = -(-size // per_node) * per_node
        return size, 1, flip, profile.with_(network=network, ranks_per_node=per_node)
    if call.on_one_node:
        return size, 1, flip, profile.with_(network=profile.node, ranks_per_node=1)
    if algorithm in _RINGS:
        per_node = min(per_node, _ENOUGH)
        size = -(-size // per_node) * per_node
        return size, per_node, flip, profile.with_(ranks_per_node=per_node)
    if algorithm == "recursive_doubling" and per_node <= _MOST:  # needs a power of two of ranks
        per_node = min(_power_of_two(per_node), size // 2)  # at least two nodes
        return size, per_node, flip, profile.with_(ranks_per_node=per_node)
    network = replace(profile.network, bandwidth=profile.network.bandwidth / per_node)
    return size, 1, flip, profile.with_(network=network, ranks_per_node=1)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def _knows_nodes(call: Collective) -> bool:
    """True if each rank sends equally to all others and some of these are on its node."""
    return call.op == "Alltoall" and call.ranks_per_node > 1 and not call.on_one_node


def schedule_of(call: Collective, rank: int, algorithm: str, chunk_nbytes: int, levels: int = 1) -> Schedule:
    """Schedule of a rank if all messages have ``call.nbytes``."""
    size = call.size
    if call.op != "Bcast" or rank == 0:
        aware = levels == 2 or _knows_nodes(call)
        nodes = tuple(r // call.ranks_per_node for r in range(size)) if aware else ()
        return _traced(call, rank, algorithm, chunk_nbytes, nodes, levels)
    arity = ARITY.get(algorithm)
    if arity is None:
        return _traced(call, rank, algorithm, chunk_nbytes)
    # Ranks of a chain or tree with equally many children differ only in their peers.
    alike = next(
        r for r in (1, size - 1, size // 2, rank) if _children(r, arity, size) == _children(rank, arity, size)
    )
    template = _traced(call, alike, algorithm, chunk_nbytes)
    if alike == rank:
        return template
    ops = template.ops.copy()
    sends, receives = ops["kind"] == Kind.SEND, ops["kind"] == Kind.RECV
    ops["peer"][sends] += arity * (rank - alike)
    ops["peer"][receives] = (rank - 1) // arity
    return replace(template, rank=rank, ops=ops)


def _children(rank: int, arity: int, size: int) -> int:
    return int(np.clip(size - arity * rank - 1, 0, arity))


def _traced(
    call: Collective,
    rank: int,
    algorithm: str,
    chunk_nbytes: int,
    nodes: tuple[int, ...] = (),
    levels: int = 1,
) -> Schedule:
    sends, recvs = _counts(call, rank)
    return _CACHE.get(
        (call.op, call.size, call.nbytes, rank, algorithm, chunk_nbytes, nodes, levels),
        lambda: trace(
            program(call.op, algorithm, levels=levels),
            rank,
            call.size,
            sends,
            recvs,
            chunk_nbytes,
            nodes=nodes,
        ),
    )


def _counts(call: Collective, rank: int) -> tuple[list[int], list[int]]:
    """Element counts of the blocks that a rank sends and of those that it receives; the root is rank 0."""
    n = call.nbytes
    match call.op:
        case "Alltoall":
            return [n] * call.size, [n] * call.size
        case "Allgather":
            return [n], [n] * call.size
        case "Reduce_scatter_block":
            return [n] * call.size, [n]
        case "Allreduce":  # in equal parts
            values = -(-n // CUT_UNIT) * CUT_UNIT * call.size
            return [values], [values]
        case "Bcast":
            return [], [n]
        case _:
            raise ValueError(f"{call.op} is not simulated")

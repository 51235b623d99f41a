"""Time of a collective: its schedule in virtual time, with the measured figures of codec, cores and
links.

Symmetric collectives are simulated on one rank or one node, which stands for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from compcoll.algorithms.catalog import program
from compcoll.algorithms.cut import CUT_UNIT
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.operations import OPERATIONS, has_two_levels
from compcoll.schedule.cache import Cache
from compcoll.schedule.graph import Kind, Schedule
from compcoll.schedule.trace import trace
from compcoll.schedule.virtual import Link, Profile, Result, simulate

__all__ = ["NOTICE", "ROOTED", "SHARED", "Call", "predict", "run", "schedule_of"]

#: Operations in which ranks do different things.
ROOTED = ("Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Send", "Recv", "Sendrecv")
#: Algorithms of which only the ranks at a node's ends send to other nodes.
_RINGS = {"ring", "compressed"}
#: Algorithms in which each pair of ranks, or nodes, meets once, and sends alike.
_RECURSIVE = {"recursive_doubling", "recursive_halving"}
#: Ranks of a node that are simulated: on a ring, where more take as long, and at most where they take turns
#: at its port. Where they do not, or are more, a rank with its part of the port stands for all.
_ENOUGH, _MOST = 4, 16
#: Slowdown of work while all ranks work from which they have too few cores; below, it is noise.
SHARED = 1.2
#: Elements are as small as they get, so that counts are bytes.
_ITEMSIZE = 1
#: Frames that stay in a node lie in memory that its ranks share, and a notice goes.
NOTICE = Link(2e-6, inf)
_CACHE = Cache()


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

    @classmethod
    def of_buffer(cls, op: str, nbytes: int, size: int, ranks_per_node: int = 1, workers: int = 0) -> Call:
        """The call whose first buffer, as a rank passes it that sends, has so many bytes."""
        operation = OPERATIONS.get(op)
        parts = size if operation is not None and (operation.send.many or operation.reduces) else 1
        return cls(op, max(ceil(nbytes / parts), 1), size, ranks_per_node, workers)

    @property
    def on_one_node(self) -> bool:
        """Whether no message leaves the node."""
        return self.ranks_per_node >= self.size

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels that algorithms may have: first 2, which wins a tie, where there are such nodes."""
        several = self.ranks_per_node > 1 and not self.on_one_node
        return (2, 1) if several and has_two_levels(self.op, self.nbytes) else (1,)


def predict(
    call: Call, machine: MachineProfile, speed: CodecSpeed, algorithm: str, chunk_nbytes: int, levels: int = 1
) -> float:
    """Seconds of a compressed collective.

    Parameters
    ----------
    call : Call
    machine : MachineProfile
    speed : CodecSpeed
        Of the codec, on data like the caller's.
    algorithm : str
        One of `compcoll.operations.ALGORITHMS` for the operation.
    chunk_nbytes : int
    levels : int
        2 inside nodes and among them, where there are several of several ranks; else 1.
    """
    if algorithm == "recursive_halving":  # a Reduce takes less than an Allreduce
        call = replace(call, op="Allreduce")
    if levels == 2 and call.op == "Bcast":  # among nodes, and then the last chunk inside
        return _bcast_to_nodes(call, machine, speed, algorithm, chunk_nbytes)
    seconds = run(call, machine, speed, algorithm, chunk_nbytes, levels=levels).seconds
    if call.op == "Reduce":  # whose first half is the same on all ranks
        seconds += run(replace(call, op="Gather"), machine, speed, "linear", chunk_nbytes).seconds
    return seconds


def _bcast_to_nodes(
    call: Call, machine: MachineProfile, speed: CodecSpeed, algorithm: str, chunk_nbytes: int
) -> float:
    alone = replace(call, size=-(-call.size // call.ranks_per_node), ranks_per_node=1)
    copied = 2 / machine.memory  # seconds of a byte that a leader has decoded, and that others copy
    leader = replace(speed, decode=1 / (1 / speed.decode + copied))
    last = min(call.nbytes, chunk_nbytes) * copied * machine.sharing
    return predict(alone, machine, leader, algorithm, chunk_nbytes) + NOTICE.latency + last


def run(
    call: Call,
    machine: MachineProfile,
    speed: CodecSpeed,
    algorithm: str,
    chunk_nbytes: int,
    records: bool = False,
    levels: int = 1,
) -> Result:
    """The collective in virtual time; on all ranks where what they do is to be recorded."""
    node = NOTICE if levels == 2 or _knows_nodes(call) else machine.node
    profile = Profile(
        machine.network,
        node,
        call.ranks_per_node,
        speed.encode,
        speed.decode,
        speed.reconstruct,
        speed.ratio,
        machine.call,
        machine.memory,
        call.workers,
        itemsize=_ITEMSIZE,
    )
    if call.op in ROOTED or records:
        # With too few cores those that work have more than their share, since others only wait.
        cores = round(call.size / machine.sharing) if machine.sharing > SHARED else 0
        size = 2 if call.op in ("Send", "Recv", "Sendrecv") else call.size
        simulated, flip, profile = size, False, profile.with_(cores=cores)
    else:
        size, simulated, flip, profile = _mirrored(call, profile.slower(machine.sharing), algorithm, levels)
    if call.op == "Allreduce":  # of as many bytes
        call = replace(call, nbytes=-(-call.nbytes * call.size // size))
    call = replace(call, size=size)
    return simulate(
        size,
        lambda rank: schedule_of(call, rank, algorithm, chunk_nbytes, levels),
        profile,
        simulated=simulated,
        flip=flip,
        records=records,
    )


def _mirrored(call: Call, profile: Profile, algorithm: str, levels: int) -> tuple[int, int, bool, Profile]:
    """Ranks of the world and those that are simulated: one where all look alike, else those of one node."""
    size, per_node = call.size, min(call.ranks_per_node, call.size)
    flip = algorithm in _RECURSIVE
    if levels == 2 or _knows_nodes(call):  # which are all alike
        network = replace(profile.network, bandwidth=profile.network.bandwidth / per_node)
        size = -(-size // per_node) * per_node
        return size, 1, flip, profile.with_(network=network, ranks_per_node=per_node)
    if call.on_one_node:
        return size, 1, flip, profile.with_(network=profile.node, ranks_per_node=1)
    if algorithm in _RINGS:
        per_node = min(per_node, _ENOUGH)
        size = -(-size // per_node) * per_node
        return size, per_node, flip, profile.with_(ranks_per_node=per_node)
    if algorithm == "recursive_doubling" and per_node <= _MOST:  # of a power of two of ranks
        per_node = min(_power_of_two(per_node), size // 2)  # so that there are several nodes
        return size, per_node, flip, profile.with_(ranks_per_node=per_node)
    network = replace(profile.network, bandwidth=profile.network.bandwidth / per_node)
    return size, 1, flip, profile.with_(network=network, ranks_per_node=1)


def _power_of_two(n: int) -> int:
    """The next one from n on."""
    return 1 << (n - 1).bit_length()


def _knows_nodes(call: Call) -> bool:
    """Whether ranks send to all others alike, and some of them are on their nodes."""
    return call.op.startswith("Alltoall") and call.ranks_per_node > 1 and not call.on_one_node


# -- schedules


def schedule_of(call: Call, rank: int, algorithm: str, chunk_nbytes: int, levels: int = 1) -> Schedule:
    """The work of a rank where all messages have ``call.nbytes``."""
    op, size = call.op, call.size
    if levels == 2 or _knows_nodes(call):
        nodes = tuple(r // call.ranks_per_node for r in range(size))
        return _traced(op, size, call.nbytes, algorithm, chunk_nbytes, rank, nodes, levels)
    if op not in ROOTED:
        return _traced(op, size, call.nbytes, algorithm, chunk_nbytes, rank)
    if rank == 0 or op != "Bcast":
        return _traced(op, size, call.nbytes, algorithm, chunk_nbytes, min(rank, 1))
    # Ranks of a chain or tree differ in their peers alone.
    arity = 1 if algorithm == "chain" else 2
    alike = next(
        r
        for r in (1, size - 1, size // 2, rank)
        if r and _children(r, arity, size) == _children(rank, arity, size)
    )
    template = _traced(op, size, call.nbytes, algorithm, chunk_nbytes, alike)
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
    op: str,
    size: int,
    nbytes: int,
    algorithm: str,
    chunk_nbytes: int,
    rank: int,
    nodes: tuple[int, ...] = (),
    levels: int = 1,
) -> Schedule:
    sends, recvs = _counts(op, size, nbytes, rank)
    if op == "Reduce":
        op = "Reduce_scatter_block"
    return _CACHE.get(
        (op, size, nbytes, algorithm, chunk_nbytes, rank, nodes, levels),
        lambda: trace(
            program(op, algorithm, levels=levels), rank, size, sends, recvs, chunk_nbytes, nodes=nodes
        ),
    )


def _counts(op: str, size: int, n: int, rank: int) -> tuple[list[int], list[int]]:
    """Elements of the blocks that a rank sends, and of those that it receives; the root is 0."""
    every, one, none = [n] * size, [n], list[int]()
    match op:
        case "Alltoall" | "Alltoallv" | "Alltoallw":
            return every, every
        case "Allgather" | "Allgatherv":
            return one, every
        case "Reduce_scatter" | "Reduce_scatter_block":
            return every, one
        case "Allreduce":  # in equal parts
            return [-(-n // CUT_UNIT) * CUT_UNIT * size], [-(-n // CUT_UNIT) * CUT_UNIT * size]
        case "Reduce":  # that part in which all ranks do the same
            return every, one
        case "Bcast":
            return none, one
        case "Gather" | "Gatherv":
            return one, every if rank == 0 else none
        case "Scatter" | "Scatterv":
            return every if rank == 0 else none, one
        case _:
            return (one, none) if rank == 0 else (none, one)

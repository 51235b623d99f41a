"""Time of a collective in plain MPI, by the algorithms that libraries have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil, inf, log2

from compcoll.model.predict import Call, predict
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.operations import runs_on
from compcoll.schedule.virtual import Link

__all__ = ["PIPELINED", "by_the_book", "plain_seconds", "wire_seconds"]

#: Chunks of pipelined algorithms without a codec, in bytes.
PIPELINED = 128 << 10
#: Least capacity of a connection's socket buffers, once it is under way (Linux, tcp_wmem and tcp_rmem).
_SOCKET_NBYTES = 1 << 20
#: MPICH's Allgather goes round a ring from this total size on.
_RING_NBYTES = 512 << 10
_RAW = CodecSpeed(inf, inf, 1.0)


def plain_seconds(
    call: Call, machine: MachineProfile, algorithms: Iterable[str], predict: Callable[..., float] = predict
) -> float:
    """Seconds of the same collective in plain MPI.

    Where the library is known, of the algorithms that it uses; otherwise the least of those and of what
    the algorithms of this library take without a codec, so that no gain is promised that may not be had.
    ``predict`` tells what an algorithm takes; those that so many ranks cannot run are left out.
    """
    book = by_the_book(call, machine)
    if machine.is_mpich:
        return book
    bare, times = replace(machine, call=0.0, memory=inf), [book]
    for algorithm in (name for name in algorithms if runs_on(name, call.size)):
        pipelined = algorithm in ("chain", "tree", "recursive_halving")
        chunk = PIPELINED if pipelined else max(call.nbytes, 1)
        times.append(predict(call, bare, _RAW, algorithm, chunk))
    return min(times)


def by_the_book(call: Call, machine: MachineProfile) -> float:
    """MPICH's algorithms for long messages, bytes through one port and a latency a round.

    Thakur, Rabenseifner and Gropp: Optimization of Collective Communication Operations in MPICH, 2005; what
    MPICH 5 selects for long messages is the same. It looks at nodes for Allreduce and small Bcasts only: its
    pairwise Reduce_scatter moves ``k (P - k)`` blocks through the port of ``k`` ranks where a ring moves
    ``P - 1``, as ``make report`` measures on two hosts of eight ranks.
    """
    link = machine.node if call.on_one_node else machine.network
    rounds, hops, nbytes = _steps(call, link)
    moving = nbytes / (link.bandwidth * (1.0 if call.on_one_node else machine.plain))
    # Blocks on a ring wait for no others, and most of their way may be inside nodes.
    inside = 1 - 1 / min(call.ranks_per_node, call.size)
    waiting = rounds * link.latency + hops * (inside * machine.node.latency + (1 - inside) * link.latency)
    # Read, added and written by processors.
    added = (call.size - 1) * call.nbytes if "educe" in call.op else 0
    return waiting + (rounds + hops) * machine.message + moving + added * machine.sharing / machine.memory


def wire_seconds(call: Call, machine: MachineProfile) -> float:
    """Seconds that the bytes of a collective take to cross a port, by whatever algorithm; 0 on one node."""
    size, n, k = call.size, call.nbytes, min(call.ranks_per_node, call.size)
    if call.on_one_node:
        return 0.0
    if call.op.startswith("Alltoall"):
        nbytes = (size - k) * n * k
    elif call.op == "Allreduce":  # of which each node sends its part of the sum, and its sum of the others
        nbytes = 2 * (size - k) * n
    elif call.op.startswith(("Allgather", "Reduce_scatter")):
        nbytes = (size - k) * n
    else:
        nbytes = n if call.op == "Bcast" else 0
    return nbytes / machine.network.bandwidth


def _steps(call: Call, link: Link) -> tuple[float, int, float]:
    """Rounds, hops on a ring, and bytes through one port, as in MPICH."""
    size, others, n = call.size, call.size - 1, call.nbytes
    k = 1 if call.on_one_node else call.ranks_per_node
    nodes = ceil(size / k)
    if call.op.startswith(("Alltoall", "Reduce_scatter")):  # what leaves a node, through its ranks' one port
        return others, 0, (size - k) * n * k
    if call.op == "Bcast" and size < 8:  # a binomial tree of nodes
        rounds = ceil(log2(nodes))
        # Bytes that fit into sockets leave for all children at once, and so arrive with the last of them.
        return rounds, 0, n * (rounds * (rounds + 1) / 2 if link.cpu and n <= _SOCKET_NBYTES else rounds)
    if call.op == "Bcast":  # scatter and allgather
        return log2(size), others, n * (nodes - 1) / nodes + n * others / size
    if call.op in ("Allreduce", "Reduce"):  # halving and doubling
        return 2 * log2(size), 0, 2 * others * n
    if call.op in ("Send", "Recv", "Sendrecv"):
        return 1.0, 0, n
    ring = call.op.startswith("Allgather") and size * n >= _RING_NBYTES
    return 0.0 if ring else log2(size), others if ring else 0, others * n

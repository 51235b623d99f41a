"""Time of a collective in plain MPI."""

from __future__ import annotations

from math import ceil, log2

from .predict import Collective
from .virtual import Profile

__all__ = ["plain_seconds"]

#: Fixed seconds of a message, in addition to latency and bytes.
MESSAGE = 5e-6
#: Least capacity of an established connection's socket buffers (Linux, tcp_wmem and tcp_rmem).
_SOCKET_NBYTES = 1 << 20
#: Total size from which MPICH's Allgather uses a ring.
_RING_NBYTES = 512 << 10


def plain_seconds(call: Collective, profile: Profile) -> float:
    """Seconds by MPICH's algorithms for long messages: bytes through one port, and a latency per round.

    The algorithms are from Thakur, Rabenseifner and Gropp: Optimization of Collective Communication
    Operations in MPICH, 2005; MPICH 5 selects the same ones for long messages. MPICH considers nodes for
    Allreduce and small Bcasts only: its pairwise Reduce_scatter moves ``k (P - k)`` blocks through the port
    of ``k`` ranks, where a ring moves ``P - 1``, as ``make report`` measures on two hosts of eight ranks.
    """
    link = profile.node if call.on_one_node else profile.network
    rounds, hops, nbytes = _steps(call, has_sockets=link.cpu > 0)
    # Blocks on a ring do not wait for others, and most of their hops may be inside nodes.
    inside = 1 - 1 / min(call.ranks_per_node, call.size)
    waiting = rounds * link.latency + hops * (inside * profile.node.latency + (1 - inside) * link.latency)
    # Bytes of a reduction that processors read, add and write.
    added = (call.size - 1) * call.nbytes if "educe" in call.op else 0
    return waiting + (rounds + hops) * MESSAGE + nbytes / link.bandwidth + added / profile.memory


def _steps(call: Collective, has_sockets: bool) -> tuple[float, int, float]:
    """Rounds, hops on a ring, and bytes through one port, as in MPICH."""
    size, others, n = call.size, call.size - 1, call.nbytes
    k = 1 if call.on_one_node else call.ranks_per_node
    nodes = ceil(size / k)
    if call.op in ("Alltoall", "Reduce_scatter_block"):  # bytes that leave a node through its one port
        return others, 0, (size - k) * n * k
    if call.op == "Bcast" and size < 8:  # a binomial tree of nodes
        rounds = ceil(log2(nodes))
        # Messages that fit into sockets leave to all children at once, and arrive together with the last one.
        return rounds, 0, n * (rounds * (rounds + 1) / 2 if has_sockets and n <= _SOCKET_NBYTES else rounds)
    if call.op == "Bcast":  # scatter and allgather
        return log2(size), others, n * (nodes - 1) / nodes + n * others / size
    if call.op == "Allreduce":  # halving and doubling
        return 2 * log2(size), 0, 2 * others * n
    ring = size * n >= _RING_NBYTES
    return 0.0 if ring else log2(size), others if ring else 0, others * n

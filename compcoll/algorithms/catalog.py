"""The collectives by name: each MPI operation, with any of its algorithms, on lists of blocks.

``send`` and ``recv`` are the blocks of the caller's arguments on this rank: one for each rank, or one in all,
as the operation has them; none if an argument is ignored or in place.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from compcoll.algorithms import recursive_halving, two_level
from compcoll.algorithms.allgather import recursive_doubling_allgather, ring_allgather
from compcoll.algorithms.allreduce import allreduce, reduce
from compcoll.algorithms.alltoall import alltoall, two_level_alltoall
from compcoll.algorithms.bcast import chain_bcast, tree_bcast
from compcoll.algorithms.cut import cut
from compcoll.algorithms.groups import Placement, placement
from compcoll.algorithms.reduce_scatter import compressed_sum, direct_sum, reduce_scatter, ring_sum
from compcoll.algorithms.rooted import gather, scatter
from compcoll.algorithms.stream import recv_block, send_block
from compcoll.operations import ALGORITHMS
from compcoll.schedule.runtime import Runtime

__all__ = ["program"]

_BCAST = {"chain": chain_bcast, "tree": tree_bcast}
_ALLGATHER = {"ring": ring_allgather, "recursive_doubling": recursive_doubling_allgather}
_SUM = {"ring": ring_sum, "direct": direct_sum, "compressed": compressed_sum}


class _How(NamedTuple):
    algorithm: str
    root: int
    levels: int

    @property
    def halves(self) -> bool:
        return self.algorithm == "recursive_halving"

    def placement(self, rt) -> Placement:
        """Ranks on their nodes; on one level each on its own."""
        return placement(rt.nodes if self.levels == 2 else tuple(range(rt.size)))


async def _alltoall(rt: Runtime, send: list, recv: list, how: _How) -> None:
    await (two_level_alltoall if how.levels == 2 else alltoall)(rt, send, recv)


async def _bcast(rt: Runtime, send: list, recv: list, how: _How) -> None:
    if how.levels == 2:
        await two_level.bcast(rt, recv[0], how.root, _BCAST[how.algorithm])
    else:
        await _BCAST[how.algorithm](rt, recv[0], how.root)


async def _allgather(rt: Runtime, send: list, recv: list, how: _How) -> None:
    mine = send[0] if send else recv[rt.rank]
    if how.levels == 2:
        await two_level.allgather(rt, mine, recv, how.algorithm)
    else:
        await _ALLGATHER[how.algorithm](rt, mine, recv)


async def _gather(rt: Runtime, send: list, recv: list, how: _How) -> None:
    await gather(rt, send[0] if send else None, recv, how.root)


async def _scatter(rt: Runtime, send: list, recv: list, how: _How) -> None:
    await scatter(rt, send, recv[0] if recv else None, how.root)


async def _allreduce(rt: Runtime, send: list, recv: list, how: _How) -> None:
    target = recv[0]
    source = send[0] if send else target
    if how.halves:
        await recursive_halving.allreduce(rt, how.placement(rt), source, target)
        return
    if how.levels == 2:
        await two_level.allreduce(rt, source, target, _SUM[how.algorithm])
        return
    sources, targets = (cut(block, rt.size, block.unit) for block in (source, target))
    await allreduce(rt, sources, targets, _SUM[how.algorithm])


async def _reduce(rt: Runtime, send: list, recv: list, how: _How) -> None:
    source = (send or recv)[0]
    if how.halves:
        target = recv[0] if recv else None
        await recursive_halving.reduce(rt, how.placement(rt), source, target, how.root)
        return
    if how.levels == 2:
        await two_level.reduce(rt, source, recv[0] if recv else None, how.root, _SUM[how.algorithm])
        return
    target = cut(recv[0], rt.size, recv[0].unit) if recv else None
    await reduce(rt, cut(source, rt.size, source.unit), target, how.root, _SUM[how.algorithm])


async def _reduce_scatter(rt: Runtime, send: list, recv: list, how: _How) -> None:
    by_levels = two_level.reduce_scatter if how.levels == 2 else reduce_scatter
    if send:
        await by_levels(rt, send, recv[0], _SUM[how.algorithm])
        return
    # In place, the result overlaps blocks for other ranks that are not sent yet.
    *blocks, target = recv
    total = rt.scratch(target)
    await rt.start(by_levels(rt, blocks, total, _SUM[how.algorithm]))
    parts = zip(rt.chunks(total), rt.chunks(target), strict=True)  # each with the error of its own chunk
    await rt.all(rt.copy(part, into) for part, into in parts)


async def _send(rt: Runtime, send: list, recv: list, how: _How) -> None:
    if send:
        await send_block(rt, send[0], 1 - rt.rank)
    else:
        await recv_block(rt, recv[0], 1 - rt.rank)


_PROGRAMS: dict[str, Callable[..., Coroutine]] = {
    "Alltoall": _alltoall,
    "Alltoallv": _alltoall,
    "Alltoallw": _alltoall,
    "Bcast": _bcast,
    "Allgather": _allgather,
    "Allgatherv": _allgather,
    "Reduce_scatter": _reduce_scatter,
    "Reduce_scatter_block": _reduce_scatter,
    "Allreduce": _allreduce,
    "Reduce": _reduce,
    "Gather": _gather,
    "Gatherv": _gather,
    "Scatter": _scatter,
    "Scatterv": _scatter,
    "Send": _send,
    "Recv": _send,
    "Sendrecv": _send,
}


def program(
    op: str, algorithm: str, root: int = 0, levels: int = 1
) -> Callable[[Any, list, list], Coroutine]:
    """``program(rt, send, recv)`` of an operation, to be traced.

    ``levels``: 2 inside nodes and among them, else 1.
    """
    if algorithm not in ALGORITHMS[op]:
        raise ValueError(f"{op} has no algorithm {algorithm!r}; it has {', '.join(ALGORITHMS[op])}")
    return partial(_PROGRAMS[op], how=_How(algorithm, root, levels))

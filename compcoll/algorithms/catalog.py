"""The collectives by name: each operation of MPI, with any of its algorithms, on lists of blocks.

``send`` and ``recv`` are the blocks of the caller's arguments, as many as the operation has on this rank: one
for each rank where it has them for all, else one; none where an argument is not looked at or is in place.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from compcoll.algorithms.allgather import recursive_doubling_allgather, ring_allgather
from compcoll.algorithms.allreduce import allreduce, reduce
from compcoll.algorithms.alltoall import alltoall
from compcoll.algorithms.bcast import chain_bcast, tree_bcast
from compcoll.algorithms.reduce_scatter import compressed_sum, direct_sum, reduce_scatter, ring_sum
from compcoll.algorithms.rooted import gather, scatter
from compcoll.algorithms.stream import recv_block, send_block
from compcoll.operations import ALGORITHMS

__all__ = ["CUT_UNIT", "cut", "program"]

#: Elements of a codec's largest block.
CUT_UNIT = 64

_BCAST = {"chain": chain_bcast, "tree": tree_bcast}
_ALLGATHER = {"ring": ring_allgather, "recursive_doubling": recursive_doubling_allgather}
_SUM = {"ring": ring_sum, "direct": direct_sum, "compressed": compressed_sum}


async def _alltoall(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    await alltoall(rt, send, recv)


async def _bcast(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    await _BCAST[algorithm](rt, recv[0], root)


async def _allgather(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    await _ALLGATHER[algorithm](rt, send[0] if send else recv[rt.rank], recv)


async def _gather(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    await gather(rt, send[0] if send else None, recv, root)


async def _scatter(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    await scatter(rt, send, recv[0] if recv else None, root)


async def _allreduce(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    target = recv[0]
    source = send[0] if send else target
    sources, targets = (cut(block, rt.size, block.unit) for block in (source, target))
    await allreduce(rt, sources, targets, _SUM[algorithm])


async def _reduce(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    source, target = (send or recv)[0], cut(recv[0], rt.size, recv[0].unit) if recv else None
    await reduce(rt, cut(source, rt.size, source.unit), target, root, _SUM[algorithm])


async def _reduce_scatter(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    if send:
        await reduce_scatter(rt, send, recv[0], _SUM[algorithm])
        return
    # In place, the result lies where other ranks' blocks still wait to be sent.
    *blocks, target = recv
    total = rt.scratch(target)
    await rt.start(reduce_scatter(rt, blocks, total, _SUM[algorithm]))
    parts = zip(rt.chunks(total), rt.chunks(target), strict=True)  # each with the error of its own chunk
    await rt.all(rt.copy(part, into) for part, into in parts)


async def _send(rt, send: list, recv: list, algorithm: str, root: int) -> None:
    if send:
        await send_block(rt, send[0], 1 - rt.rank)
    else:
        await recv_block(rt, recv[0], 1 - rt.rank)


_PROGRAMS: dict[str, Callable[..., Coroutine]] = {
    "Alltoall": _alltoall, "Alltoallv": _alltoall, "Alltoallw": _alltoall, "Bcast": _bcast,
    "Allgather": _allgather, "Allgatherv": _allgather,
    "Reduce_scatter": _reduce_scatter, "Reduce_scatter_block": _reduce_scatter, "Allreduce": _allreduce,
    "Reduce": _reduce, "Gather": _gather, "Gatherv": _gather, "Scatter": _scatter, "Scatterv": _scatter,
    "Send": _send, "Recv": _send, "Sendrecv": _send,
}  # fmt: skip


def program(op: str, algorithm: str, root: int = 0) -> Callable[[Any, list, list], Coroutine]:
    """``program(rt, send, recv)`` of an operation, to be traced."""
    if algorithm not in ALGORITHMS[op]:
        raise ValueError(f"{op} has no algorithm {algorithm!r}; it has {', '.join(ALGORITHMS[op])}")
    return partial(_PROGRAMS[op], algorithm=algorithm, root=root)


def cut(block, size: int, unit: int = 0) -> list:
    """A block in as many parts as there are ranks, multiples of so many elements but for the tail.

    By default those of a codec's block.
    """
    unit = unit or CUT_UNIT
    step = -(-len(block) // size)
    step = -(-step // unit) * unit
    return [block[i * step : (i + 1) * step] for i in range(size)]

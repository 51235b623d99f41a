"""Allreduce in few rounds, where its pieces are so small that messages cost more than bytes.

In each round a rank keeps a part of its sums and adds what the others of its group have for that part, until
the part is small; in the rounds that are left it exchanges the part as a whole. The parts are then collected
in as many rounds (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005). A value is rounded once a round.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from compcoll.algorithms.allgather import gather_in_rounds
from compcoll.algorithms.cut import cut
from compcoll.algorithms.reduce_scatter import direct_sum
from compcoll.algorithms.rounds import others, radices
from compcoll.algorithms.subgroup import Subgroup

__all__ = ["Parts", "elements_of", "gather_parts", "parts_of", "recursive_halving", "sum_of_part"]


class Parts(NamedTuple):
    """How a block is cut.

    Attributes
    ----------
    cutting, exchanging : list of int
        Sizes of the groups that cut it, round by round, and of those that then exchange parts.
    blocks : list
        The parts.
    """

    cutting: list[int]
    exchanging: list[int]
    blocks: list

    @property
    def replicas(self) -> int:
        """Ranks that end up with the same part: those next to each other."""
        return prod(self.exchanging)


def parts_of(rt, block, size: int) -> Parts:
    """The parts of a block that is summed over so many ranks: cut until a rank sends a chunk a round."""
    parts, cutting, exchanging = [block], [], []
    for radix in radices(size):
        if (radix - 1) * len(parts[0]) > rt.chunk:
            parts = [smaller for part in parts for smaller in cut(part, radix, block.unit)]
            cutting.append(radix)
        else:
            exchanging.append(radix)
    return Parts(cutting, exchanging, parts)


async def recursive_halving(rt, send, recv) -> None:
    """The sum over ranks of ``send`` arrives as ``recv`` everywhere."""
    parts = parts_of(rt, recv, rt.size)
    await sum_of_part(rt, send, parts)
    if len(parts.blocks) > 1:
        await gather_parts(rt, parts, len(rt.chunks(send)))


async def sum_of_part(rt, send, parts: Parts) -> None:
    """The sum over ranks of ``send`` arrives in this rank's part, the same bits as on all that have it."""
    total, stride = send, rt.size
    for radix in (*parts.cutting, *parts.exchanging):
        stride //= radix
        first = rt.rank - rt.rank // stride % radix * stride
        group = Subgroup(rt, [first + i * stride for i in range(radix)])
        whole = stride < parts.replicas
        total = await (_exchange(group, total) if whole else _halve(group, cut(total, radix, send.unit)))
    mine = parts.blocks[rt.rank // parts.replicas]
    await rt.all(rt.round(elements_of(total, mine, chunk), chunk) for chunk in rt.chunks(mine))


async def gather_parts(rt, parts: Parts, first_tag: int) -> None:
    """All parts arrive everywhere."""
    alike = list(range(rt.rank % parts.replicas, rt.size, parts.replicas))
    group = Subgroup(rt, alike)
    await gather_in_rounds(group, parts.blocks[group.rank], parts.blocks, first_tag)


async def _halve(rt, parts: list) -> Any:
    """The sum over a group of this rank's one of the parts."""
    mine = parts[rt.rank]
    total = rt.accumulator(mine)

    async def one(tag: int, column) -> None:
        chunk = column[rt.rank]
        await direct_sum(rt, column, chunk and elements_of(total, mine, chunk), tag)

    await rt.all(one(tag, column) for tag, column in enumerate(zip_longest(*map(rt.chunks, parts))))
    return total


async def _exchange(rt, block) -> Any:
    """The sum over a group of whole blocks, from what all of them decode, so that all have the same bits."""
    total = rt.accumulator(block)

    async def one(tag: int, chunk) -> None:
        into = elements_of(total, block, chunk)
        arriving = {p: rt.recv(p, chunk, tag) for p in others(rt.rank, rt.size)}
        own = await rt.encode(chunk)
        for p in arriving:
            rt.send(own, p, tag)
        for p in range(rt.size):
            frame = own if p == rt.rank else await arriving[p]
            await (rt.decode_add(frame, into) if p else rt.decode(frame, into))

    await rt.all(one(tag, chunk) for tag, chunk in enumerate(rt.chunks(block)))
    return total


def elements_of(total, block, chunk) -> Any:
    """The elements of an accumulator that stand where a chunk stands in its block."""
    first = chunk.start - block.start
    return total[first : first + len(chunk)]

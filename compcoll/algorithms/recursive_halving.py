"""Sums in few rounds, for pieces so small that messages cost more than bytes.

In each round a rank keeps a part of its sums and adds the other group members' values for that part, until
the part is small; in the remaining rounds it exchanges the part as a whole. The parts are then collected in
as many rounds (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005). A value is rounded once a round.

The nodes' leaders exchange the sums, as in `compcoll.algorithms.two_level`; with one level each rank is a
node of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from compcoll.algorithms.allgather import gather_in_rounds
from compcoll.algorithms.cut import cut
from compcoll.algorithms.groups import Placement, Subgroup, others, radices
from compcoll.algorithms.reduce_scatter import direct_sum
from compcoll.algorithms.two_level import Sharing, deliver, node_sums, receive
from compcoll.schedule.runtime import Runtime

__all__ = ["allreduce", "reduce"]

#: Chunks that all leaders of a node send in a round before parts are exchanged as a whole.
CHUNKS_OF_A_NODE = 16


class Parts(NamedTuple):
    """Parts of a block.

    Attributes
    ----------
    cutting, exchanging : list of int
        Sizes of the groups that cut the block, round by round, and of the groups that then exchange parts.
    blocks : list
        The parts.
    """

    cutting: list[int]
    exchanging: list[int]
    blocks: list

    @property
    def replicas(self) -> int:
        """Number of nodes that end up with the same part; they are adjacent."""
        return prod(self.exchanging)


def _parts_of(rt: Runtime, block, at: Placement) -> Parts:
    """The parts of a leader's block, cut until it sends no more than a chunk a round, and its node few."""
    parts, cutting, exchanging = [block], [], []
    most = min(rt.chunk, CHUNKS_OF_A_NODE * rt.chunk // at.width)
    for radix in radices(len(at.members)):
        if (radix - 1) * len(parts[0]) > most:
            parts = [smaller for part in parts for smaller in cut(part, radix, block.unit)]
            cutting.append(radix)
        else:
            exchanging.append(radix)
    return Parts(cutting, exchanging, parts)


# Contributions inside a node have even tags, and results odd ones: both may go from one rank to another.


async def allreduce(rt: Runtime, at: Placement, send, recv) -> None:
    """Sum ``send`` over ranks into ``recv`` of all."""
    node, peers = at.node[rt.rank], at.node_peers(rt.rank)
    sources, targets = (cut(block, at.width, block.unit) for block in (send, recv))
    parts = [_parts_of(rt, target, at) for target in targets]

    def results(part: int) -> list[tuple[Any, int]]:
        chunks = [chunk for block in parts[part].blocks for chunk in rt.chunks(block)]
        return [(chunk, 2 * i + 1) for i, chunk in enumerate(chunks)]

    async def lead(part: int) -> None:
        leaders = at.leaders(part)
        total = await _node_sum(rt, peers, sources[part])
        await _sum_of_part(Subgroup(rt, leaders), total, parts[part])
        sharing = Sharing(rt, leaders, peers, dict(results(part)))
        changes_inside = len(at.members) < rt.size and not rt.inside_exact
        if len(parts[part].blocks) > 1 or changes_inside:
            await _gather_parts(sharing, parts[part], len(rt.chunks(sources[part])))
        else:
            await rt.all(sharing.share(None, chunk) for chunk, _ in results(part))

    async def follow(part: int) -> None:
        leader = at.members[node][part]
        await deliver(rt, leader, _tagged(rt, sources[part]))
        await receive(rt, leader, results(part))

    await _each_part(rt, at, lead, follow)


async def reduce(rt: Runtime, at: Placement, send, recv, root: int) -> None:
    """Sum ``send`` over ranks into ``recv`` of the root."""
    node, peers = at.node[rt.rank], at.node_peers(rt.rank)
    sources = cut(send, at.width, send.unit)
    targets = cut(recv, at.width, recv.unit) if rt.rank == root else []
    # Tags follow those of the contributions to all parts, because a leader of a part may be the root.
    tag = 2 * max(len(rt.chunks(source)) for source in sources)

    def holders(parts: Parts, part: int) -> Iterator[tuple[int, list[tuple[Any, int]]]]:
        """Leaders that have different parts, and those: the chunks with tags."""
        for k in range(at.node[root] % parts.replicas, len(at.members), parts.replicas):
            chunks = rt.chunks(parts.blocks[k // parts.replicas])
            yield at.leaders(part)[k], [(chunk, tag + i) for i, chunk in enumerate(chunks)]

    async def lead(part: int) -> None:
        parts = _parts_of(rt, targets[part] if targets else rt.scratch(sources[part]), at)
        total = await _node_sum(rt, peers, sources[part])
        await _sum_of_part(Subgroup(rt, at.leaders(part)), total, parts)
        if rt.rank != root:
            await deliver(rt, root, dict(holders(parts, part)).get(rt.rank, []))

    async def follow(part: int) -> None:
        await deliver(rt, at.members[node][part], _tagged(rt, sources[part]))

    await _each_part(rt, at, lead, follow)
    for part, target in enumerate(targets):
        for leader, chunks in holders(_parts_of(rt, target, at), part):
            if leader != root:
                rt.start(receive(rt, leader, chunks))


async def _each_part(rt: Runtime, at: Placement, lead, follow) -> None:
    """Run all parts, each as its leader or as another rank of the node, the own part last."""
    place = at.place[rt.rank]
    order = [(place + i) % at.width for i in range(1, at.width + 1)]
    await rt.all([(lead if part == place else follow)(part) for part in order], at.width)


def _tagged(rt: Runtime, block) -> list[tuple[Any, int]]:
    """The chunks of a block with the tags of contributions."""
    return [(chunk, 2 * i) for i, chunk in enumerate(rt.chunks(block))]


async def _node_sum(rt: Runtime, peers: list[int], block) -> Any:
    """The sum of a node's blocks; the block itself if the node has only one."""
    if not peers:
        return block
    total, tagged = rt.accumulator(block), _tagged(rt, block)
    places = [_elements_of(total, block, chunk) for chunk, _ in tagged]
    await node_sums(rt, peers, [chunk for chunk, _ in tagged], [tag for _, tag in tagged], places)
    return total


async def _sum_of_part(rt: Runtime, send, parts: Parts) -> None:
    """Sum ``send`` over ranks into this rank's part, with equal bits on all ranks that have it."""
    total, stride = send, rt.size
    for radix in (*parts.cutting, *parts.exchanging):
        stride //= radix
        first = rt.rank - rt.rank // stride % radix * stride
        group = Subgroup(rt, [first + i * stride for i in range(radix)])
        whole = stride < parts.replicas
        total = await (_exchange(group, total) if whole else _halve(group, cut(total, radix, send.unit)))
    mine = parts.blocks[rt.rank // parts.replicas]
    await rt.all(rt.round(_elements_of(total, mine, chunk), chunk) for chunk in rt.chunks(mine))


async def _gather_parts(rt: Runtime, parts: Parts, first_tag: int) -> None:
    """Give every rank all parts."""
    alike = list(range(rt.rank % parts.replicas, rt.size, parts.replicas))
    group = Subgroup(rt, alike)
    await gather_in_rounds(group, parts.blocks[group.rank], parts.blocks, first_tag)


async def _halve(rt: Runtime, parts: list) -> Any:
    """The sum over a group of the part that this rank keeps."""
    mine = parts[rt.rank]
    total = rt.accumulator(mine)

    async def one(tag: int, column) -> None:
        chunk = column[rt.rank]
        await direct_sum(rt, column, chunk and _elements_of(total, mine, chunk), tag)

    await rt.all(one(tag, column) for tag, column in enumerate(zip_longest(*map(rt.chunks, parts))))
    return total


async def _exchange(rt: Runtime, block) -> Any:
    """The sum over a group of whole blocks, from values that all ranks decode: all have the same bits."""
    total = rt.accumulator(block)

    async def one(tag: int, chunk) -> None:
        into = _elements_of(total, block, chunk)
        arriving = {p: rt.recv(p, chunk, tag) for p in others(rt.rank, rt.size)}
        own = await rt.encode(chunk)
        for p in arriving:
            rt.send(own, p, tag)
        for p in range(rt.size):
            frame = own if p == rt.rank else await arriving[p]
            await (rt.decode_add(frame, into) if p else rt.decode(frame, into))

    await rt.all(one(tag, chunk) for tag, chunk in enumerate(rt.chunks(block)))
    return total


def _elements_of(total, block, chunk) -> Any:
    """The elements of an accumulator at the position of a chunk in its block."""
    first = chunk.start - block.start
    return total[first : first + len(chunk)]

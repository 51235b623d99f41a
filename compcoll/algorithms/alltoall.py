"""Alltoall(v): host-staged, every pair of ranks streams its block chunk by chunk.

After Zhou et al., "Accelerating MPI All-to-All Communication with Online Compression on Modern GPU
Clusters" (ISC 2022): compression per peer, overlapped with the sends of earlier chunks. All pairs are served
at once, in the order of the pairwise exchange, so that no receiver is flooded.

``two_level_alltoall`` is for blocks so small that messages cost more than bytes: the blocks of all ranks of a
node for one rank of another node are sent as one message (Träff and Rougier, "MPI Collectives and Datatypes
for Hierarchical All-to-all Communication", 2014).
"""

from __future__ import annotations

from itertools import count

from compcoll.algorithms.groups import placement
from compcoll.algorithms.stream import recv_block, send_block
from compcoll.algorithms.two_level import receive
from compcoll.schedule.runtime import Runtime


async def alltoall(rt: Runtime, send: list, recv: list) -> None:
    """Send ``send[p]`` to rank p and receive ``recv[p]`` from it; empty blocks take no message."""
    for step in range(1, rt.size):
        source, dest = (rt.rank - step) % rt.size, (rt.rank + step) % rt.size
        rt.start(recv_block(rt, recv[source], source))
        rt.start(send_block(rt, send[dest], dest))
    own = zip(rt.chunks(send[rt.rank]), rt.chunks(recv[rt.rank]), strict=False)
    await rt.all((rt.copy(chunk, into, idle=True) for chunk, into in own), rt.window)


async def two_level_alltoall(rt: Runtime, send: list, recv: list) -> None:
    """Send ``send[p]`` to rank p and receive ``recv[p]`` from it; all blocks have equal lengths.

    Rank i of a node gathers what its ranks have for rank i of every other node.
    """
    at = placement(rt.nodes)
    node, place, n = at.node[rt.rank], at.place[rt.rank], len(send[0])
    own, peers = at.members[node], at.node_peers(rt.rank)
    others = at.members[node + 1 :] + at.members[:node]
    duties = {peer: [p for ranks in others for p in ranks[i :: len(own)]] for i, peer in enumerate(own)}
    gathered = {dest: rt.scratch(send[dest], len(own)) for dest in duties[rt.rank]}

    behind = len(rt.chunks(send[0]))  # the first tag after those of the node's own blocks

    def part(block, i: int):
        return block[i * n : (i + 1) * n]

    async def hand_over(peer: int) -> None:
        blocks = [send[dest] for dest in duties[peer]]
        joined = blocks[0]
        if len(blocks) > 1:
            joined = rt.scratch(joined, len(blocks))
            for i, block in enumerate(blocks):
                await rt.copy(block, part(joined, i))
        await send_block(rt, joined, peer, behind)

    async def take(source: int, blocks: list, first_tag: int = 0) -> None:
        joined = rt.scratch(blocks[0], len(blocks)) if len(blocks) > 1 else blocks[0]
        await receive(rt, source, list(zip(rt.chunks(joined), count(first_tag))))
        if len(blocks) > 1:
            for i, block in enumerate(blocks):
                await rt.copy(part(joined, i), block)

    gathering = []
    for peer in peers if gathered else ():
        parts = [part(block, own.index(peer)) for block in gathered.values()]
        gathering.append(rt.start(take(peer, parts, behind)))
    for ranks in others:
        rt.start(take(ranks[place % len(ranks)], [recv[p] for p in ranks]))
    for peer in peers:
        if duties[peer]:
            rt.start(hand_over(peer))
    for peer in peers:
        rt.start(recv_block(rt, recv[peer], peer))
        rt.start(send_block(rt, send[peer], peer))
    for dest, block in gathered.items():
        await rt.copy(send[dest], part(block, place))
    for task in gathering:
        await task
    for dest, block in gathered.items():
        rt.start(send_block(rt, block, dest))
    await rt.copy(send[rt.rank], recv[rt.rank], idle=True)

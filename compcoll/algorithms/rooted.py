"""Gather(v) and Scatter(v): every rank's block streams straight to or from the root."""

from __future__ import annotations

from compcoll.algorithms.stream import recv_block, send_block
from compcoll.schedule.runtime import Runtime


async def gather(rt: Runtime, mine, blocks: list, root: int) -> None:
    """Give the root ``mine`` as its ``blocks[rank]``; ``blocks`` is read only there."""
    if rt.rank != root:
        await send_block(rt, mine, root)
        return
    for step in range(1, rt.size):
        source = (root + step) % rt.size
        rt.start(recv_block(rt, blocks[source], source))
    if mine is not None:
        await rt.copy(mine, blocks[root], idle=True)


async def scatter(rt: Runtime, blocks: list, mine, root: int) -> None:
    """Give every rank the root's ``blocks[rank]`` as ``mine``; ``blocks`` is read only there."""
    if rt.rank != root:
        await recv_block(rt, mine, root)
        return
    for step in range(1, rt.size):
        dest = (root + step) % rt.size
        rt.start(send_block(rt, blocks[dest], dest))
    if mine is not None:
        await rt.copy(blocks[root], mine, idle=True)

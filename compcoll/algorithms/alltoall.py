"""Alltoall(v): host-staged, every pair of ranks streams its block chunk by chunk.

After Zhou et al., "Accelerating MPI All-to-All Communication with Online Compression on Modern GPU
Clusters" (ISC 2022): compression per peer, overlapped with the sends of what was compressed before.
All pairs are served at once, in the order of the pairwise exchange, so that no receiver is flooded.
"""

from __future__ import annotations

from compcoll.algorithms.stream import recv_block, send_block


async def alltoall(rt, send: list, recv: list) -> None:
    """``send[p]`` goes to rank p, ``recv[p]`` comes from it; empty blocks take no message."""
    for step in range(1, rt.size):
        source, dest = (rt.rank - step) % rt.size, (rt.rank + step) % rt.size
        rt.start(recv_block(rt, recv[source], source))
        rt.start(send_block(rt, send[dest], dest))
    for chunk, into in zip(rt.chunks(send[rt.rank]), rt.chunks(recv[rt.rank]), strict=False):
        await rt.copy(chunk, into, idle=True)

"""Bcast: the chunked chain.

After Zhou et al., "Designing High-Performance MPI Libraries with On-the-fly Compression" (IPDPS 2021)
and the pipelined chain of Pjesivac-Grbovic et al. (2007): the root compresses each chunk once, the ranks
in the middle forward what they received, and everybody only decodes. The root decodes its own frames
too, so that all ranks hold the same bits.
"""

from __future__ import annotations


async def chain_bcast(rt, block, root: int, owner_exact: bool = False) -> None:
    """``block`` of the root arrives as ``block`` of every rank."""
    place = (rt.rank - root) % rt.size
    before, behind = (rt.rank - 1) % rt.size, (rt.rank + 1) % rt.size
    last = place == rt.size - 1

    async def pass_on(chunk, arriving) -> None:
        frame = await (arriving if arriving is not None else rt.encode(chunk))
        if not last:
            sent = rt.send(frame, behind)
        if place or (frame.bound and not owner_exact):
            await rt.decode(frame, chunk)
        if not last:
            await sent

    await rt.all(pass_on(chunk, rt.recv(before, chunk) if place else None) for chunk in rt.chunks(block))

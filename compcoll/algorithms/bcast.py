"""Bcast: a pipelined tree, of which the chunked chain is the thinnest.

The chain is from Zhou et al., "Designing High-Performance MPI Libraries with On-the-fly Compression"
(IPDPS 2021): the root compresses each chunk once, the ranks in the middle forward the frames that they
receive, and all ranks decode. With two branches a rank (Pjesivac-Grbovic et al., 2007) a chunk arrives after
log2(P) hops instead of P, but every rank sends it twice. The root also takes the decoded values of its own
frames, so that all ranks hold the same bits.
"""

from __future__ import annotations

from compcoll.schedule.runtime import Runtime

#: Largest number of ranks that each rank sends to, by algorithm.
ARITY = {"chain": 1, "tree": 2}


async def chain_bcast(rt: Runtime, block, root: int) -> None:
    """Give every rank the root's ``block``, through each of them in turn."""
    await _pipeline(rt, block, root, ARITY["chain"])


async def tree_bcast(rt: Runtime, block, root: int) -> None:
    """Give every rank the root's ``block``, through a binary tree."""
    await _pipeline(rt, block, root, ARITY["tree"])


async def _pipeline(rt: Runtime, block, root: int, arity: int) -> None:
    place = (rt.rank - root) % rt.size
    parent = (root + (place - 1) // arity) % rt.size
    below = range(arity * place + 1, min(arity * place + arity + 1, rt.size))
    children = [(root + child) % rt.size for child in below]

    async def pass_on(tag: int, chunk, arriving) -> None:
        frame = await (arriving if arriving is not None else rt.encode(chunk, chunk))
        # Chunks may be encoded, or arrive, in another order than requested: each has its own tag.
        sent = [rt.send(frame, child, tag) for child in children]
        if place:
            await rt.decode(frame, chunk)
        else:
            rt.start(rt.write_decoded(frame, chunk, chunk))
        for future in sent:
            await future

    await rt.all(
        pass_on(tag, chunk, rt.recv(parent, chunk, tag) if place else None)
        for tag, chunk in enumerate(rt.chunks(block))
    )

"""Allreduce and Reduce: a reduce-scatter, then an allgather or a gather, chunk by chunk.

Rabenseifner, "Optimization of Collective Reduction Operations" (2004). The second half of one chunk
overlaps with the first half of the next. All ranks take the values that the owner's frame decodes to.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from compcoll.algorithms.allgather import ring_column
from compcoll.schedule.runtime import Runtime


async def allreduce(rt: Runtime, send: list, recv: list, column_sum) -> None:
    """Sum ``send`` over ranks into ``recv`` of all; both are cut into P blocks alike."""
    sources = zip_longest(*map(rt.chunks, send))
    targets = zip_longest(*map(rt.chunks, recv))

    async def one(tag: int, source, target) -> None:
        total, frame = await column_sum(rt, source, target[rt.rank], tag)
        if total is not None:
            await rt.round(total, target[rt.rank])
        await ring_column(rt, target[rt.rank], target, tag, frame)

    await rt.all(one(tag, s, t) for tag, (s, t) in enumerate(zip(sources, targets, strict=True)))


async def reduce(rt: Runtime, send: list, recv: list | None, root: int, column_sum) -> None:
    """Sum ``send`` over ranks into ``recv`` of the root."""
    sources = list(zip_longest(*map(rt.chunks, send)))
    targets = list(zip_longest(*map(rt.chunks, recv))) if recv is not None else [None] * len(sources)

    async def one(tag: int, source, target) -> None:
        own: Any = target[root] if target else None
        total, frame = await column_sum(rt, source, own, tag)
        if rt.rank != root:
            if total is not None:
                await rt.send(await rt.encode(await rt.rounded(total)) if frame is None else frame, root, tag)
            return
        arriving = [
            (rt.recv(p, into, tag), into) for p, into in enumerate(target) if p != root and into is not None
        ]
        if total is not None:
            await rt.round(total, own)
        for future, into in arriving:
            await rt.decode(await future, into)

    await rt.all(one(tag, s, t) for tag, (s, t) in enumerate(zip(sources, targets, strict=True)))

"""Reduce_scatter(_block): sums over all ranks, block p at rank p.

``ring_sum`` (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009) decodes, adds and encodes
at each of its P - 1 hops, and so rounds P - 1 times. ``direct_sum`` encodes every piece once and adds at its
owner, always in the same order: each contribution is rounded once. ``compressed_sum`` adds frames round the
ring without decoding them, for codecs whose frames can be added: each contribution is rounded once, and the
sum is a frame that can be forwarded unchanged.

All work on a column, one chunk of every rank's block with equal tag (``None`` where a block has no such
chunk), and return a `Sum`.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from compcoll.schedule.runtime import Runtime


class Sum(NamedTuple):
    """This rank's sum: its accumulator (None: no such chunk), and its frame if it has one."""

    total: Any
    frame: Any = None


async def reduce_scatter(rt: Runtime, send: list, into, column_sum) -> None:
    """Sum ``send[rank]`` over ranks into ``into``."""
    columns = list(zip_longest(*map(rt.chunks, send)))
    outs = rt.chunks(into)

    async def one(tag: int) -> None:
        out = outs[tag] if tag < len(outs) else None
        total, _ = await column_sum(rt, columns[tag], out, tag)
        if out is not None:
            await rt.round(total, out)

    await rt.all(one(tag) for tag in range(len(columns)))


async def ring_sum(rt: Runtime, column, into, tag: int) -> Sum:
    """Send partial sums once around the ring."""
    left, right = (rt.rank - 1) % rt.size, (rt.rank + 1) % rt.size
    total = column[left]
    for hop in range(2, rt.size + 1):
        chunk = column[(rt.rank - hop) % rt.size]
        arriving = rt.recv(left, chunk, tag) if chunk is not None else None
        sent = rt.send(await rt.encode(total), right, tag) if total is not None else None
        total = None
        if arriving is not None:
            total = rt.accumulator(chunk, into if hop == rt.size else None)
            await rt.copy(chunk, total, idle=True)
            await rt.decode_add(await arriving, total)
        if sent is not None:
            await sent
    return Sum(total)


async def direct_sum(rt: Runtime, column, into, tag: int) -> Sum:
    """Send every piece straight to its owner, which adds them."""
    mine, total = column[rt.rank], None
    arriving = []
    if mine is not None:
        arriving = [rt.recv((rt.rank + step) % rt.size, mine, tag) for step in range(1, rt.size)]
    deliveries = rt.start(_deliver(rt, column, tag))
    if mine is not None:
        total = rt.accumulator(mine, into)
        await rt.copy(mine, total, idle=True)  # less urgent than the first frames
        for future in arriving:
            await rt.decode_add(await future, total)
    await deliveries
    return Sum(total)


async def _deliver(rt: Runtime, column, tag: int) -> None:
    async def one(dest: int) -> None:
        await rt.send(await rt.encode(column[dest]), dest, tag)

    dests = ((rt.rank - step) % rt.size for step in range(1, rt.size))
    await rt.all((one(dest) for dest in dests if column[dest] is not None), rt.window)


async def compressed_sum(rt: Runtime, column, into, tag: int) -> Sum:
    """Send frames once around the ring, which are added without decoding."""
    left, right = (rt.rank - 1) % rt.size, (rt.rank + 1) % rt.size
    frame = await rt.encode(column[left]) if column[left] is not None else None
    for hop in range(2, rt.size + 1):
        chunk = column[(rt.rank - hop) % rt.size]
        arriving = rt.recv(left, chunk, tag) if chunk is not None else None
        sent = rt.send(frame, right, tag) if frame is not None else None
        frame = None
        if arriving is not None:
            own = await rt.encode(chunk)
            frame = await rt.add(await arriving, own, chunk)
        if sent is not None:
            await sent
    mine = column[rt.rank]
    if mine is None:
        return Sum(None)
    total = rt.accumulator(mine, into)
    await (rt.copy(mine, total) if frame is None else rt.decode(frame, total))
    return Sum(total, frame)

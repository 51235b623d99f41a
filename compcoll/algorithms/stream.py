"""Transfer of a block from one rank to another, chunk by chunk: the building block of most algorithms.

Chunks are encoded, sent, received and decoded at the same time, a window of them at once: while one is
on the wire the next one is being compressed.
"""

from __future__ import annotations

from collections import deque

from compcoll.schedule.runtime import Runtime


async def send_block(rt: Runtime, block, dest: int, first_tag: int = 0) -> None:
    """Encode and send a block; its empty chunks, which no rank may wait for, are sent first."""

    async def one(tag: int, chunk) -> None:
        await rt.send(await rt.encode(chunk, inside=rt.on_same_node(dest)), dest, tag)

    numbered = list(enumerate(rt.chunks(block), first_tag))
    for tag, chunk in numbered:
        if not len(chunk):
            rt.start(one(tag, chunk))
    await rt.all((one(tag, chunk) for tag, chunk in numbered if len(chunk)), rt.window)


async def recv_block(rt: Runtime, block, source: int) -> None:
    """Receive a block and decode it in place."""
    chunks = rt.chunks(block)
    arriving: deque = deque()
    decoding: deque = deque()
    for tag, chunk in enumerate(chunks[: rt.window]):
        arriving.append(rt.recv(source, chunk, tag))
    for tag, chunk in enumerate(chunks, rt.window):
        decoding.append(rt.start(rt.decode(await arriving.popleft(), chunk)))
        if tag < len(chunks):
            if len(decoding) > rt.window:
                await decoding.popleft()
            arriving.append(rt.recv(source, chunks[tag], tag))

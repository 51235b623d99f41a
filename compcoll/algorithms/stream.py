"""A block from one rank to another, chunk by chunk: what most algorithms are made of.

Chunks are encoded, sent, received and decoded at the same time, a window of them at once: while one is
on the wire the next one is being compressed.
"""

from __future__ import annotations

from collections import deque


async def send_block(rt, block, dest: int) -> None:
    """Encode and send a block."""

    async def one(tag: int, chunk) -> None:
        await rt.send(await rt.encode(chunk), dest, tag)

    await rt.all((one(tag, chunk) for tag, chunk in enumerate(rt.chunks(block))), rt.window)


async def recv_block(rt, block, source: int) -> None:
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


async def drop_block(rt, block, source: int) -> None:
    """Receive what a sender sends of a block, which nobody wants."""

    async def one(tag: int, chunk) -> None:
        await rt.recv(source, chunk, tag)

    await rt.all((one(tag, chunk) for tag, chunk in enumerate(rt.chunks(block))), rt.window)

"""A block from one rank to another, chunk by chunk: what most algorithms are made of.

Chunks are encoded, sent, received and decoded at the same time, a window of them at once: while one is
on the wire the next one is being compressed.
"""

from __future__ import annotations

from collections import deque

WINDOW = 4


async def send_block(rt, block, dest: int, tag: int = 0, meanwhile=None) -> None:
    """Encode and send a block."""
    await send_chunks(rt, rt.chunks(block), dest, tag, meanwhile)


async def send_chunks(rt, chunks: list, dest: int, tag: int = 0, meanwhile=None) -> None:
    """Encode and send chunks in order, at most `WINDOW` of them in flight.

    Before it waits for one of them, it awaits ``meanwhile()``: work that nobody is in need of.
    """
    in_flight: deque = deque()

    async def wait() -> None:
        if meanwhile is not None:
            await meanwhile()
        await in_flight.popleft()

    async for frame in rt.frames(chunks):
        in_flight.append(rt.send(frame, dest, tag))
        if len(in_flight) == WINDOW:
            await wait()
    while in_flight:
        await wait()


async def recv_block(rt, block, source: int, tag: int = 0, consume=None) -> None:
    """Receive a block and decode it in place, or hand each (frame, chunk) to ``consume`` in order."""
    consume = consume or rt.decode
    chunks = rt.chunks(block)
    arriving = deque(rt.recv(source, chunk, tag) for chunk in chunks[:WINDOW])
    for i, chunk in enumerate(chunks):
        frame = await arriving.popleft()
        if i + WINDOW < len(chunks):
            arriving.append(rt.recv(source, chunks[i + WINDOW], tag))
        await consume(frame, chunk)

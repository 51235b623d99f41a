"""The collectives' arguments, turned into what the algorithms want.

Each function parses the arguments of one method and returns a `Call`, or None where mpi4py has to deal
with them. Whether it does is common knowledge: MPI demands that the ranks' types and counts agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any

import numpy as np

from compcoll.engine.call import Call
from compcoll.engine.group import Group
from compcoll.mpi.buffers import Block, Message, apart, in_place
from compcoll.mpi.buffers import parse as parse_host

__all__ = ["Parsed"]

parse = partial(parse_host, device=True)


@dataclass
class Parsed(Call):
    """A call with what mpi4py's arguments say besides.

    Attributes
    ----------
    element : numpy.dtype
        The type that the blocks were given in: a complex one for pairs of real numbers.
    messages : list of Message
        What has to be finished afterwards.
    read_only_root : bool
        Whether this rank may not write to what it broadcasts.
    """

    element: Any = None
    messages: list[Message] = field(default_factory=list)
    read_only_root: bool = False

    def finish(self) -> None:
        """Write through what could not be written in place."""
        super().finish()
        for message in self.messages:
            message.finish()


def _parsed(op: str, of: Message, nbytes: int, *messages: Message | None, **more: Any) -> Parsed:
    """A call of elements like those of a message; those that are written to come behind its size."""
    more.setdefault("empty", not nbytes)
    written = [m for m in messages if m is not None]
    return Parsed(op, of.dtype, nbytes, element=of.element, messages=written, **more)


def bcast(rank: int, size: int, buf, root: int) -> Parsed | None:
    message = parse(buf)
    if message is None or not 0 <= root < size:
        return None
    sends = rank == root
    block = message.source(0) if sends else message.target(0)  # what stays as it is may be read-only
    sample = block if sends else None  # what others have there is about to be overwritten
    return _parsed(
        "Bcast", message, message.nbytes, message, recv=[block], root=root, sample=sample,
        read_only_root=sends and message.is_read_only, shapes={0: message.shape(0)} if sends else {},
    )  # fmt: skip


def allgather(rank: int, size: int, sendbuf, recvbuf) -> Parsed | None:
    return _allgather("Allgather", rank, sendbuf, parse(recvbuf, size))


def allgatherv(rank: int, size: int, sendbuf, recvbuf) -> Parsed | None:
    return _allgather("Allgatherv", rank, sendbuf, parse(recvbuf, size, vector=True))


def _allgather(op: str, rank: int, sendbuf, recv: Message | None) -> Parsed | None:
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if recv is None or send is None or send.dtype != recv.dtype:
        return None
    _same("send", send.counts[rank if send is recv else 0], "receive", recv.counts[rank])
    apart(send, 0, recv, rank)
    blocks = recv.targets()
    mine = [] if send is recv else [send.source(0)]
    shape = send.shape(0 if mine else rank)
    return _parsed(
        op, recv, recv.nbytes, recv, send=mine, recv=blocks, sample=mine[0] if mine else blocks[rank],
        shapes={0: shape, 1 + rank: shape} if mine else {rank: shape},
    )  # fmt: skip


def alltoall(rank: int, size: int, sendbuf, recvbuf) -> Parsed | None:
    recv = parse(recvbuf, size)
    send = recv if in_place(sendbuf) else parse(sendbuf, size)
    if recv is None or send is None or send.dtype != recv.dtype:
        return None
    _same("send", send.counts[0], "receive", recv.counts[0])
    apart(send, 0, recv, 0)
    blocks = [b.copy() for b in recv.sources()] if send is recv else send.sources()
    shapes = _shapes(send)
    return _parsed(
        "Alltoall", recv, recv.nbytes, recv, send=blocks, recv=recv.targets(), sample=blocks[0],
        shapes={**shapes, size + rank: shapes[rank]},
    )  # fmt: skip


def gather(rank: int, size: int, sendbuf, recvbuf, root: int) -> Parsed | None:
    recv = parse(recvbuf, size) if rank == root else None
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if send is None or (rank == root and recv is None) or not 0 <= root < size:
        return None
    if recv is not None:
        _same_type(send, recv)
        _same("send", send.counts[0], "receive", recv.counts[root])
        apart(send, 0, recv, root)
    blocks = recv.targets() if recv is not None else []
    mine = [] if send is recv else [send.source(0)]
    return _parsed(
        "Gather", send, send.nbytes, recv, send=mine, recv=blocks, root=root,
        sample=mine[0] if mine else None, shapes={0: send.shape(0)} if recv is None else {},
    )  # fmt: skip


def scatter(rank: int, size: int, sendbuf, recvbuf, root: int) -> Parsed | None:
    send = parse(sendbuf, size) if rank == root else None
    recv = send if in_place(recvbuf) else parse(recvbuf)
    if recv is None or (rank == root and send is None) or not 0 <= root < size:
        return None
    if send is not None:
        _same_type(send, recv)
        _same("send", send.counts[root], "receive", recv.counts[0])
        apart(recv, 0, send, root)
    blocks = send.sources() if send is not None else []
    mine = [] if send is recv else [recv.target(0)]
    return _parsed(
        "Scatter",
        recv,
        recv.nbytes,
        recv,
        send=blocks,
        recv=mine,
        root=root,
        sample=blocks[0] if blocks else None,
        shapes=_shapes(send) if send is not None else {},
    )


def allreduce(rank: int, size: int, sendbuf, recvbuf) -> Parsed | None:
    recv = parse(recvbuf)
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if recv is None or send is None or send.dtype != recv.dtype or not (send.summable and recv.summable):
        return None
    _same("send", send.counts[0], "receive", recv.counts[0])
    apart(send, 0, recv, 0)
    target = recv.target(0)
    source = target if send is recv else send.source(0)
    return _parsed(
        "Allreduce", recv, recv.nbytes // size, recv, empty=not recv.nbytes, recv=[target],
        send=[] if send is recv else [source], sample=source, summands=[source],
    )  # fmt: skip


def reduce(rank: int, size: int, sendbuf, recvbuf, root: int) -> Parsed | None:
    recv = parse(recvbuf) if rank == root else None
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if send is None or not send.summable or not 0 <= root < size:
        return None
    if rank == root and (recv is None or recv.dtype != send.dtype or not recv.summable):
        return None
    if recv is not None:
        _same("send", send.counts[0], "receive", recv.counts[0])
        apart(send, 0, recv, 0)
    target = recv.target(0) if recv is not None else None
    source = target if send is recv else send.source(0)
    return _parsed(
        "Reduce", send, send.nbytes // size, recv, empty=not send.nbytes, root=root,
        send=[] if send is recv else [source], recv=[] if target is None else [target], sample=source,
        summands=[source],
    )  # fmt: skip


def reduce_scatter_block(rank: int, size: int, sendbuf, recvbuf) -> Parsed | None:
    send = parse(recvbuf if in_place(sendbuf) else sendbuf, size)
    if send is None or not send.summable:
        return None
    return _reduce_scatter("Reduce_scatter_block", rank, send, send.sources(), sendbuf, recvbuf)


def reduce_scatter(rank: int, size: int, sendbuf, recvbuf, counts, group: Group, least: int) -> Parsed | None:
    send, recv = parse(recvbuf if in_place(sendbuf) else sendbuf), parse(recvbuf)
    if send is None or recv is None or not (send.summable and recv.summable):
        return None
    if not send.nbytes or send.nbytes < least:  # before counts are exchanged, by some and not by others
        return _parsed("Reduce_scatter", send, send.nbytes, empty=True)
    if counts is None and in_place(sendbuf):
        return None
    if counts is None:
        counts = group.comm.allgather(recv.entries)
    else:
        counts = [index(counts[i]) for i in range(len(counts))]
    if len(counts) != size or min(counts) < 0:
        return None
    return _reduce_scatter("Reduce_scatter", rank, send, _split(send, counts), sendbuf, recvbuf)


def _reduce_scatter(
    op: str, rank: int, send: Message, blocks: list[Block], sendbuf, recvbuf
) -> Parsed | None:
    recv = parse(recvbuf)
    if recv is None or blocks[0].dtype != recv.dtype or not recv.summable:
        return None
    if not in_place(sendbuf):
        apart(send, 0, recv, 0)
        _same("send", blocks[rank].size, "receive", recv.counts[0])
    target = recv.target(0)[: blocks[rank].size]
    sends, recvs = ([], [*blocks, target]) if in_place(sendbuf) else (blocks, [target])
    return _parsed(
        op,
        recv,
        max(b.nbytes for b in blocks),
        recv,
        send=sends,
        recv=recvs,
        sample=blocks[0],
        summands=blocks,
    )


def _shapes(send: Message) -> dict[int, tuple[int, ...] | None]:
    """The shapes of all blocks."""
    return {i: send.shape(i) for i in range(len(send.counts))}


def _split(send: Message, counts) -> list[Block]:
    """The blocks of Reduce_scatter, whose counts are those of the receive buffers in order of rank."""
    whole = send.source(0)
    per_entry = send.counts[0] // max(send.entries, 1)
    ends = np.cumsum([n * per_entry for n in counts]).tolist()
    if ends[-1] != whole.size:
        total = ends[-1] // per_entry
        raise ValueError(f"recvcounts add up to {total}, and the send count is {send.entries}")
    return [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _same_type(send: Message, recv: Message) -> None:
    if send.dtype != recv.dtype:
        raise TypeError(f"send type {send.dtype} differs from the receive type {recv.dtype}")


def _same(what: str, n: int, other: str, m: int) -> None:
    if n != m:
        raise ValueError(f"{what} count of {n} elements differs from the {other} count of {m}")

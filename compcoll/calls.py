"""The collectives' arguments, turned into what the algorithms want.

Each function parses the arguments of one method and returns a `Call`, or None where mpi4py has to deal
with them. Whether it does is common knowledge: MPI demands that the ranks' types and counts agree.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from compcoll import algorithms as alg
from compcoll.buffers import Message, in_place
from compcoll.buffers import parse as parse_host
from compcoll.context import Context
from compcoll.devices.memory import DeviceArray
from compcoll.policy import Decision
from compcoll.runtime.base import Runtime

__all__ = ["Call"]

parse = partial(parse_host, device=True)

_ALLGATHER = {"ring": alg.ring_allgather, "recursive_doubling": alg.recursive_doubling_allgather}
_BCAST = {"chain": alg.chain_bcast, "tree": alg.tree_bcast}
_SUM = {"ring": alg.ring_sum, "direct": alg.direct_sum, "compressed": alg.compressed_sum}


@dataclass
class Call:
    """One collective, ready to run.

    Attributes
    ----------
    dtype : numpy.dtype
        Real type of all blocks.
    nbytes : int
        Size of its largest message, known to all ranks.
    empty : bool
        Whether there is nothing to send at all, which all ranks know as well.
    body : callable
        ``body(runtime, decision, owner_exact)`` is the algorithm's coroutine.
    messages : list of Message
        What has to be finished afterwards.
    sample : numpy.ndarray or None
        A block that this rank sends, for the model to look at.
    summands : list of numpy.ndarray
        What this rank contributes to a reduction.
    """

    dtype: np.dtype
    nbytes: int
    empty: bool
    body: Callable[[Runtime, Decision, bool], Coroutine]
    messages: list[Message] = field(default_factory=list)
    sample: np.ndarray | None = None
    summands: list[np.ndarray] = field(default_factory=list)

    @property
    def on_device(self) -> bool:
        """Whether any of its memory is on a GPU."""
        blocks = [self.sample, *self.summands]
        return any(m.device is not None for m in self.messages) or any(
            isinstance(b, DeviceArray) for b in blocks
        )

    def finish(self) -> None:
        """Write through what could not be written in place."""
        for message in self.messages:
            message.finish()


def bcast(rank: int, size: int, buf, root: int) -> Call | None:
    message = parse(buf)
    if message is None or not 0 <= root < size:
        return None
    block = message.source(0) if rank == root else message.target(0)

    def body(rt, decision, owner_exact):
        keeps = rank != root or decision.codec.lossless or owner_exact
        into = block if keeps else message.target(0)
        return _BCAST[decision.algorithm](rt, into, root, owner_exact)

    sample = block if rank == root else None  # what others have there is about to be overwritten
    return Call(message.dtype, message.nbytes, not message.nbytes, body, [message], sample)


def allgather(rank: int, size: int, sendbuf, recvbuf) -> Call | None:
    return _allgather(rank, sendbuf, parse(recvbuf, size))


def allgatherv(rank: int, size: int, sendbuf, recvbuf) -> Call | None:
    return _allgather(rank, sendbuf, parse(recvbuf, size, vector=True))


def _allgather(rank: int, sendbuf, recv: Message | None) -> Call | None:
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if recv is None or send is None or send.dtype != recv.dtype:
        return None
    _same("send", send.counts[rank if send is recv else 0], "receive", recv.counts[rank])
    blocks = recv.targets()
    mine = blocks[rank] if send is recv else send.source(0)

    def body(rt, decision, owner_exact):
        return _ALLGATHER[decision.algorithm](rt, mine, blocks, owner_exact)

    return Call(recv.dtype, recv.nbytes, not recv.nbytes, body, [recv], mine)


def alltoall(rank: int, size: int, sendbuf, recvbuf) -> Call | None:
    recv = parse(recvbuf, size)
    send = recv if in_place(sendbuf) else parse(sendbuf, size)
    if recv is None or send is None or send.dtype != recv.dtype:
        return None
    _same("send", send.counts[0], "receive", recv.counts[0])
    blocks = [b.copy() for b in recv.sources()] if send is recv else send.sources()
    targets = recv.targets()

    def body(rt, decision, owner_exact):
        return alg.alltoall(rt, blocks, targets)

    return Call(recv.dtype, recv.nbytes, not recv.nbytes, body, [recv], blocks[0])


def gather(rank: int, size: int, sendbuf, recvbuf, root: int) -> Call | None:
    recv = parse(recvbuf, size) if rank == root else None
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if send is None or (rank == root and recv is None) or not 0 <= root < size:
        return None
    if recv is not None:
        _same_type(send, recv)
        _same("send", send.counts[0], "receive", recv.counts[root])
    blocks = recv.targets() if recv is not None else []
    mine = None if send is recv else send.source(0)

    def body(rt, decision, owner_exact):
        return alg.gather(rt, mine, blocks, root)

    messages = [recv] if recv is not None else []
    return Call(send.dtype, send.nbytes, not send.nbytes, body, messages, mine)


def scatter(rank: int, size: int, sendbuf, recvbuf, root: int) -> Call | None:
    send = parse(sendbuf, size) if rank == root else None
    recv = send if in_place(recvbuf) else parse(recvbuf)
    if recv is None or (rank == root and send is None) or not 0 <= root < size:
        return None
    if send is not None:
        _same_type(send, recv)
        _same("send", send.counts[root], "receive", recv.counts[0])
    blocks = send.sources() if send is not None else []
    mine = None if send is recv else recv.target(0)

    def body(rt, decision, owner_exact):
        return alg.scatter(rt, blocks, mine, root)

    return Call(recv.dtype, recv.nbytes, not recv.nbytes, body, [recv], blocks[0] if blocks else None)


def allreduce(rank: int, size: int, sendbuf, recvbuf) -> Call | None:
    recv = parse(recvbuf)
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if recv is None or send is None or send.dtype != recv.dtype or not send.summable:
        return None
    _same("send", send.counts[0], "receive", recv.counts[0])
    target = recv.target(0)
    source = target if send is recv else send.source(0)

    def body(rt, decision, owner_exact):
        column_sum = _SUM[decision.algorithm]
        return alg.allreduce(rt, _cut(source, size), _cut(target, size), column_sum, owner_exact)

    return Call(recv.dtype, recv.nbytes // size, not recv.nbytes, body, [recv], source, [source])


def reduce(rank: int, size: int, sendbuf, recvbuf, root: int) -> Call | None:
    recv = parse(recvbuf) if rank == root else None
    send = recv if in_place(sendbuf) else parse(sendbuf)
    if send is None or not send.summable or not 0 <= root < size:
        return None
    if rank == root and (recv is None or recv.dtype != send.dtype):
        return None
    if recv is not None:
        _same("send", send.counts[0], "receive", recv.counts[0])
    target = recv.target(0) if recv is not None else None
    source = target if target is not None and send is recv else send.source(0)

    def body(rt, decision, owner_exact):
        blocks = _cut(target, size) if target is not None else None
        return alg.reduce(rt, _cut(source, size), blocks, root, _SUM[decision.algorithm])

    messages = [recv] if recv is not None else []
    return Call(send.dtype, send.nbytes // size, not send.nbytes, body, messages, source, [source])


def reduce_scatter_block(rank: int, size: int, sendbuf, recvbuf) -> Call | None:
    send = parse(recvbuf if in_place(sendbuf) else sendbuf, size)
    if send is None or not send.summable:
        return None
    return _reduce_scatter(rank, send.sources(), sendbuf, recvbuf)


def reduce_scatter(
    rank: int, size: int, sendbuf, recvbuf, counts, context: Context, least: int
) -> Call | None:
    send, recv = parse(recvbuf if in_place(sendbuf) else sendbuf), parse(recvbuf)
    if send is None or recv is None or not send.summable:
        return None
    if not send.nbytes or send.nbytes < least:  # before counts are exchanged, by some and not by others
        return Call(send.dtype, send.nbytes, True, alg.reduce_scatter)  # type: ignore[arg-type]
    if counts is None and in_place(sendbuf):
        return None
    if counts is None:
        counts = context.shadow.allgather(recv.entries)
    if len(counts) != size:
        return None
    return _reduce_scatter(rank, _split(send, counts), sendbuf, recvbuf)


def _reduce_scatter(rank: int, blocks: list[np.ndarray], sendbuf, recvbuf) -> Call | None:
    recv = parse(recvbuf)
    if recv is None or blocks[0].dtype != recv.dtype:
        return None
    if not in_place(sendbuf):
        _same("send", blocks[rank].size, "receive", recv.counts[0])
    target = recv.target(0)[: blocks[rank].size]
    # In place, the result lies where other ranks' blocks still wait to be sent.
    into = target.copy() if in_place(sendbuf) else target

    async def body(rt, decision, owner_exact):
        await alg.reduce_scatter(rt, blocks, into, _SUM[decision.algorithm])
        await rt.copy(into, target)

    nbytes = max(b.nbytes for b in blocks)
    return Call(recv.dtype, nbytes, not nbytes, body, [recv], blocks[0], blocks)


def _split(send: Message, counts) -> list[np.ndarray]:
    """The blocks of Reduce_scatter, whose counts are those of the receive buffers in order of rank."""
    whole = send.source(0)
    per_entry = send.counts[0] // max(send.entries, 1)
    ends = np.cumsum([n * per_entry for n in counts]).tolist()
    if ends[-1] != whole.size:
        total = ends[-1] // per_entry
        raise ValueError(f"recvcounts add up to {total}, and the send count is {send.entries}")
    return [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _cut(block: np.ndarray, size: int) -> list[np.ndarray]:
    """A block in as many parts as there are ranks, multiples of a codec's block but for the tail."""
    step = -(-block.size // size)
    step = -(-step // 64) * 64
    return [block[i * step : (i + 1) * step] for i in range(size)]


def _same_type(send: Message, recv: Message) -> None:
    if send.dtype != recv.dtype:
        raise TypeError(f"send type {send.dtype} differs from the receive type {recv.dtype}")


def _same(what: str, n: int, other: str, m: int) -> None:
    if n != m:
        raise ValueError(f"{what} count of {n} elements differs from the {other} count of {m}")

"""Messages between two ranks, and the barrier that names missing ranks.

Small messages, and those that no policy compresses, are MPI's. Of a compressed one a short header goes the
same way under the same tag, so that MPI matches and orders it; it names the tags of the chunks, which go over
the private communicator. Both ends decide alike: they know type and size.
"""

from __future__ import annotations

import struct
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import begin_message, n_chunks
from compcoll.engine.group import largest_tag
from compcoll.torch.buffers import buffer_of, element_of
from compcoll.torch.core import Core
from compcoll.torch.futures import may_watch, watch_idle
from compcoll.torch.work import Steps, Work

__all__ = ["monitored_barrier", "recv", "send"]

#: Bytes that every MPI sends at once, whether or not the receiver makes progress: no thread has to.
_EAGER_NBYTES = 2048
#: First tag, elements, elements of a chunk.
_HEADER = struct.Struct("<QQQ")
#: Seconds between two looks of a monitored barrier.
_PAUSE = 1e-3


def send(core: Core, tensor: torch.Tensor, peer: int, tag: int) -> Work:
    """Start to send a tensor."""
    _check(core, peer, tag)
    work = core.launch(
        f"send to rank {peer}, tag {tag}", _send(core, tensor, peer, tag), [tensor], ordered=False,
        sync=_is_eager(tensor), peers=[peer],
    )  # fmt: skip
    if not work.is_completed():
        work.leave()
    return work


def recv(core: Core, tensor: torch.Tensor, peer: int | None, tag: int) -> Work:
    """Start to receive a tensor, from any rank if none is named."""
    _check(core, peer or 0, tag)
    source = MPI.ANY_SOURCE if peer is None else peer
    found: list[int] = []
    work = core.launch(
        f"recv from {'any rank' if peer is None else f'rank {peer}'}, tag {tag}",
        _recv(core, tensor, source, tag, found), [tensor], ordered=False, sync=_is_eager(tensor),
        peers=[rank for rank in range(core.size) if rank != core.rank] if peer is None else [peer],
    )  # fmt: skip
    work.sources = found
    if not work.is_completed():
        watch_idle(work)
    return work


def _is_eager(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= _EAGER_NBYTES and may_watch()


def _check(core: Core, peer: int, tag: int) -> None:
    if not 0 <= peer < core.size:
        raise ValueError(f"rank {peer} is not from 0 to {core.size - 1}")
    if not 0 <= tag <= largest_tag():
        raise ValueError(f"tag {tag} is not from 0 to {largest_tag()}, MPI's largest")


def _decide(core: Core, array: Any, tensor: torch.Tensor) -> Any:
    return core.decide("Send", array.dtype, array.nbytes, element_of(tensor.dtype))


def _send(core: Core, tensor: torch.Tensor, peer: int, tag: int) -> Steps:
    buffer = buffer_of(tensor)
    array, order = buffer.array, core.kernels.order(buffer)
    decision = _decide(core, array, tensor)
    if decision.codec is None or not array.size:
        yield [_engine.Request(core.comm.Isend([buffer.host.view(np.uint8), MPI.BYTE], peer, tag))]
        core.stats.add_mpi("Send", array.nbytes, decision.reason)
        return []
    chunk = max(decision.chunk_nbytes // array.itemsize, 1)
    first = core.next_message_tag(n_chunks(array.size, chunk))
    header = bytearray(_HEADER.pack(first, array.size, chunk))
    opening = core.comm.Isend([header, MPI.BYTE], peer, tag)
    task = begin_message(core.transport, decision.codec, array, peer, chunk, first, sends=True)
    order.attach(task)
    yield [_engine.Request(opening), task]
    events = order.record()
    core.count(task, "Send", array.nbytes, decision)
    return events


def _recv(core: Core, tensor: torch.Tensor, source: int, tag: int, found: list[int]) -> Steps:
    buffer = buffer_of(tensor, writes=True, reads=False)
    array, order = buffer.array, core.kernels.order(buffer)
    decision = _decide(core, array, tensor)
    compressed = decision.codec is not None and array.size > 0
    received = bytearray(_HEADER.size) if compressed else buffer.host.view(np.uint8)
    status = MPI.Status()
    yield [_engine.Request(core.comm.Irecv([received, MPI.BYTE], source, tag), status)]
    found.append(status.source)
    n, expected = status.Get_count(MPI.BYTE), len(received) if compressed else array.nbytes
    if n != expected:
        raise ValueError(
            f"a message of {n} bytes came from rank {status.source} for a tensor of {array.nbytes}"
        )
    if compressed:
        first, size, chunk = _HEADER.unpack(bytes(received))
        if size != array.size:
            raise ValueError(f"{size} elements came from rank {status.source} for a tensor of {array.size}")
        assert decision.codec is not None
        task = begin_message(
            core.transport, decision.codec, array, status.source, chunk, first, sends=False
        )  # fmt: skip
        order.attach(task)
        yield [task]
    buffer.finish(order)
    events = order.record()
    if compressed:
        core.kernels.when_done(task, "Recv", lambda: None)
    return events


def monitored_barrier(core: Core, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """Wait for all ranks; RuntimeError on those that wait for missing ones.

    Rank 0 names the first rank that is missing, or all of them with ``wait_all_ranks``.
    """
    core.check_usable()
    core.flush()
    seconds = timeout.total_seconds() if timeout is not None else core.timeout
    until, comm, tag = time.monotonic() + seconds, core.group.private_comm, core.group.pairwise_tags[0]
    if core.rank:
        _poll(comm.Isend([b"", MPI.BYTE], 0, tag), until, 0, seconds)
        answer = bytearray(1)
        _poll(comm.Irecv([answer, MPI.BYTE], 0, tag), until + 1.0, 0, seconds)
        if answer[0]:
            raise RuntimeError("monitored_barrier: rank 0 has found that not all ranks have come")
        return
    arriving = {rank: comm.Irecv([bytearray(0), MPI.BYTE], rank, tag) for rank in range(1, core.size)}
    missing: list[int] = []
    for rank, request in arriving.items():
        try:
            _poll(request, until, rank, seconds)
        except RuntimeError:
            missing.append(rank)
            if not wait_all_ranks:
                break
    verdict = bytes([bool(missing)])
    sent = [comm.Isend([verdict, MPI.BYTE], rank, tag) for rank in arriving]
    if missing:
        core.invalidate(f"ranks {missing} did not come to a monitored_barrier")
        raise RuntimeError(
            f"Rank 0 timed out in monitoredBarrier: {', '.join(f'rank {rank}' for rank in missing)} did "
            f"not come within {seconds:g} s"
        )
    MPI.Request.Waitall(sent)


def _poll(request: MPI.Request, until: float, rank: int, seconds: float) -> None:
    while not request.Test():
        if time.monotonic() > until:
            raise dist.DistBackendError(f"monitored_barrier: rank {rank} did not answer within {seconds:g} s")
        time.sleep(_PAUSE)

"""Messages between two ranks, and the barrier that names missing ranks.

Small messages, and those that no policy compresses, are MPI's. Of a compressed one a short header goes the
same way under the same tag, so that MPI matches and orders it; it names the tags of the chunks, which go over
the private communicator. Both ends decide alike: they know type and size.
"""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import Task, begin_message, n_chunks
from compcoll.engine.group import largest_tag
from compcoll.torch.buffers import buffer_of, element_of
from compcoll.torch.core import Core
from compcoll.torch.futures import may_watch, watch_idle
from compcoll.torch.work import Operation, Work

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
    work = core.launch(_Send(core, tensor, peer, tag))
    if not work.is_completed():
        work.leave()
    return work


def recv(core: Core, tensor: torch.Tensor, peer: int | None, tag: int) -> Work:
    """Start to receive a tensor, from any rank if none is named."""
    _check(core, peer or 0, tag)
    operation = _Recv(core, tensor, peer, tag)
    work = core.launch(operation)
    work.sources = operation.sources
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


class _Message(Operation):
    """A message: an array in a buffer, and how its two ends have decided on it."""

    def __init__(self, core: Core, tensor: torch.Tensor, tag: int, buffer: Any, op: str, peers: list[int]):
        super().__init__(op, [tensor], peers=peers, sync=_is_eager(tensor))
        self._core, self._tag, self._buffer, self._array = core, tag, buffer, buffer.array
        self._order = core.kernels.order(buffer)
        self._task: Any = None
        array = self._array
        self._decision = core.decide("Send", array.dtype, array.nbytes, element_of(tensor.dtype))
        self._compressed = self._decision.codec is not None and array.size > 0

    def _begin_chunks(self, peer: int, chunk: int, first: int, sends: bool) -> Task:
        assert self._decision.codec is not None
        self._task = begin_message(
            self._core.group.private_handle,
            self._decision.codec,
            self._array,
            peer,
            chunk,
            first,
            sends=sends,
        )
        self._order.attach(self._task)
        return self._task


class _Send(_Message):
    def __init__(self, core: Core, tensor: torch.Tensor, peer: int, tag: int):
        super().__init__(core, tensor, tag, buffer_of(tensor), f"send to rank {peer}, tag {tag}", [peer])
        self._peer = peer

    def begin(self) -> list[Task]:
        core, array, sent = self._core, self._array, bytearray()
        if not self._compressed:
            values = [self._buffer.host.view(np.uint8), MPI.BYTE]
            self._task = _engine.Request(core.comm.Isend(values, self._peer, self._tag))
            return [self._task]
        chunk = max(self._decision.chunk_nbytes // array.itemsize, 1)
        first = core.next_message_tag(n_chunks(array.size, chunk))
        sent += _HEADER.pack(first, array.size, chunk)
        opening = core.comm.Isend([sent, MPI.BYTE], self._peer, self._tag)
        return [_engine.Request(opening), self._begin_chunks(self._peer, chunk, first, True)]

    def go_on(self) -> list[Task]:
        self.events = self._order.record()
        decision = self._decision if self._compressed else replace(self._decision, codec=None)
        self._core.count(self._task, "Send", self._array.nbytes, decision)
        return []


class _Recv(_Message):
    def __init__(self, core: Core, tensor: torch.Tensor, peer: int | None, tag: int):
        anyone = [rank for rank in range(core.size) if rank != core.rank]
        name = f"recv from {'any rank' if peer is None else f'rank {peer}'}, tag {tag}"
        buffer = buffer_of(tensor, writes=True, reads=False)
        super().__init__(core, tensor, tag, buffer, name, anyone if peer is None else [peer])
        self._source, self._status = MPI.ANY_SOURCE if peer is None else peer, MPI.Status()
        self.sources: list[int] = []

    def begin(self) -> list[Task]:
        self._received = bytearray(_HEADER.size) if self._compressed else self._buffer.host.view(np.uint8)
        request = self._core.comm.Irecv([self._received, MPI.BYTE], self._source, self._tag)
        return [_engine.Request(request, self._status)]

    def go_on(self) -> list[Task]:
        if self._task is None:
            source, n = self._status.source, self._status.Get_count(MPI.BYTE)
            self.sources.append(source)
            if n != len(self._received):
                size = self._array.nbytes
                raise ValueError(f"a message of {n} bytes came from rank {source} for a tensor of {size}")
            if self._compressed:
                first, n, chunk = _HEADER.unpack(bytes(self._received))
                if n != (size := self._array.size):
                    raise ValueError(f"{n} elements came from rank {source} for a tensor of {size}")
                return [self._begin_chunks(source, chunk, first, False)]
        self._buffer.finish(self._order)
        self.events = self._order.record()
        if self._task is not None:
            self._core.kernels.when_done(self._task, "Recv", _nothing)
        return []


def _nothing() -> None:
    """A message that was received is not counted."""


def monitored_barrier(core: Core, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """Wait for all ranks; RuntimeError on those that wait for missing ones.

    Rank 0 names the first rank that is missing, or all of them with ``wait_all_ranks``.
    """
    core.check_usable()
    core.flush()
    seconds = timeout.total_seconds() if timeout is not None else core.timeout
    until, comm, tag = time.monotonic() + seconds, core.group.private_comm, core.group.pairwise_tags.first
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

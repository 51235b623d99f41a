"""Messages between two ranks.

Small ones, and those that no policy compresses, are MPI's. Of another one a short envelope goes the same way
under the same tag, so that MPI matches and orders it; it says under which tags of the private communicator
the chunks come. Both ends decide alike: they know type and size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import begin_message, n_chunks
from compcoll.engine.group import largest_tag
from compcoll.torch.core import Core
from compcoll.torch.tensor_buffers import place
from compcoll.torch.tensors import element_of
from compcoll.torch.watchdog import may_watch, watch_idle
from compcoll.torch.work import Steps, Work

__all__ = ["recv", "send"]

#: Bytes that every MPI sends at once, whether or not their receiver makes progress: such a message is left to
#: whoever waits for it, which takes no thread.
_EAGER_NBYTES = 2048
#: First tag, elements, elements of a chunk.
_ENVELOPE = struct.Struct("<QQQ")


@dataclass
class _Way:
    comm: MPI.Intracomm
    handle: int


def send(core: Core, tensor: torch.Tensor, peer: int, tag: int) -> Work:
    """Start to send a tensor."""
    _check(core, peer, tag)
    work = core.launch(
        f"send to rank {peer}, tag {tag}", _send(core, tensor, peer, tag), [tensor], ordered=False,
        at_once=_is_eager(tensor), peers=[peer],
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
        _recv(core, tensor, source, tag, found), [tensor], ordered=False, at_once=_is_eager(tensor),
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


def _decided(core: Core, array: Any, tensor: torch.Tensor) -> Any:
    return core.decide("Send", array.dtype, array.nbytes, element_of(tensor.dtype))


def _send(core: Core, tensor: torch.Tensor, peer: int, tag: int) -> Steps:
    values = place(tensor)
    array, order = values.array, core.tails.order(values)
    decision = _decided(core, array, tensor)
    if decision.codec is None or not array.size:
        yield [_engine.Request(core.comm.Isend([values.host.view(np.uint8), MPI.BYTE], peer, tag))]
        core.tally.plain("Send", array.nbytes, decision.reason)
        return []
    chunk = max(decision.chunk_nbytes // array.itemsize, 1)
    first = core.next_stream(n_chunks(array.size, chunk))
    envelope = bytearray(_ENVELOPE.pack(first, array.size, chunk))
    way = _Way(core.group.private_comm, core.group.private_handle)
    opening = core.comm.Isend([envelope, MPI.BYTE], peer, tag)
    task = begin_message(way, decision.codec, array, peer, chunk, first, sends=True)
    order.hold(task)
    yield [_engine.Request(opening), task]
    ends = order.ends()
    core.note(task, "Send", array.nbytes, decision)
    return ends


def _recv(core: Core, tensor: torch.Tensor, source: int, tag: int, found: list[int]) -> Steps:
    values = place(tensor, writes=True, reads=False)
    array, order = values.array, core.tails.order(values)
    decision = _decided(core, array, tensor)
    compressed = decision.codec is not None and array.size > 0
    room = bytearray(_ENVELOPE.size) if compressed else values.host.view(np.uint8)
    status = MPI.Status()
    request = _engine.Request(core.comm.Irecv([room, MPI.BYTE], source, tag), status)
    yield [request]
    found.append(status.source)
    n, expected = status.Get_count(MPI.BYTE), len(room) if compressed else array.nbytes
    if n != expected:
        raise ValueError(
            f"a message of {n} bytes came from rank {status.source} for a tensor of {array.nbytes}"
        )
    if compressed:
        first, size, chunk = _ENVELOPE.unpack(bytes(room))
        if size != array.size:
            raise ValueError(f"{size} elements came from rank {status.source} for a tensor of {array.size}")
        way = _Way(core.group.private_comm, core.group.private_handle)
        assert decision.codec is not None
        task = begin_message(way, decision.codec, array, status.source, chunk, first, sends=False)
        order.hold(task)
        yield [task]
    values.finish(order)
    ends = order.ends()
    if compressed:
        core.tails.at_end(task, "Recv", lambda: None)
    return ends

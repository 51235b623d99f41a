"""Compressed messages on their way out."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine
from compcoll.engine._engine import StridedBlock
from compcoll.engine.call import begin_message, n_chunks
from compcoll.engine.shaping import inner_of_message
from compcoll.mpi.buffers import Message
from compcoll.mpi.p2p.channel import Channel
from compcoll.mpi.p2p.protocol import LARGEST_CHUNK, MessageStats, pack_header, split_first
from compcoll.policy.decision import Decision
from compcoll.schedule import planes
from compcoll.schedule.trace import chunk_step

__all__ = ["Outgoing"]

#: Seconds for which a message waits for that of its receiver, for each of its bytes.
_HOLD = 0.5e-9


class Outgoing:
    """A compressed message on its way out: its notice, its first message, and a task for the other chunks.

    Parameters
    ----------
    channel : Channel
    decision : Decision
    message : Message
    dest, tag : int
    stats : MessageStats
    synchronous : bool
        Whether it ends after its receive has begun.
    answered : bool
        Whether a message of the receiver is expected, so that both are announced together.

    Attributes
    ----------
    decision : Decision
    tasks : list
        To be waited for before `finish`.
    """

    def __init__(
        self,
        channel: Channel,
        decision: Decision,
        message: Message,
        dest: int,
        tag: int,
        stats: MessageStats,
        synchronous: bool = False,
        answered: bool = False,
    ):
        block, there = message.source(), channel.rank_of(dest)
        self._stats, self._channel, self.decision = stats, channel, decision
        self._error: Exception | None = None
        serial = channel.notices.next_serial(there)
        spec = decision.codec
        assert spec is not None
        step = chunk_step(len(block), max(decision.chunk_nbytes // block.itemsize, 1))
        first, rest = split_first(block, step)
        chunks = n_chunks(len(rest), step) if len(rest) else 0
        inner = _inner(decision, message, block, step, 1 + chunks)
        if inner:
            first, rest = block[: planes.ends(len(block), 1 + chunks, prod(inner))[1]], block
        stream = channel.reserve(chunks)
        frame = self._encoded(lambda: spec.encode(_values(first, inner)))
        data = pack_header(block, step, stream, serial, frame)
        stats.add_first(first.nbytes, data.size, frame)
        channel.announce(dest, tag, block.nbytes, data.size, serial)
        send = channel.user.Issend if synchronous else channel.user.Isend
        self.tasks: list[Any] = [_engine.Request(send([data, MPI.BYTE], dest, tag), None, data.size)]
        if chunks:
            count = 1 + chunks if inner else 0
            others = begin_message(
                channel.handle, spec, rest, there, step, stream, sends=True, inner=inner, count=count
            )
            if self._error is not None:
                others.fail(self._error)
            if answered:
                channel.hold(there, others, _HOLD * rest.nbytes)
            else:
                others.announce()
            self.tasks.append(others)

    def _encoded(self, encode: Callable[[], Any]) -> np.ndarray:
        """A frame; an empty one tells the receiver of an error here."""
        start = perf_counter()
        try:
            return np.asarray(encode()).reshape(-1)
        except Exception as error:
            self._error = error
            return np.empty(0, np.uint8)
        finally:
            self._stats.stages["encode"] += perf_counter() - start

    def finish(self) -> None:
        """Count what the tasks did, which are done, and raise what went wrong."""
        for task in self.tasks[1:]:
            self._channel.drop_held(task)
            self._stats.add(task.outcome, task.outcome.encoded_bound)
        if self._error is not None:
            raise self._error


def _values(first: Any, inner: tuple[int, ...]) -> Any:
    values = first.copy() if isinstance(first, StridedBlock) else first
    return values.reshape(-1, *inner) if inner else values


def _inner(decision: Decision, message: Message, block: Any, step: int, chunks: int) -> tuple[int, ...]:
    """The last dimensions of the block's shape, if it is coded in one (`compcoll.schedule.planes`)."""
    if isinstance(block, DeviceArray):
        return ()
    most_first, shape = LARGEST_CHUNK // block.itemsize, message.shape()
    return inner_of_message(decision, block.dtype, shape, len(block), step, chunks, most_first)

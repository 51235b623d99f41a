"""Point-to-point messages as they come in, and those that a probe had to open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from os import sched_yield
from threading import Lock
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.call import wait
from compcoll.mpi import check
from compcoll.mpi.buffers import Message
from compcoll.mpi.channel import Channel
from compcoll.mpi.envelopes import Taken, may_be_envelope
from compcoll.mpi.messages import Delivery, Tally

__all__ = ["Inbox"]


@cache
def _mirror() -> MPI.Intracomm:
    """A communicator of this rank alone."""
    return MPI.Intracomm(_SELF).Dup()


_SELF = MPI.COMM_SELF
_REPLAY = Lock()
_replayed: list[MPI.Request] = []


class Inbox:
    """The receiving side of a communicator, with the messages that a probe had to open.

    Attributes
    ----------
    user : MPI.Intracomm
        The user's communicator as mpi4py knows it.
    channel : Channel or None
        None where no message is ever compressed.
    waiting : list of Taken
        Opened messages, in the order of their arrival; the next receives look here first.
    """

    def __init__(self, user: MPI.Intracomm, channel: Channel | None):
        self.user: MPI.Intracomm = user
        self.channel: Any = channel
        self.waiting: list[Taken] = []

    def find(self, source: int, tag: int) -> Taken | None:
        """The first opened message that a receive would match."""
        for taken in self.waiting:
            if source in (MPI.ANY_SOURCE, taken.source) and tag in (MPI.ANY_TAG, taken.tag):
                return taken
        return None

    def take(self, source: int, tag: int) -> Taken | None:
        """`find`, and no longer keep it."""
        taken = self.find(source, tag)
        if taken is not None:
            self.waiting.remove(taken)
        return taken

    @staticmethod
    def replay(data: np.ndarray, tag: int, receive: Callable[[MPI.Intracomm], Any]) -> Any:
        """Send bytes to this rank itself; what ``receive`` gives of the communicator on which they arrive."""
        with _REPLAY:  # another thread's message may have the same tag
            _replayed[:] = [request for request in _replayed if not request.Test()]
            _replayed.append(_mirror().Isend([data, MPI.BYTE], 0, tag))
            return receive(_mirror())

    def open(self, matched: MPI.Message, status: MPI.Status) -> Taken:
        """Read what a matched probe has found; its chunks are not lost."""
        return self.note(Taken.of(matched, status))

    def note(self, taken: Taken) -> Taken:
        """Say that the chunks of an envelope will be received."""
        if taken.is_envelope:
            self.channel.lost.begin(self.channel.rank_of(taken.source), taken.stream)
        return taken

    def keep(self, source: int, tag: int, status: MPI.Status) -> Taken | None:
        """Open a message that a probe has found, and keep it for a receive; None where it is gone."""
        with self.channel.lost.lock:
            matched = self.user.Improbe(source, tag, status)
            if matched is None:
                return None
            taken = self.open(matched, status)
        self.waiting.append(taken)
        return taken

    def next(
        self, source: int, tag: int, status: MPI.Status,
        opens: Callable[[MPI.Status], bool] = may_be_envelope, others: Sequence[Any] = (),
    ) -> Taken | MPI.Message:  # fmt: skip
        """Wait for the next message, which is opened if it may be an envelope; ``others`` are moved on."""
        known: Any = self.channel
        while known.lost.looking:
            with known.lost.lock:
                matched = self.user.Improbe(source, tag, status)
                if matched is not None:
                    return self.open(matched, status) if opens(status) else matched
            interrupts.check()
            if others:
                wait(*others, limit=0.0)
            sched_yield()
        known.lost.posted.append(posted := (known.rank_of(source), tag))
        try:
            probe = _engine.Probe(self.user, source, tag, status)
            wait(probe, others=others)
            return self.open(probe.message, status) if opens(status) else probe.message
        finally:
            known.lost.posted.remove(posted)

    def receive(
        self, message: Message, source: int, tag: int, status: MPI.Status | None, tally: Tally,
        others: Sequence[Any] = (),
    ) -> bool:  # fmt: skip
        """Receive the next message; whether it came compressed."""
        taken: Any = self.take(source, tag)
        if taken is None:
            arrived = MPI.Status()

            def opens(status: MPI.Status) -> bool:
                odd = status.Get_count(MPI.BYTE) % 2 == 1
                return odd and (message.dtype.itemsize > 1 or may_be_envelope(status))

            taken = self.next(source, tag, arrived, opens, others)
        if not isinstance(taken, Taken):
            _receive_plain(taken, message, status, others)
            check.check_whole(arrived, message)
            return False
        delivery = Delivery(self.channel, taken, message, status, tally)
        delivery.wait(others)
        return delivery.compressed


def _receive_plain(
    matched: MPI.Message, message: Message, status: MPI.Status | None, others: Sequence[Any]
) -> None:
    """Receive an uncompressed message, that of a GPU through the host."""
    if message.device is None:
        wait(_engine.Request(matched.Irecv(message.whole()), status), others=others)
        message.finish()
        return
    into: Any = message.target(0).view(np.uint8)
    scratch = np.empty(into.size, np.uint8)
    status = MPI.Status() if status is None else status
    wait(_engine.Request(matched.Irecv([scratch, MPI.BYTE]), status), others=others)
    nbytes = status.Get_count(MPI.BYTE)
    if nbytes > 0:
        with into.device.queue() as queue:
            queue.to_device(into.address, scratch[:nbytes])
            queue.wait()

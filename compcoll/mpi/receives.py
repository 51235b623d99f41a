"""A nonblocking receive of a message that may come compressed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.engine import _engine
from compcoll.engine.coding import coding
from compcoll.mpi import check
from compcoll.mpi.buffers import Message
from compcoll.mpi.envelopes import LARGEST_CHUNK, ROOM, Taken
from compcoll.mpi.inbox import Inbox
from compcoll.mpi.messages import Delivery, Tally
from compcoll.mpi.requests import Request, Settled

__all__ = ["Receive", "copy_status"]

_RAW = codec("raw")


class Receive:
    """A nonblocking receive: MPI's own into scratch memory, then a generalised request.

    Parameters
    ----------
    inbox : Inbox
    message : Message
    source, tag : int
    sent : (Task, callable), optional
        What has to end as well, and what is called, as of a `Pending`, when the request is waited for.
    received : callable, optional
        ``received(request, tally)`` is called then, where the message came compressed.
    tally : Tally, optional
        Where to count what is done.

    Attributes
    ----------
    request : MPI.Request
    """

    def __init__(
        self, inbox: Inbox, message: Message, source: int, tag: int,
        sent: tuple[_engine.Task, Settled] | None = None,
        received: Callable[[MPI.Request, Tally], None] | None = None, tally: Tally | None = None,
    ):  # fmt: skip
        self.inbox, self.message = inbox, message
        self._sent, self._received, self._is_told = sent, received, False
        self._tally = Tally() if tally is None else tally
        self.channel: Any = inbox.channel
        self.status = MPI.Status()
        self.error: Exception | None = None
        self._missing, self._lock = 1 if sent is None else 2, Lock()
        # What the caller has started comes first; another thread will not know its streams.
        device: Any = message.device
        self.marks = {} if device is None else {device: device.mark()}
        self.scratch = np.empty(max(message.nbytes, LARGEST_CHUNK) + ROOM, np.uint8)
        self.arriving = MPI.REQUEST_NULL
        self.posted: tuple[int, int] | None = None
        self.landing: Any = None
        self.request = Request(self._query, self._cancel)
        self.channel.goes_on(self)  # which keeps the scratch memory, before MPI writes to it
        self.taken = inbox.take(source, tag)
        if self.taken is None:
            with self.channel.lost.lock:
                self.arriving = inbox.user.Irecv([self.scratch, MPI.BYTE], source, tag)
                self.posted = self.channel.rank_of(source), tag
                self.channel.lost.posted.append(self.posted)
        if sent is not None:
            _engine.leave(sent[0], lambda end: self._done(), self.request.state)
        self.landing = self._land(sent is None)
        if self.taken is None:
            _engine.leave(self.landing, self._arrived, self.request.state)
        else:
            self._arrived(_engine.DONE)

    def _land(self, alone: bool) -> _engine.Request:
        """The receive; where nothing else is under way and the buffer is plain, one that needs no Python."""
        target = self.message.target(0) if self.message.device is None and alone and not check.ON else None
        if self.taken is not None or not isinstance(target, np.ndarray):
            return _engine.Request(self.arriving, self.status, self.message.nbytes)
        values = coding(_RAW, self.message.dtype)
        return _engine.Landing(self.arriving, self.status, self.scratch, target, values)

    @property
    def ended(self) -> bool:
        """Whether nothing is under way any more."""
        return not self._missing or (self._is_delivered and self.landing.ended)

    @property
    def _is_delivered(self) -> bool:
        """Whether the engine has brought the message where it belongs, without Python."""
        return isinstance(self.landing, _engine.Landing) and self.landing.delivered

    def _note_delivered(self) -> None:
        """Fill the status of a message that the engine has delivered; only for the thread that waits."""
        if not self._missing or not self._is_delivered:
            return
        landing, self._missing = self.landing, 0
        _engine.settled(landing)
        self.channel.lost.posted.remove(self.posted)
        if landing.compressed:
            self.taken = self._opened()
            self.taken.fill(self.status)
            self._tally.stages["decode"] += landing.seconds
            self._tally.note_bound(self.taken.info.bound if self.taken.info is not None else None)

    def _opened(self) -> Taken:
        nbytes = self.status.Get_count(MPI.BYTE)
        return Taken(self.scratch[:nbytes], self.status.source, self.status.tag)

    def _done(self) -> None:
        with self._lock:
            self._missing -= 1
            missing = self._missing
        if not missing:
            self.request.complete()

    def _fail(self, error: Exception) -> None:
        self.error = self.error or error
        self._done()

    def _arrived(self, end: int) -> None:
        """The message, or its envelope, is there."""
        try:
            with self.channel.lost.lock:
                if self.posted is not None:
                    self.channel.lost.posted.remove(self.posted)
                self.landing.check()
                if self.status.Is_cancelled():
                    self._done()
                    return
                if self.taken is None:
                    self.taken = self._opened()
                    self.inbox.note(self.taken)
            if self.message.device is None:
                self._deliver()
            else:  # which takes its time, and moves on by itself
                Thread(target=self._deliver, daemon=True).start()
        except Exception as error:
            self._fail(error)

    def _deliver(self) -> None:
        try:
            assert self.taken is not None
            delivery = Delivery(self.channel, self.taken, self.message, self.status, self._tally, self.marks)
            if self.message.device is not None:
                delivery.wait()
                self._done()
            elif delivery.tasks:
                _engine.leave(delivery.tasks[0], self._finish_with(delivery), self.request.state)
            else:
                self._finish_with(delivery)(_engine.DONE)
        except Exception as error:
            self._fail(error)

    def _finish_with(self, delivery: Delivery) -> Callable[[int], None]:
        def finish(end: int) -> None:
            try:
                delivery.finish()
            except Exception as error:
                self._fail(error)
            else:
                self._done()

        return finish

    def _query(self, status: MPI.Status) -> None:
        self._note_delivered()
        if not self._is_told:
            self._is_told = True
            self._tell()
        if self.error is not None:
            raise self.error
        copy_status(self.status, status)

    def _tell(self) -> None:
        """The request was waited for, or found to be complete."""
        try:
            if self._sent is not None:
                task, settled = self._sent
                settled(self.request, self.error)
                task.check()
            if self._received is not None and self.taken is not None and self.taken.is_envelope:
                self._tally.end()
                self._received(self.request, self._tally)
        except Exception as error:
            self.error = self.error or error

    def _cancel(self, completed: bool) -> None:
        if not completed and self.arriving:
            if isinstance(self.landing, _engine.Landing):
                self.landing.stay()
            self.arriving.Cancel()


def copy_status(of: MPI.Status, into: MPI.Status) -> None:
    """Say in the status of a generalised request what another one says of its message."""
    into.source, into.tag = of.source, of.tag
    into.Set_elements(MPI.BYTE, of.Get_elements(MPI.BYTE))
    into.Set_cancelled(of.Is_cancelled())

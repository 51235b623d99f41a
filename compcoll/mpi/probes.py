"""Probes, and receives of messages that a probe had to open."""

from __future__ import annotations

from collections.abc import Callable
from os import sched_yield
from typing import Any, Literal

from mpi4py import MPI

from compcoll.engine import interrupts
from compcoll.mpi.base import Wrapper
from compcoll.mpi.envelopes import Taken, may_be_envelope
from compcoll.mpi.messages import Delivery, Tally

__all__ = ["Probes"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG


class Probes(Wrapper):
    """The methods of a communicator that look at a message before it is received.

    An opened message that was no envelope can be anything: a pickled object, a type of several basic
    ones. It goes through MPI once more, from this rank to itself, to whoever asks for it.
    """

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        if not self._understands():
            return super().Probe(source, tag, status)
        while not self.Iprobe(source, tag, status):
            sched_yield()
        return True

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None) -> bool:
        if not self._understands():
            return super().Iprobe(source, tag, status)
        inbox, status = self._context.inbox, MPI.Status() if status is None else status
        taken = inbox.find(source, tag)
        if taken is None:
            if not super().Iprobe(source, tag, status):
                return False
            if not may_be_envelope(status):
                return True
            with interrupts.deferred():
                taken = inbox.keep(status.source, status.tag, status)
            if taken is None:  # another thread was faster
                return False
        taken.fill(status)
        return True

    # Objects are never compressed, so MPI's own probes do, but for what is open already.

    def probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        return True if self._found_open(source, tag, status) else super().probe(source, tag, status)

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None) -> bool:
        return self._found_open(source, tag, status) or super().iprobe(source, tag, status)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None):
        if not self._understands():
            return super().Mprobe(source, tag, status)
        while (message := self.Improbe(source, tag, status)) is None:
            sched_yield()
        return message

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None):
        if not self._understands():
            return super().Improbe(source, tag, status)
        status = MPI.Status() if status is None else status
        if not self.Iprobe(source, tag, status):
            return None
        taken = self._context.inbox.take(source, tag)
        if taken is None:
            return super().Improbe(status.source, status.tag, status)
        return self._replayed(taken, status, lambda mirror: mirror.Mprobe(0, taken.tag))

    def mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None):
        taken = self._opened(source, tag)
        if taken is None:
            return super().mprobe(source, tag, status)
        return self._replayed(taken, status, lambda mirror: mirror.mprobe(0, taken.tag))

    def improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None):
        if self._found_open(source, tag, None):
            return self.mprobe(source, tag, status)
        return super().improbe(source, tag, status)

    def recv(self, buf=None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None):
        taken = self._opened(source, tag)
        if taken is None:
            return super().recv(buf, source, tag, status)
        return self._replayed(taken, status, lambda mirror: mirror.recv(buf, 0, taken.tag))

    def irecv(self, buf=None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Request:
        taken = self._opened(source, tag)
        if taken is None:
            return super().irecv(buf, source, tag)
        return self._replayed(taken, None, lambda mirror: mirror.irecv(buf, 0, taken.tag))

    def sendrecv(
        self, sendobj, dest: int, sendtag: int = 0, recvbuf=None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: MPI.Status | None = None,
    ):  # fmt: skip
        taken = self._opened(source, recvtag)
        if taken is None:
            return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        sent = super().isend(sendobj, dest, sendtag)
        received = self._replayed(taken, status, lambda mirror: mirror.recv(recvbuf, 0, taken.tag))
        sent.wait()
        return received

    def _found_open(self, source: int, tag: int, status: MPI.Status | None) -> bool:
        """Whether an opened message matches, which then fills the status."""
        taken = self._context.inbox.find(source, tag) if self._context is not None else None
        if taken is not None:
            taken.fill(status)
        return taken is not None

    def _opened(self, source: int, tag: int) -> Taken | None:
        """The opened message that a receive matches, which is no longer kept."""
        return self._context.inbox.take(source, tag) if self._context is not None else None

    def _replayed(self, taken: Taken, status: MPI.Status | None, receive: Callable[[MPI.Intracomm], Any]):
        """What ``receive`` gives of a communicator of this rank alone, where the message arrives as it is."""
        taken.fill(status)
        data, context = taken.data, self._context
        if taken.is_envelope:
            whole = taken.scratch()
            Delivery(context.channel, taken, whole, None, Tally()).wait()
            data = whole.source(0)
        return context.inbox.replay(data, taken.tag, receive)

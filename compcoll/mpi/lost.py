"""Compressed messages whose beginning went to a receive that cannot read it.

A receive whose buffer is too small for any compressed message is MPI's own, and MPI truncates what comes: an
error where it was received, as it should be. But nobody there knows that more chunks were to come, and the
sender would wait for ever. So a sender that has waited for a while asks, and the receiver's progress thread,
which looks now and then as long as there may be such receives, takes the chunks of a message that is lost.
"""

from __future__ import annotations

import atexit
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, RLock, Thread

import numpy as np
from mpi4py import MPI

__all__ = ["STUCK", "VISITS", "Lost", "question"]

#: Seconds after which a sender asks what became of its message.
STUCK = 1.0
#: Seconds between two looks.
PAUSE = 50e-3
#: Looks that have to find a message lost before it is: one that has just come is not known at once.
SURE = 3
#: Tag of the first of the chunks, their number, and the message's own tag.
_QUESTION = struct.Struct("<IQi")


def question(stream: int, chunks: int, tag: int) -> np.ndarray:
    """What a sender asks: whether these chunks will be received, whose message has this tag."""
    return np.frombuffer(_QUESTION.pack(stream, chunks, tag), np.uint8)


@dataclass
class _Question:
    source: int
    stream: int
    chunks: int
    tag: int
    found_lost: int = 0


class Lost:
    """The receiving side of all communicators that share a private one.

    Parameters
    ----------
    comm : MPI.Intracomm
        The private communicator.
    control : int
        Tag of the questions.
    waiting : callable
        ``waiting(source, tag)``: whether a message of a rank of ``comm`` waits to be received on any of the
        users' communicators.

    Attributes
    ----------
    lock : RLock
        Held from where MPI hands over the beginning of a message until `begin`.
    posted : list of (int, int)
        Source and tag of receives that may have got a beginning and have not looked at it yet.
    looking : bool
        Whether there may be messages that are lost.
    """

    def __init__(self, comm: MPI.Intracomm, control: int, waiting: Callable[[int, int], bool]):
        self.comm, self.control, self._waiting = comm, control, waiting
        self.lock = RLock()
        self.posted: list[tuple[int, int]] = []
        self._known: set[tuple[int, int]] = set()
        self._questions: list[_Question] = []
        self._sinks: list[_Sink] = []
        self.looking = False

    def expect(self) -> None:
        """From now on a receive of MPI's may get what it cannot read."""
        if not self.looking:
            self.looking = True
            VISITS.begin(self._look)

    def close(self) -> None:
        """The private communicator is about to be freed."""
        if self.looking:
            VISITS.end(self._look)

    def begin(self, source: int, stream: int) -> None:
        """Somebody receives these chunks."""
        self._known.add((source, stream))

    def end(self, source: int, stream: int) -> None:
        """They have been received, and whatever was asked about them is answered."""
        with self.lock:
            self._known.discard((source, stream))
            self._collect()
            self._questions = [q for q in self._questions if (q.source, q.stream) != (source, stream)]

    def _look(self) -> None:
        """Read what senders ask, and have the chunks of messages that are lost received."""
        with self.lock, suppress(MPI.Exception):  # which is for whoever waits for the message
            self._collect()
            for asked in list(self._questions):
                asked.found_lost = asked.found_lost + 1 if self._is_lost(asked) else 0
                if asked.found_lost == SURE:
                    self._questions.remove(asked)
                    self._sinks.append(_Sink(self.comm, asked))
            self._sinks = [sink for sink in self._sinks if not sink.advance()]

    def _is_lost(self, asked: _Question) -> bool:
        return (
            (asked.source, asked.stream) not in self._known
            and not any(
                source in (MPI.ANY_SOURCE, asked.source) and tag in (MPI.ANY_TAG, asked.tag)
                for source, tag in self.posted
            )
            and self.comm.Iprobe(asked.source, asked.stream)
            and not self._waiting(asked.source, asked.tag)
        )

    def _collect(self) -> None:
        status = MPI.Status()
        while (matched := self.comm.Improbe(MPI.ANY_SOURCE, self.control, status)) is not None:
            data = np.empty(_QUESTION.size, np.uint8)
            matched.Recv([data, MPI.BYTE])
            self._questions.append(_Question(status.source, *_QUESTION.unpack(data.data)))


class _Sink:
    """Receives the chunks of a lost message."""

    def __init__(self, comm: MPI.Intracomm, asked: _Question):
        self.comm, self.source = comm, asked.source
        self.tags = list(range(asked.stream, asked.stream + asked.chunks))

    def advance(self) -> bool:
        """Receive what is there; whether that was the last."""
        status = MPI.Status()
        while self.tags and (matched := self.comm.Improbe(self.source, self.tags[0], status)) is not None:
            matched.Recv([np.empty(status.Get_count(MPI.BYTE), np.uint8), MPI.BYTE])
            del self.tags[0]
        return not self.tags


class _Visits:
    """A thread that calls functions every `PAUSE` seconds, while there are any."""

    def __init__(self) -> None:
        self._functions: list[Callable[[], None]] = []
        self._changed = Condition()
        self._thread: Thread | None = None
        self._stopped = False

    def begin(self, function: Callable[[], None]) -> None:
        """Call a function from now on."""
        with self._changed:
            self._functions.append(function)
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="compcoll-lost", daemon=True)
                self._thread.start()
                atexit.register(self._stop)
            self._changed.notify()

    def begin_until(self, function: Callable[[], bool]) -> None:
        """Call a function until it says that there is nothing left to do."""

        def visit() -> None:
            if function():
                self.end(visit)

        self.begin(visit)

    def end(self, function: Callable[[], None]) -> None:
        """No longer call it; it does not run when this returns."""
        with self._changed:
            self._functions.remove(function)

    def _loop(self) -> None:
        with self._changed:
            while not self._stopped:
                for function in list(self._functions):
                    function()
                self._changed.wait(PAUSE if self._functions else None)

    def _stop(self) -> None:
        """End before MPI does: no call may come after MPI_Finalize."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


VISITS = _Visits()

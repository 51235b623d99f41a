"""Nonblocking receives of objects.

The large buffers of an object come behind its pickle, and its sender may wait until they are received, while
the receiver does other things before it waits. So the request of `irecv` stands for both.
"""

from __future__ import annotations

import gc
import io
import pickle
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.call import Task
from compcoll.mpi.p2p.channel import Channel
from compcoll.mpi.p2p.receive import copy_status
from compcoll.mpi.pickle5 import COMPLETE, Delivered, receive_buffers
from compcoll.mpi.requests import Request

__all__ = ["ObjectMessage", "receive_object"]

#: The function that unpickles a message with out-of-band buffers, and the bytes within which its pickle
#: names it.
_OUT_OF_BAND, _HEAD = receive_buffers, 64


class _Unpickler(pickle.Unpickler):
    """Unpickles a message with out-of-band buffers, and nothing else, as the buffers still to receive."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != (_OUT_OF_BAND.__module__, _OUT_OF_BAND.__name__):
            raise pickle.UnpicklingError("not a pickle with out-of-band buffers")
        return Delivered


def _find(data: memoryview) -> Delivered | None:
    """The out-of-band buffers that a pickle names; None of any other message."""
    if _OUT_OF_BAND.__module__.encode() not in bytes(data[:_HEAD]):
        return None
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except Exception:  # which unpickling raises again
        return None
    return found if type(found) is Delivered else None


def _memory_of(request: MPI.Request) -> memoryview | None:
    """Where a request of mpi4py's `irecv` receives a pickle; None where that cannot be told."""
    near: list[Any] = gc.get_referents(request)
    found: list[Any] = [one for one in near + gc.get_referents(*near) if type(one) is MPI.buffer]
    return memoryview(found[0]) if found else None


def receive_object(channel: Channel, plain: MPI.Request) -> MPI.Request:
    """The request of mpi4py's `irecv`, followed by receives of its out-of-band buffers."""
    data = _memory_of(plain)
    return plain if data is None else _ObjectRecv(channel, plain, data).request


class _ObjectRecv:
    """A nonblocking receive of an object.

    Parameters
    ----------
    channel : Channel
    plain : MPI.Request
    data : memoryview
        Where the pickle is received.

    Attributes
    ----------
    request : MPI.Request
    """

    def __init__(self, channel: Channel, plain: MPI.Request, data: memoryview):
        self._channel, self._data = channel, data
        self._found: tuple[Delivered, Task] | None = None
        self.request = Request(self._query, self._cancel, plain)
        channel.join_family()  # the communicator may be freed before the pickle is there
        self._arrival = _engine.Request(plain, nbytes=data.nbytes)
        _engine.leave(self._arrival, self._arrived, self.request.state)

    def _arrived(self, end: int) -> None:
        """The pickle is there, or an error."""
        status, task = self._arrival.status, None
        if end == _engine.DONE and not status.Is_cancelled():
            delivered = _find(self._data[: status.Get_count(MPI.BYTE)])
            if delivered is not None:
                task = _engine.TaskGroup([begin() for begin in delivered.begins])
                self._found = delivered, task
        if task is None:
            self.request.complete()
        else:
            self._channel.track(task)
            _engine.leave(task, None, self.request.state)
        self._channel.leave_family()

    def _query(self, status: MPI.Status) -> None:
        if self._found is not None:
            delivered, task = self._found
            _engine.settled(task)
            COMPLETE[delivered.family.key, delivered.source, delivered.parts[0].tag] = self._found
        self._arrival.check()
        copy_status(self._arrival.status, status)

    def _cancel(self, completed: bool) -> None:
        if not completed and self._arrival.request:
            self._arrival.request.Cancel()


class ObjectMessage(MPI.Message):
    """A matched message that is an object."""

    _channel: Channel

    def __new__(cls, channel: Channel, message: MPI.Message) -> ObjectMessage:
        self = super().__new__(cls, message)
        self._channel = channel
        return self

    def irecv(self) -> MPI.Request:
        """Begin to receive it."""
        with interrupts.deferred():
            return receive_object(self._channel, super().irecv())

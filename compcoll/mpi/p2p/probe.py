"""Probes: they tell the size of the message as it was before it was compressed, and remove nothing."""

from __future__ import annotations

from os import sched_yield
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from mpi4py import MPI

from compcoll.engine import interrupts
from compcoll.mpi.buffers import known_to_mpi, parse, unknown_type
from compcoll.mpi.p2p.channel import Channel
from compcoll.mpi.p2p.protocol import MessageStats, ReceivedMessage, looks_compressed
from compcoll.mpi.p2p.receive import Receive, unpack_into
from compcoll.mpi.requests import Request
from compcoll.mpi.state import State

if TYPE_CHECKING:
    from compcoll.comm import Comm

__all__ = ["Improbe", "Iprobe", "Mprobe", "Probe", "understands"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
#: Seconds that a notice may arrive later than the message that it was sent before.
_LATE = 10e-3


def understands(state: State, alone: bool = False) -> bool:
    """Whether messages of this communicator may be compressed at all; ``alone``: or those of one rank."""
    if state.context is None or state.context.channel is None or (state.size == 1 and not alone):
        return False
    state.check_usable()
    return True


def Probe(
    self: Comm, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
) -> Literal[True]:
    state = self._state
    if not understands(state):
        state.to_mpi("Probe", source, tag, status)
        return True
    while not self.Iprobe(source, tag, status):
        sched_yield()
    return True


def Iprobe(
    self: Comm, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
) -> bool:
    state = self._state
    if not understands(state):
        return bool(state.to_mpi("Iprobe", source, tag, status))
    status = MPI.Status() if status is None else status
    found = state.to_mpi("Iprobe", source, tag, status)
    return bool(found) and (not looks_compressed(status) or _tell_size(state, status))


def Mprobe(self: Comm, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None) -> Any:
    state = self._state
    if not understands(state):
        return PlainMessage(state.to_mpi("Mprobe", source, tag, status))
    while (message := self.Improbe(source, tag, status)) is None:
        sched_yield()
    return message


def Improbe(
    self: Comm, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
) -> Any:
    state = self._state
    if not understands(state):
        found = state.to_mpi("Improbe", source, tag, status)
        return found if found is None else PlainMessage(found)
    status = MPI.Status() if status is None else status
    with interrupts.deferred():
        message = state.to_mpi("Improbe", source, tag, status)
        if message is None:
            return None
        if not looks_compressed(status):
            return PlainMessage(message)
        channel = state.context.channel
        received = channel.receive(message, status)
    received.fill(status)
    return MatchedMessage(channel, received)


def _tell_size(state: State, status: MPI.Status) -> bool:
    """Say in a status how large a message is that may be compressed; False where that is not known yet.

    Of several messages that it may be, it is the earliest, but for those that are arriving at receives
    posted before: these would have matched this message, had they not matched another.
    """
    channel, length = state.context.channel, status.Get_count(MPI.BYTE)
    message = status.source, status.tag, length
    arriving = channel.is_arriving(status.source, status.tag)  # asked first: it may end in between
    sizes = channel.sizes(*message)
    if not sizes:
        return _is_plain(state, message)
    if arriving and len(set(sizes)) > 1:
        return False
    status.Set_elements(MPI.BYTE, sizes[0])
    return True


def _is_plain(state: State, message: tuple[int, int, int]) -> bool:
    """Whether a message has had no notice for so long that it is not compressed."""
    channel: Channel = state.context.channel
    now = monotonic()
    recent = {known: since for known, since in channel.unannounced.items() if now - since < 1.0}
    channel.unannounced = recent
    return now - recent.setdefault(message, now) > _LATE


class PlainMessage(MPI.Message):
    """A message that a matched probe has found and MPI receives, into types that mpi4py lacks as well."""

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """Receive the message."""
        super().Recv(_known(buf), status)

    def Irecv(self, buf: Any) -> MPI.Request:
        """Begin to receive the message."""
        return super().Irecv(_known(buf))


def _known(buf: Any) -> Any:
    return buf if unknown_type(buf) is None else known_to_mpi(buf)


class MatchedMessage(MPI.Message):
    """A message that a matched probe had to receive.

    Parameters
    ----------
    channel : Channel
    received : ReceivedMessage
    """

    _channel: Channel
    _received: ReceivedMessage | None

    def __new__(cls, channel: Channel, received: ReceivedMessage) -> MatchedMessage:
        self = super().__new__(cls)
        self._channel, self._received = channel, received
        return self

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """Receive the message."""
        with interrupts.deferred():
            unpack_into(self._channel, self._take(), buf, status, MessageStats())

    def Irecv(self, buf: Any) -> MPI.Request:
        """Begin to receive the message."""
        with interrupts.deferred():
            received, message = self._take(), parse(buf, device=True, truncate=True)
            if message is not None:
                return Receive(
                    self._channel, message, received.source, received.tag, received=received
                ).request
            unpack_into(self._channel, received, buf, None, MessageStats())
            request = Request(received.fill)
            request.complete()
            return request

    def _take(self) -> ReceivedMessage:
        if self._received is None:
            raise MPI.Exception(MPI.ERR_REQUEST)
        received, self._received = self._received, None
        return received

    def __bool__(self) -> bool:
        return self._received is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MatchedMessage) or not isinstance(other, MPI.Message):
            return self is other
        return not self and not other

    def __ne__(self, other: object) -> bool:
        return not self == other

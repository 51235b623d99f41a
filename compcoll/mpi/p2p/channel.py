"""The private communicator of a family of communicators, with the chunks and notices of compressed messages.

Sender and receiver of a message cannot make a communicator when they need it, since the others are not
there. So a communicator that is wrapped makes one, and whatever is made from it sends its chunks there, too:
each message has tags of its own.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import count
from threading import RLock
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.group import largest_tag
from compcoll.mpi.p2p.protocol import ReceivedMessage

__all__ = ["Channel", "Notices"]

# A program may put another communicator into its place.
_SELF = MPI.COMM_SELF
#: The key of the user's communicator, bytes of the message uncompressed, length of its first message, serial
#: number, tag.
_NOTICE = struct.Struct("<QQQIi")
#: Notices of sent, and of received messages, that may wait to be completed.
_MOST_LATE = 32


class Notices:
    """Sizes of compressed messages on their way: what a sender announces before the first message.

    Parameters
    ----------
    comm : MPI.Intracomm
        A private communicator, on which notices have the largest tag.
    """

    def __init__(self, comm: MPI.Intracomm):
        self._comm, self._control = comm, largest_tag()
        self._lock = RLock()
        self._serials: dict[int, count[int]] = {}
        self._sent: list[tuple[MPI.Request, bytes]] = []
        # Lengths and uncompressed bytes of messages not received yet: by source, key and tag, then by serial.
        self._known: dict[tuple[int, int, int], dict[int, tuple[int, int]]] = {}
        # Messages received before their notices.
        self._late: set[tuple[int, int]] = set()

    def next_serial(self, dest: int) -> int:
        """The serial number of the next message to a rank."""
        with self._lock:
            return next(self._serials.setdefault(dest, count())) & 0xFFFFFFFF

    def send(self, dest: int, key: int, nbytes: int, length: int, serial: int, tag: int) -> None:
        """Announce a message."""
        notice = _NOTICE.pack(key, nbytes, length, serial, tag)
        request = self._comm.Isend([notice, MPI.BYTE], dest, self._control)
        with self._lock:
            self._sent.append((request, notice))
            if len(self._sent) > _MOST_LATE:
                self._sent = [sent for sent in self._sent if not sent[0].Test()]

    def drop(self, source: int, key: int, tag: int, serial: int) -> None:
        """Drop the notice of a message that was received."""
        with self._lock:
            known = self._known.get((source, key, tag))
            if known is None or known.pop(serial, None) is None:
                self._late.add((source, serial))
                if len(self._late) >= _MOST_LATE:
                    self._collect()
            elif not known:
                del self._known[source, key, tag]

    def sizes(self, source: int, key: int, tag: int, length: int) -> list[int]:
        """Uncompressed bytes of the messages that may be one which a probe found, in the order of sending."""
        with self._lock:
            self._collect()
            known = self._known.get((source, key, tag), {})
            return [nbytes for its_length, nbytes in known.values() if its_length == length]

    def settle(self) -> bool:
        """Whether all notices sent, and those of all messages received, have arrived."""
        with self._lock:
            self._collect()
            self._sent = [sent for sent in self._sent if not sent[0].Test()]
            return not self._late and not self._sent

    def _collect(self) -> None:
        status, notice = MPI.Status(), bytearray(_NOTICE.size)
        while (matched := self._comm.Improbe(MPI.ANY_SOURCE, self._control, status)) is not None:
            matched.Recv([notice, MPI.BYTE])
            key, nbytes, length, serial, tag = _NOTICE.unpack(notice)
            source = status.source
            if (source, serial) in self._late:
                self._late.remove((source, serial))
            else:
                self._known.setdefault((source, key, tag), {})[serial] = length, nbytes


class _Family:
    """The communicator of a family, freed with the last of its members; made by all its ranks together."""

    def __init__(self, comm: MPI.Intracomm):
        self.comm, self.handle = comm, _engine.handle(comm)
        self._members = 0
        self.notices = Notices(comm)
        self._sends: list[Any] = []
        self._receives: list[Any] = []
        self.held: list[tuple[int, Any]] = []
        self._lock, self._used = RLock(), 0

    def join(self) -> None:
        """Keep the communicator until a communicator, or a receive, has left."""
        with self._lock:
            self._members += 1

    def leave(self) -> None:
        """The opposite; with the last member, what is left is freed later."""
        with self._lock:
            self._members -= 1
            if not self._members and self is not _alone():
                _left.append(self)

    def reserve(self, n: int) -> int:
        """The first of ``n`` tags of no other message on its way from here; all are below `largest_tag`."""
        with self._lock:
            first = self._used if self._used + n <= largest_tag() else 0
            self._used = first + n
            return first

    def track(self, send: Any) -> None:
        """Keep the communicator until a send has ended."""
        with self._lock:
            self._sends = [other for other in self._sends if not other.ended]
            self._sends.append(send)

    def track_receive(self, receive: Any) -> None:
        """Keep a receive until it has ended; then drop the notice of its message."""
        with self._lock:
            self.sweep_receives()
            self._receives.append(receive)

    def sweep_receives(self) -> list[Any]:
        """Let go of the receives that have ended; those that have not."""
        with self._lock:
            ended, self._receives = self._receives, []
            for receive in ended:
                if receive.ended:
                    receive.drop_notice()
                else:
                    self._receives.append(receive)
            return self._receives

    def free(self) -> bool:
        """Free the communicator if nothing is under way on it any more; whether that was so."""
        under_way = self.sweep_receives() or not all(send.ended for send in self._sends)
        if self._members or under_way or not self.notices.settle():
            return False
        self.comm.Free()
        return True


#: Those whose communicators were freed with messages under way.
_left: list[_Family] = []


def _free_left() -> None:
    families, _left[:] = _left[:], []  # first: to free one may let go of another, and come here again
    _left.extend([family for family in families if not family.free()])


@cache
def _alone() -> _Family:
    """The family of all communicators of one rank."""
    return _Family(MPI.Intracomm(_SELF).Dup())


def _duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A plain duplicate of a communicator."""
    with _engine.plain_calls():
        return comm.Dup()


class Channel:
    """One communicator's way to the private one of its family.

    Parameters
    ----------
    user : MPI.Intracomm
    parent : Channel, optional
        That of the communicator from which ``user`` was made; without it a private one is made, which is
        collective.
    key : int
        Of 64 bits, the same on all ranks of ``user``, and another for each communicator of a family.
    plain : MPI.Intracomm, optional
        What the private one is to be a duplicate of; else ``user``.

    Attributes
    ----------
    comm : MPI.Intracomm
    handle : int
        That of `comm`.
    notices : Notices
    unannounced : dict
        When messages that look compressed were found without a notice, by source, tag and length.
    """

    def __init__(
        self, user: MPI.Intracomm, parent: Channel | None, key: int, plain: MPI.Intracomm | None = None
    ):
        _free_left()
        if user.Get_size() == 1:
            self._family = _alone()
        else:
            self._family = parent._family if parent is not None else _Family(_duplicate(plain or user))
        self._family.join()
        self.track_receive = self._family.track_receive
        self.user, self.comm, self.handle = user, self._family.comm, self._family.handle
        self.notices = self._family.notices
        self.reserve, self.track = self._family.reserve, self._family.track
        self._key = key
        self.unannounced: dict[tuple[int, int, int], float] = {}
        mine, theirs = user.Get_group(), self.comm.Get_group()
        self._ranks = MPI.Group.Translate_ranks(mine, list(range(mine.size)), theirs)
        mine.Free()
        theirs.Free()

    def rank_of(self, user_rank: int) -> int:
        """The rank in the private communicator of one in the user's."""
        return self._ranks[int(user_rank)]  # mpi4py takes a float, such as half of a number of ranks

    def announce(self, dest: int, tag: int, nbytes: int, length: int, serial: int) -> None:
        """Send the notice of a message to a rank of the user's communicator."""
        self.notices.send(self.rank_of(dest), self._key, nbytes, length, serial, tag)

    def hold(self, dest: int, chunks: Any, seconds: float) -> None:
        """Keep chunks back until a message of their receiver, a rank of `comm`, comes, for so long at most.

        MPI answers the announcement of a large message behind the bytes that it has queued for the same rank.
        So chunks of both directions are announced before any of them is received.
        """
        chunks.hold(seconds)
        self._family.held.append((dest, chunks))

    def announce_held(self, source: int) -> None:
        """Announce the chunks that wait for a message of this rank."""
        for dest, chunks in self._family.held[:]:
            if dest == self.rank_of(source):
                self.drop_held(chunks)
                chunks.announce()

    def drop_held(self, chunks: Any) -> None:
        """Forget chunks that were held."""
        self._family.held[:] = [held for held in self._family.held if held[1] is not chunks]

    def awaits(self, source: int) -> bool:
        """Whether a posted receive may match a message of this rank."""
        return any(receive.may_match(self, source) for receive in self._family.sweep_receives())

    def drop_notice(self, source: int, tag: int, serial: int) -> None:
        """Drop the notice of a message that was received."""
        self.unannounced.clear()  # before another thread finds no notice of a message that it has just probed
        self.notices.drop(self.rank_of(source), self._key, tag, serial)

    def receive(self, matched: MPI.Message, status: MPI.Status) -> ReceivedMessage:
        """Receive what a matched probe found."""
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        source, tag = status.source, status.tag
        matched.Recv([data, MPI.BYTE])
        received = ReceivedMessage(data, source, tag)
        if received.is_compressed:
            self.drop_notice(source, tag, received.serial)
        return received

    def sizes(self, source: int, tag: int, length: int) -> list[int]:
        """Uncompressed bytes of the messages that may be one which a probe found, in the order of sending."""
        self._family.sweep_receives()
        return self.notices.sizes(self.rank_of(source), self._key, tag, length)

    def is_arriving(self, source: int, tag: int) -> bool:
        """Whether a posted receive matches such a message."""
        return any(receive.takes(self, source, tag) for receive in self._family.sweep_receives())

    def leave(self) -> None:
        """The communicator is about to be freed."""
        self._family.leave()
        _free_left()

"""Messages that a matched probe of the program found, and that had to be received to know their size."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from compcoll.engine import interrupts
from compcoll.mpi.p2p.channel import Channel
from compcoll.mpi.p2p.probe import MatchedMessage

__all__ = ["matched_message", "take_matched"]

_SELF = MPI.COMM_SELF
_NOTHING = [np.empty(0, np.uint8), 0, MPI.BYTE]


class _Matched(NamedTuple):
    """A received message, and the one of MPI's, of no bytes, whose handle the program has."""

    received: MatchedMessage
    stand_in: MPI.Message
    sent: MPI.Request


_matched: dict[int, _Matched] = {}


def _key(handle: int) -> int:
    """A handle without a sign, which mpi4py gives short ones."""
    return handle & (1 << 8 * MPI._sizeof(MPI.MESSAGE_NULL)) - 1


@cache
def _mirror() -> MPI.Intracomm:
    """A private communicator of this rank alone."""
    return MPI.Intracomm(_SELF).Dup()


def matched_message(channel: Channel, handle: int, status: MPI.Status) -> MPI.Message:
    """Receive a message of MPI's that looks compressed, and say in the status what it was before.

    Returns
    -------
    MPI.Message
        The one that stands for it.
    """
    with interrupts.deferred():
        received = channel.receive(MPI.Message.fromhandle(handle), status)
    received.fill(status)
    sent = _mirror().Isend(_NOTHING, 0, 0)
    stand_in = _mirror().Mprobe(0, 0)
    _matched[_key(stand_in.handle)] = _Matched(MatchedMessage(channel, received), stand_in, sent)
    return stand_in


def take_matched(handle: int) -> MatchedMessage | None:
    """The message that a handle stands for; None of any other."""
    found = _matched.pop(_key(handle), None)
    if found is None:
        return None
    found.stand_in.Recv(_NOTHING)
    found.sent.Wait()
    return found.received

"""Values that persistent messages carried last: bases of ``delta``, kept by both ends.

Both ends have one base for each communicator, pair of ranks, and tag. A message that is to become the base
says so in its header, and the receiver replies, beside the notices, whether it keeps the values. Until the
reply arrives the sender sends ``lossless`` messages, which leave the base alone. So a frame of differences is
never sent before its base is there, and no two messages that change a base are on their way at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Bases", "Sent", "number_of"]

#: The private rank of the other end, the key of the user's communicator, and the tag.
Pair = tuple[int, int, int]


_NOTHING = np.empty(0, np.uint8)


@dataclass(slots=True)
class Sent:
    """The base on the sender.

    Attributes
    ----------
    values : numpy.ndarray
        In a row; empty where the sender has let go of them.
    serial : int
        That of the message.
    is_kept : bool
        Whether the receiver has replied that it keeps the values.
    """

    values: np.ndarray
    serial: int
    is_kept: bool = False


class Bases:
    """The bases of all messages from and to this rank in a family of communicators."""

    def __init__(self) -> None:
        self._sent: dict[Pair, Sent] = {}
        self._received: dict[Pair, tuple[int, np.ndarray]] = {}

    # -- the sender

    def replace(self, pair: Pair, serial: int) -> tuple[Sent | None, Sent | None]:
        """The base of messages to a rank, and the one that the next message becomes.

        The values of the second are to be set; it is None where a reply is awaited.
        """
        old, new = self._sent.get(pair), None
        if old is None or old.is_kept:
            new = self._sent[pair] = Sent(_NOTHING, serial)
        return old, new

    def release(self, pair: Pair) -> None:
        """Let go of the values; the reply to a message on its way is awaited all the same."""
        if pair in self._sent:
            self._sent[pair].values = _NOTHING

    def replied(self, pair: Pair, serial: int, keeps: bool) -> None:
        """The receiver's reply to a message."""
        sent = self._sent.get(pair)
        if sent is None or sent.serial != serial:
            return
        sent.is_kept = keeps
        if not keeps:
            del self._sent[pair]

    @property
    def awaits_replies(self) -> bool:
        """Whether any reply has not arrived yet."""
        return not all(sent.is_kept for sent in self._sent.values())

    # -- the receiver

    def keep(self, pair: Pair, values: np.ndarray | None, serial: int) -> None:
        """Keep the bytes of a received message as the base; None where they are not there."""
        if values is None:
            self._received.pop(pair, None)
        else:
            self._received[pair] = serial, values

    def received(self, pair: Pair, number: int, dtype: np.dtype) -> np.ndarray | None:
        """The base of this number; None where it is not here."""
        serial, values = self._received.get(pair, (0, None))
        if values is None or number_of(serial) != number:
            return None
        return values.view(dtype)


def number_of(serial: int) -> int:
    """The number by which a frame names the values of a message: 1 to 2**32 - 1."""
    return serial % ((1 << 32) - 1) + 1

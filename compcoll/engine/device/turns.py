"""What the verbs ask of a device in one turn of the event loop, so that one launch can do it all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from compcoll.codecs.base import Codec
from compcoll.devices.memory import DeviceArray
from compcoll.engine.device.host import Frame
from compcoll.engine.device.requests import Request

__all__ = ["Asked", "Copying", "Decoding", "Encoding", "Summing", "Turn"]

#: Bytes of the first launch of a turn, at least; each one behind it is twice as large. What a GPU encodes in
#: about the time that it takes to start the kernels: less would not bring the first frame out earlier.
FIRST_NBYTES = 8 << 20


@dataclass(slots=True)
class Asked:
    """A request, and the block that it is about.

    ``place`` is its chunk's in a longer block: of what is asked for at once, the first chunks go first.
    """

    request: Request
    block: DeviceArray
    place: int = 0


@dataclass(slots=True, kw_only=True)
class Encoding(Asked):
    """A block to encode by the first of these codecs that does not refuse it.

    ``refused``: one has, whose place a lossless one takes.
    """

    carried: float
    attempts: tuple[Codec, ...]
    refused: bool = False


@dataclass(slots=True, kw_only=True)
class Decoding(Asked):
    """A frame to decode into the block, or to add to it; ``clears``: to zeros."""

    frame: Frame
    clears: bool


@dataclass(slots=True, kw_only=True)
class Copying(Asked):
    """A block of another type, to write to this one."""

    source: DeviceArray


@dataclass(slots=True, kw_only=True)
class Summing(Asked):
    """Two frames to add, both of blocks like this one."""

    terms: tuple[Frame, Frame]


class Turn:
    """What was asked for since the last turn, by what a single launch can do."""

    def __init__(self, first_nbytes: int = FIRST_NBYTES):
        self.first_nbytes = first_nbytes
        self._asked: dict[tuple, list[Any]] = {}

    def later(self, one: Asked, start: Callable[[list[Any]], None], *alike: Hashable) -> Request:
        """Its request, which starts with all others that are alike."""
        self._asked.setdefault((start, *alike), []).append(one)
        return one.request

    def begin(self) -> None:
        """Start everything."""
        turn, self._asked = self._asked, {}
        for (start, *_), asked in turn.items():
            asked.sort(key=_place)
            for group in _stages(asked, self.first_nbytes):
                try:
                    start(group)
                except Exception as error:
                    for one in group:
                        one.request.fail(error)


_place = attrgetter("place")


def _stages(asked: list[Any], first_nbytes: int) -> Iterator[list[Any]]:
    """Cut what was asked for at once, so that the first results do not wait for the last."""
    group: list[Any] = []
    nbytes, least = 0, first_nbytes
    for one in asked:
        group.append(one)
        nbytes += one.block.size * one.block.dtype.itemsize
        if nbytes >= least:
            yield group
            group, nbytes, least = [], 0, 2 * least
    if group:
        yield group

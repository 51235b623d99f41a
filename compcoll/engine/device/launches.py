"""Operations that one launch can do together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from compcoll.codecs import Codec
from compcoll.devices.memory import DeviceArray
from compcoll.engine.device.futures import DeviceFuture, Steps
from compcoll.frame import FrameInfo

__all__ = ["Copying", "Decoding", "Encoding", "Frame", "LaunchBatcher", "Summing"]

#: Bytes of the first launch of a step, at least; each one behind it is twice as large. What a GPU encodes in
#: about the time that it takes to start the kernels: less would not bring the first frame out earlier.
FIRST_NBYTES = 8 << 20


class Frame:
    """A frame: a uint8 array or memory of a device, and its header on the host."""

    __slots__ = ("data", "header", "info")

    def __init__(self, data: Any, info: FrameInfo, header: np.ndarray | None = None):
        self.data, self.info = data, info
        self.header = data if header is None else header


class Encoding(NamedTuple):
    """A block to encode as a codec has it: by the first of its attempts that does not refuse it.

    ``refused``: one has, whose place a lossless one takes.
    """

    block: DeviceArray
    carried: float
    codec: Codec
    attempts: tuple[Codec, ...]
    refused: bool = False


class Decoding(NamedTuple):
    """A frame to decode into the block, or to add to it; ``clears``: to zeros."""

    block: DeviceArray
    frame: Frame
    clears: bool


class Copying(NamedTuple):
    """A block that gets the values of one of another type."""

    block: DeviceArray
    source: DeviceArray


class Summing(NamedTuple):
    """Two frames to add, both of blocks like this one."""

    block: DeviceArray
    terms: tuple[Frame, Frame]


class LaunchBatcher:
    """Operations since the last launches, by what a single launch can do."""

    def __init__(self, first_nbytes: int = FIRST_NBYTES):
        self.first_nbytes = first_nbytes
        self._batches: dict[tuple, list[tuple[Any, DeviceFuture]]] = {}

    def add(self, one: Any, start: Callable[[list[Any]], Steps], *alike: Hashable) -> DeviceFuture:
        """The result of an operation, which begins with all others that are alike.

        The steps of ``start`` for some of them return a list of results, among which may be errors and other
        futures.
        """
        future = DeviceFuture()
        self._batches.setdefault((start, *alike), []).append((one, future))
        return future

    def launch(self) -> None:
        """Start everything."""
        batches, self._batches = self._batches, {}
        for (start, *_), batch in batches.items():
            for group in _stages(batch, self.first_nbytes):
                together = DeviceFuture(start([one for one, _ in group]))
                for i, (_, future) in enumerate(group):
                    future.begin(_one_of(together, i))


def _one_of(together: DeviceFuture, i: int) -> Steps:
    result = (yield from together)[i]
    if isinstance(result, Exception):
        raise result
    return (yield from result) if isinstance(result, DeviceFuture) else result


def _stages(batch: list[Any], first_nbytes: int) -> Iterator[list[Any]]:
    """Cut a batch, so that the first results do not wait for the last."""
    group: list[Any] = []
    nbytes, least = 0, first_nbytes
    for one in batch:
        group.append(one)
        nbytes += one[0].block.nbytes
        if nbytes >= least:
            yield group
            group, nbytes, least = [], 0, 2 * least
    if group:
        yield group

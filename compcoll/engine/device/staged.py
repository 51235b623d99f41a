"""The verbs' work on a GPU's memory by way of the host: whatever a codec has no kernels for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from compcoll import frame as frames
from compcoll.codecs.base import Codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.devices.cuda import available, pinned
from compcoll.devices.memory import DeviceArray
from compcoll.engine.device.host import POISON, Frame, HostWork
from compcoll.engine.device.pool import Pool
from compcoll.engine.device.requests import Last, Request, Steps

__all__ = ["StagedWork"]


@cache
def pinned_pool() -> Pool:
    """Scratch buffers from which a GPU copies while the host goes on."""
    return Pool(allocate=pinned)


class StagedWork(HostWork):
    """`HostWork` for blocks on a device, and on the host; what waits for a device is returned as `Request`.

    Attributes
    ----------
    direct : bool
        Whether MPI takes frames in device memory.
    marks : dict
        For each device the events that come before all work on it; by default those of the caller's
        streams when it is first used.
    """

    def __init__(self, codec: Codec, pool: Pool, checksum: bool = True):
        super().__init__(codec, pinned_pool() if available() else pool, checksum)
        self.direct = False
        self.marks: dict[Any, Sequence[Any]] = {}

    def queue(self, device: Any, *others: Any) -> Any:
        """A queue of one device that comes after what the caller has started there and on others."""
        for one in (device, *others):
            if one not in self.marks:
                self.marks[one] = one.mark()
        queue = device.queue(self.marks[device])
        for other in others:
            queue.after(self.marks[other])
        return queue

    # -- encoding

    def encode(self, block, carried: float, into=None) -> Any:
        if not isinstance(block, DeviceArray):
            return super().encode(block, carried, into)
        return Request(self._encode_on_host(block, carried))

    def _encode_on_host(self, block: DeviceArray, carried: float) -> Steps:
        host = self._scratch(block)
        with self.queue(block.device) as queue:
            queue.to_host(host.view(np.uint8), block.address)
            yield queue.event()
        frame = super().encode(host, carried)
        if not self.direct:
            return frame
        memory = block.device.scratch(frame.data.size)
        with self.queue(block.device) as queue:
            queue.to_device(memory.address, frame.data)
            yield queue.event()
        return Frame(memory, frame.info)

    # -- decoding

    def received(self, data) -> Any:
        if not isinstance(data, DeviceArray):
            return super().received(data)
        return Request(self._opened(data)) if data.size else POISON

    def _opened(self, data: DeviceArray) -> Steps:
        size = min(data.size, frames.HEADER_NBYTES)
        header = self.pool.get(size)[:size]
        with self.queue(data.device) as queue:
            queue.to_host(header, data.address)
            yield queue.event()
        return Frame(data, frames.inspect(header, data.size))

    def decode(self, frame: Frame, into) -> Any:
        if isinstance(into, np.ndarray) and isinstance(frame.data, np.ndarray):
            return super().decode(frame, into)
        return Request(self._decode_on_host(frame, into, super().decode))

    def decode_add(self, frame: Frame, into) -> Any:
        if isinstance(into, np.ndarray) and isinstance(frame.data, np.ndarray):
            return super().decode_add(frame, into)
        return Request(self._decode_on_host(frame, into, super().decode_add, adding=True))

    def _decode_on_host(self, frame: Frame, into, decode: Any, adding: bool = False) -> Steps:
        frame = yield from self._fetched(frame)
        if isinstance(into, np.ndarray):
            return decode(frame, into)
        host = self._scratch(into)
        with self.queue(into.device) as queue:
            if adding:
                queue.to_host(host.view(np.uint8), into.address)
                yield queue.event()
            bound = decode(frame, host)
            queue.to_device(into.address, host.view(np.uint8))
            yield queue.event()
        return bound

    def _fetched(self, frame: Frame) -> Steps:
        """The same frame in host memory."""
        if not isinstance(frame.data, DeviceArray):
            return frame
        data = self.pool.get(frame.data.size)[: frame.data.size]
        with self.queue(frame.data.device) as queue:
            queue.to_host(data, frame.data.address)
            yield queue.event()
        return Frame(data, frame.info)

    # -- around them

    def add(self, frame: Frame, other: Frame, like) -> Any:
        if isinstance(like, DeviceArray):
            return Request(self._add_decoded(frame, other, like))
        if isinstance(frame.data, np.ndarray) and isinstance(other.data, np.ndarray):
            return super().add(frame, other, like)
        return Request(self._add_on_host(frame, other, like))

    def _add_on_host(self, frame: Frame, other: Frame, like: np.ndarray) -> Steps:
        one, two = (yield from self._fetched(frame)), (yield from self._fetched(other))
        return super().add(one, two, like)

    def _add_decoded(self, frame: Frame, other: Frame, like: DeviceArray) -> Steps:
        """The frame of the sum of two frames' values."""
        total = self._sums(like.device, like)
        error = yield from self.decode(frame, total)
        error += yield from self.decode_add(other, total)
        if total.dtype != like.dtype:
            narrow = like.device.scratch(like.nbytes).view(like.dtype)
            error += yield from self.copy(narrow, total)
            total = narrow
        return (yield from self.encode(total, error))

    @staticmethod
    def _sums(device: Any, like) -> DeviceArray:
        dtype = accumulator_dtype(like.dtype)
        return device.scratch(like.size * dtype.itemsize).view(dtype)

    def copy(self, into, block) -> Any:
        if isinstance(block, np.ndarray) and isinstance(into, np.ndarray):
            return super().copy(into, block)
        return Request(self._copied(into, block))

    def _copied(self, into, block) -> Steps:
        """Overwrite a block; the error of rounding where its type is narrower."""
        devices = [x.device for x in (into, block) if isinstance(x, DeviceArray)]
        with self.queue(*dict.fromkeys(devices)) as queue:
            if len(devices) == 2 and block.dtype == into.dtype:
                queue.copy(into.address, block.address, into.nbytes)
                yield Last(queue)
                return 0.0
            # Between host and device, or with rounding.
            if isinstance(block, DeviceArray):
                values = self._scratch(block)
                queue.to_host(values.view(np.uint8), block.address)
                yield queue.event()
                block = values
            if isinstance(into, np.ndarray):
                return super().copy(into, block)
            host = self._scratch(into)
            error = super().copy(host, block)
            queue.to_device(into.address, host.view(np.uint8))
            yield queue.event()
            return error

    def is_same(self, block, into) -> bool:
        if isinstance(block, DeviceArray) and isinstance(into, DeviceArray):
            return block.address == into.address
        return type(block) is type(into) and super().is_same(block, into)

    def _scratch(self, like: DeviceArray) -> np.ndarray:
        """Scratch memory on the host for a block's values."""
        return self.pool.get(like.nbytes)[: like.nbytes].view(like.dtype)

"""The verbs' work on a GPU's memory: coded there where the codec has kernels, staged through the host.

Frames are in pinned host memory, from where MPI sends them. What a codec has no kernels for, and what one
cannot carry, is copied to the host and coded there: the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from compcoll import frame as frames
from compcoll.codecs.base import SLACK, Codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.devices import batch, kernels
from compcoll.devices.batch import Block
from compcoll.devices.cuda import available, pinned
from compcoll.devices.memory import DeviceArray
from compcoll.errors import FrameError
from compcoll.runtime.host import Frame, HostWork
from compcoll.runtime.pool import Pool

__all__ = ["CudaWork", "Pending"]


@cache
def pinned_pool() -> Pool:
    """Scratch buffers from which a GPU copies while the host goes on."""
    return Pool(allocate=pinned)


class Pending:
    """Something that a device does; ``finish`` makes the result of it, on the host, when that is done."""

    def __init__(self, queue: Any, finish: Callable[[], Any]):
        self._queue, self._finish = queue, finish

    def poll(self) -> tuple[Any] | None:
        """(result,), or None as long as there is none."""
        while self._queue.done():
            try:
                result = self._finish()
            finally:
                self._queue.close()
            if not isinstance(result, Pending):
                return (result,)
            self._queue, self._finish = result._queue, result._finish  # there is more to do
        return None

    def wait(self) -> Any:
        """The result."""
        while (result := self.poll()) is None:
            self._queue.wait()
        return result[0]


class CudaWork(HostWork):
    """`HostWork` for blocks on a device, and on the host; what a device does is returned as `Pending`."""

    def __init__(self, codec: Codec, pool: Pool, checksum: bool = True):
        super().__init__(codec, pinned_pool() if available() else pool, checksum)

    def encode(self, block, carried: float, into=None) -> Any:
        if not isinstance(block, DeviceArray):
            return super().encode(block, carried, into if isinstance(into, np.ndarray) else None)
        params = self.codec.params(block.dtype, (block.size,))
        device, queue = block.device, block.device.queue()
        if not block.size or not kernels.encodes(self.codec.name, block.dtype, (block.size,), params):
            return self._encode_staged(queue, block, carried)
        frame = device.empty(frames.HEADER_NBYTES + block.nbytes + SLACK)
        source = Block(block.address, block.dtype, (block.size,))
        made = batch.encode(queue, self.codec, [source], [frame.address], carried, self.checksum)
        # A size that does not depend on the data needs no second look.
        nbytes = batch.payload_nbytes(self.codec.name, block.dtype, block.size, params)
        room = self.pool.get(frame.size)

        def fetch(on: Any, nbytes: int) -> np.ndarray:
            data = room[: frames.HEADER_NBYTES + nbytes]
            on.to_host(data, frame.address)
            return data

        early = fetch(queue, nbytes) if 0 <= nbytes <= block.nbytes else None

        def finish() -> Any:
            found = int(made.results[0]["nbytes"])
            if found < 0:
                return self._encode_staged(device.queue(), block, carried)
            if early is not None:
                return Frame(early, frames.inspect(early))
            second = device.queue()
            data = fetch(second, found)
            return Pending(second, lambda: Frame(data, frames.inspect(data)))

        return Pending(queue, finish)

    def _encode_staged(self, queue: Any, block: DeviceArray, carried: float) -> Pending:
        host = block.device.host(block.nbytes)
        queue.to_host(host, block.address)
        return Pending(queue, lambda: super(CudaWork, self).encode(host.view(block.dtype), carried))

    def decode(self, frame: Frame, into) -> Any:
        if isinstance(into, np.ndarray):
            return super().decode(frame, into)
        return self._decode(frame, into, False)

    def decode_add(self, frame: Frame, into) -> Any:
        if isinstance(into, np.ndarray):
            return super().decode_add(frame, into)
        return self._decode(frame, into, True)

    def _decode(self, frame: Frame, into: DeviceArray, adding: bool) -> Pending:
        info = self._checked(frame, into)
        queue = into.device.queue()
        widened = into.dtype != info.dtype  # 16-bit floats into an accumulator
        own = kernels.fits(
            info.codec, info.dtype, len(info.shape), adding or widened
        ) and batch.size_is_sound(info)
        if not own or not info.size:
            return self._decode_staged(queue, frame, into, adding)
        if widened and not adding:
            queue.zero(into.address, into.nbytes)
        address = queue.scratch(info.payload_nbytes)
        queue.to_device(address, frame.data[info.payload_offset : info.frame_nbytes])
        made = batch.decode(queue, [info], [address], [into.address], adding or widened)

        def finish() -> float:
            if problem := batch.problem(info, made.results[0]):
                raise FrameError(problem)
            return info.bound

        return Pending(queue, finish)

    def _decode_staged(self, queue: Any, frame: Frame, into: DeviceArray, adding: bool) -> Pending:
        host = into.device.host(into.nbytes).view(into.dtype)
        if adding:
            queue.to_host(host.view(np.uint8), into.address)
            queue.wait()
            bound = super().decode_add(frame, host)
        else:
            bound = super().decode(frame, host)
        queue.to_device(into.address, host.view(np.uint8))
        return Pending(queue, lambda: bound)

    def add(self, frame: Frame, other: Frame, like) -> Any:
        if isinstance(like, np.ndarray):
            return super().add(frame, other, like)
        # Frames are on the host, and so is their sum.
        return super().add(frame, other, np.empty(like.size, like.dtype))

    def accumulator(self, block, into=None) -> Any:
        if isinstance(block, np.ndarray) and (into is None or isinstance(into, np.ndarray)):
            return super().accumulator(block, into)
        dtype = accumulator_dtype(block.dtype)
        device = (block if isinstance(block, DeviceArray) else into).device
        if not isinstance(into, DeviceArray) or into.dtype != dtype:
            into = device.empty(block.size * dtype.itemsize).view(dtype)
        self.copy(into, block).wait()
        return into

    def copy(self, into, block) -> Any:
        if isinstance(block, np.ndarray) and isinstance(into, np.ndarray):
            return super().copy(into, block)
        device = (block if isinstance(block, DeviceArray) else into).device
        queue = device.queue()
        if isinstance(block, DeviceArray) and isinstance(into, DeviceArray) and block.dtype == into.dtype:
            queue.copy(into.address, block.address, into.nbytes)
            return Pending(queue, lambda: None)
        # Between host and device, or with rounding.
        values = block
        if isinstance(block, DeviceArray):
            values = device.host(block.nbytes).view(block.dtype)
            queue.to_host(values.view(np.uint8), block.address)
            queue.wait()
        if isinstance(into, np.ndarray):
            np.copyto(into, values, "same_kind")
        else:
            host = device.host(into.nbytes).view(into.dtype)
            np.copyto(host, values, "same_kind")
            queue.to_device(into.address, host.view(np.uint8))
        return Pending(queue, lambda: None)

    def is_same(self, block, into) -> bool:
        if isinstance(block, DeviceArray) and isinstance(into, DeviceArray):
            return block.address == into.address
        return type(block) is type(into) and super().is_same(block, into)

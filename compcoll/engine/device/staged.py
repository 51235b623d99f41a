"""Operations on memory of devices by way of the host: whatever a codec has no kernels for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compcoll.codecs import Codec
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import accumulator_dtype, decode_add, decode_into
from compcoll.devices.memory import DeviceArray
from compcoll.engine import rounding
from compcoll.engine.device.futures import DeviceFuture, Last, Steps
from compcoll.engine.device.launches import Frame
from compcoll.frame import HEADER_NBYTES, inspect

__all__ = ["StagedWork"]


class StagedWork:
    """Encoding, decoding and copying of one run, each of which returns a `DeviceFuture`.

    Results are frames, or what an operation adds to a block's largest absolute error.

    Parameters
    ----------
    codec : Codec
    direct : bool
        Whether MPI takes frames in device memory.

    Attributes
    ----------
    marks : dict
        For each device the events that come before all work on it; by default those of the caller's
        streams when it is first used.
    """

    def __init__(self, codec: Codec, direct: bool = False):
        self.codec, self.direct = codec, direct
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

    def encode(self, block: DeviceArray, carried: float, codec: Codec | None = None) -> DeviceFuture:
        """The frame of a block whose values have an error already, by another codec where one is given."""
        return DeviceFuture(self._encode_on_host(block, carried, codec or self.codec))

    def received(self, data: DeviceArray) -> DeviceFuture:
        """The frame of bytes that have arrived in device memory."""
        return DeviceFuture(self._opened(data))

    def decode(self, frame: Frame, into: Any) -> DeviceFuture:
        """Overwrite a block with a frame's values."""
        return DeviceFuture(self._decode_on_host(frame, into, False))

    def decode_add(self, frame: Frame, into: Any) -> DeviceFuture:
        """Add a frame's values to a block; the error that they and the additions bring."""
        return DeviceFuture(self._decode_on_host(frame, into, True))

    def add(self, frame: Frame, other: Frame, like: Any) -> DeviceFuture:
        """The frame of a sum."""
        return DeviceFuture(self._add_decoded(frame, other, like))

    def copy(self, into: Any, block: Any) -> DeviceFuture:
        """Overwrite a block; the error of rounding where its type is narrower."""
        return DeviceFuture(self._copied(into, block))

    # -- their steps

    def _encode_on_host(self, block: DeviceArray, carried: float, codec: Codec) -> Steps:
        values = yield from self._to_host(block)
        frame = codec.encode_into(values, block.device.host(HEADER_NBYTES + block.nbytes + SLACK), carried)
        if not self.direct:
            return Frame(frame, inspect(frame))
        memory = block.device.scratch(frame.size)
        yield from self._to_device(memory, frame)
        return Frame(memory, inspect(frame), frame)

    def _opened(self, data: DeviceArray) -> Steps:
        header = yield from self._to_host(data[:HEADER_NBYTES])
        return Frame(data, inspect(header, data.size), header)

    def _decode_on_host(self, frame: Frame, into: Any, adding: bool) -> Steps:
        data, info = (yield from self._to_host(frame.data)), frame.info
        values, on_device = into, isinstance(into, DeviceArray)
        if on_device:
            values = (yield from self._to_host(into)) if adding else _host(into)
        bound = info.bound
        if info.dtype == into.dtype and not adding:
            decode_into(data, info, values)
        else:
            if not adding:  # 16-bit floats into an accumulator
                values[...] = 0
            decode_add(data, values)
            bound += rounding.of_addition(into.dtype, rounding.largest(values)) if adding else 0.0
        if on_device:
            yield from self._to_device(into, values)
        return bound

    def _add_decoded(self, frame: Frame, other: Frame, like: Any) -> Steps:
        """The frame of the sum of two frames' values."""
        device = next(one.device for one in (like, frame.data, other.data) if isinstance(one, DeviceArray))
        dtype = accumulator_dtype(like.dtype)
        total = device.scratch(like.size * dtype.itemsize).view(dtype)
        error = yield from self.decode(frame, total)
        error += yield from self.decode_add(other, total)
        if total.dtype != like.dtype:
            narrow = device.scratch(like.nbytes).view(like.dtype)
            error += yield from self.copy(narrow, total)
            total = narrow
        return (yield from self.encode(total, error))

    def _copied(self, into: Any, block: Any) -> Steps:
        if isinstance(into, DeviceArray) and isinstance(block, DeviceArray) and block.dtype == into.dtype:
            with self.queue(*dict.fromkeys((into.device, block.device))) as queue:
                queue.copy(into.address, block.address, into.nbytes)
                yield Last(queue)
            return 0.0
        values = yield from self._to_host(block)
        target = _host(into) if isinstance(into, DeviceArray) else into
        with np.errstate(over="ignore"):  # sums overflow as they do in the type
            np.copyto(target, values, "same_kind")
        narrows = into.itemsize < block.itemsize
        error = rounding.of_result(into.dtype, rounding.largest(target)) if narrows else 0.0
        if target is not into:
            yield from self._to_device(into, target)
        return error

    def _to_host(self, array: Any) -> Steps:
        """A copy of an array of a device; one of the host as it is."""
        if not isinstance(array, DeviceArray):
            return array
        values = _host(array)
        with self.queue(array.device) as queue:
            queue.to_host(values.view(np.uint8), array.address)
            yield queue.event()
        return values

    def _to_device(self, array: DeviceArray, values: np.ndarray) -> Steps:
        with self.queue(array.device) as queue:
            queue.to_device(array.address, values.view(np.uint8))
            yield Last(queue)


def _host(like: DeviceArray) -> np.ndarray:
    """Scratch memory on the host for the values of an array."""
    return like.device.host(like.nbytes).view(like.dtype)

"""The verbs' work on a GPU's memory: coded there where the codec has kernels.

What the verbs of one turn of the event loop ask for is started together: all peers' chunks of an Alltoall
are encoded by one launch, and chunks that have arrived together are decoded by one. Frames are staged through
pinned host memory, from where MPI sends them, or stay on the device for an MPI that takes them there. What a
codec has no kernels for, and what one cannot carry, is copied to the host and coded there: the bytes are the
same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from compcoll.runtime.host import POISON, Frame, HostWork
from compcoll.runtime.pool import Pool
from compcoll.runtime.requests import Lease, Request, Steps

__all__ = ["CudaWork"]

#: Bytes of the first launch of a turn, at least; each one behind it is twice as large. What a GPU encodes in
#: about the time that it takes to start the kernels: less would not bring the first frame out earlier.
FIRST_NBYTES = 8 << 20


@cache
def pinned_pool() -> Pool:
    """Scratch buffers from which a GPU copies while the host goes on."""
    return Pool(allocate=pinned)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, the block that it reads or writes, and what else it needs.

    ``place`` is its chunk's in a longer block: of what is asked for at once, the first chunks go first.
    """

    request: Request
    block: DeviceArray
    carried: float = 0.0
    frame: Any = None
    overwrites: bool = False
    place: int = 0


class CudaWork(HostWork):
    """`HostWork` for blocks on a device, and on the host; what a device does is returned as `Request`.

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
        self.first_nbytes = FIRST_NBYTES
        self.marks: dict[Any, Sequence[Any]] = {}
        self._turn: dict[tuple, list[_Asked]] = {}

    def begin(self) -> None:
        """Start what was asked for since the last time."""
        turn, self._turn = self._turn, {}
        for (start, *_), asked in turn.items():
            asked.sort(key=lambda one: one.place)
            for group in _stages(asked, self.first_nbytes):
                try:
                    start(group)
                except Exception as error:
                    for one in group:
                        one.request.fail(error)

    def _later(self, key: tuple, block: DeviceArray, **more: Any) -> Request:
        """A request that starts with all others of the same key."""
        asked = _Asked(Request(), block, **more)
        self._turn.setdefault(key, []).append(asked)
        return asked.request

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

    def encode(self, block, carried: float, into=None, place: int = 0) -> Any:
        if not isinstance(block, DeviceArray):
            return super().encode(block, carried, into)
        params = self.codec.params(block.dtype, (block.size,))
        if not block.size or not kernels.encodes(self.codec.name, block.dtype, (block.size,)):
            return Request(self._encode_staged(block, carried))
        key = self._encode_batch, block.device, block.dtype, params
        return self._later(key, block, carried=float(carried), place=place)

    def _encode_batch(self, group: list[_Asked]) -> None:
        device = group[0].block.device
        with self._lease(group) as (queue, lease):
            memory = [device.scratch(frames.HEADER_NBYTES + one.block.nbytes + SLACK) for one in group]
            sources = [Block(one.block.address, one.block.dtype, (one.block.size,)) for one in group]
            carried = [one.carried for one in group]
            targets = [frame.address for frame in memory]
            made = batch.encode(queue, self.codec, sources, targets, carried, self.checksum)
        for i, (one, frame) in enumerate(zip(group, memory, strict=True)):
            one.request.begin(self._encoded(lease, made, i, one, frame))

    def _encoded(self, lease: Lease, made: batch.Batch, i: int, one: _Asked, memory: DeviceArray) -> Steps:
        block = one.block
        with lease as queue:
            # A size that does not depend on the data needs no second look.
            params = self.codec.params(block.dtype, (block.size,))
            nbytes = batch.payload_nbytes(self.codec.name, block.dtype, block.size, params)
            known = 0 <= nbytes <= block.nbytes
            if known:
                data, header = self._fetch(queue, memory, nbytes)
            yield queue.event()
            nbytes = int(made.results[i]["nbytes"])
            if nbytes >= 0:
                if not known:
                    data, header = self._fetch(queue, memory, nbytes)
                    yield queue.event()
                return Frame(data, frames.inspect(header, data.size))
        return (yield from self._encode_staged(block, one.carried))

    def _fetch(self, queue: Any, memory: DeviceArray, nbytes: int) -> tuple[Any, np.ndarray]:
        """A frame where MPI takes it, and its header on the host, as soon as the queue is done."""
        size = frames.HEADER_NBYTES + nbytes
        header = self.pool.get(frames.HEADER_NBYTES if self.direct else size)
        header = header[: frames.HEADER_NBYTES if self.direct else size]
        queue.to_host(header, memory.address)
        return memory[:size] if self.direct else header, header

    def _encode_staged(self, block: DeviceArray, carried: float) -> Steps:
        host = self._host(block)
        with self.queue(block.device) as queue:
            queue.to_host(host.view(np.uint8), block.address)
            yield queue.event()
        frame = super().encode(host, carried)
        return (yield from self._placed(frame, block))

    def _placed(self, frame: Frame, like: Any) -> Steps:
        """A frame from the host, where MPI takes it."""
        if not self.direct or not isinstance(like, DeviceArray):
            return frame
        memory = like.device.scratch(frame.data.size)
        with self.queue(like.device) as queue:
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
        return self._decode(frame, into, False)

    def decode_add(self, frame: Frame, into) -> Any:
        return self._decode(frame, into, True)

    def _decode(self, frame: Frame, into, adding: bool) -> Any:
        if isinstance(into, np.ndarray):
            if isinstance(frame.data, np.ndarray):
                return self._decode_on_host(frame, into, adding)
            return Request(self._decode_staged(frame, into, adding))
        info = self._checked(frame, into, adding)
        widened = into.dtype != info.dtype  # 16-bit floats into an accumulator
        own = kernels.fits(info.codec, info.dtype, len(info.shape), adding or widened)
        if not own or not info.size or not batch.size_is_sound(info):
            return Request(self._decode_staged(frame, into, adding))
        chosen = kernels.decoders(info.codec, info.dtype, info.params, adding or widened, len(info.shape))
        start = self._add_batch if adding or widened else self._decode_batch
        key = start, into.device, len(info.shape), *chosen
        return self._later(key, into, frame=frame, overwrites=widened and not adding)

    def _decode_on_host(self, frame: Frame, into: np.ndarray, adding: bool) -> float:
        return super().decode_add(frame, into) if adding else super().decode(frame, into)

    def _add_batch(self, group: list[_Asked]) -> None:
        self._decode_batch(group, adding=True)

    def _decode_batch(self, group: list[_Asked], adding: bool = False) -> None:
        with self._lease(group) as (queue, lease):
            payloads = [self._payload(queue, one.frame) for one in group]
            for one in group:
                if one.overwrites:
                    queue.zero(one.block.address, one.block.nbytes)
            infos = [one.frame.info for one in group]
            made = batch.decode(queue, infos, payloads, [one.block.address for one in group], adding)
        for i, one in enumerate(group):
            one.request.begin(self._decoded(lease, made, i, one.frame))

    def _decoded(self, lease: Lease, made: batch.Batch, i: int, frame: Frame) -> Steps:
        with lease as queue:
            yield queue.event()
            assert frame.info is not None
            if problem := batch.problem(frame.info, made.results[i]):
                raise FrameError(problem)
            return frame.info.bound

    @staticmethod
    def _payload(queue: Any, frame: Frame) -> int:
        """The address of a frame's payload on the queue's device."""
        info: Any = frame.info
        if not isinstance(frame.data, DeviceArray):
            address = queue.scratch(info.payload_nbytes)
            queue.to_device(address, frame.data[info.payload_offset : info.frame_nbytes])
        elif frame.data.device is queue.device:
            address = frame.data.address + info.payload_offset
        else:
            address = queue.scratch(info.payload_nbytes)
            queue.copy(address, frame.data.address + info.payload_offset, info.payload_nbytes)
        return address

    def _decode_staged(self, frame: Frame, into, adding: bool) -> Steps:
        frame = yield from self._on_host(frame)
        if isinstance(into, np.ndarray):
            return self._decode_on_host(frame, into, adding)
        host = self._host(into)
        with self.queue(into.device) as queue:
            if adding:
                queue.to_host(host.view(np.uint8), into.address)
                yield queue.event()
            bound = self._decode_on_host(frame, host, adding)
            queue.to_device(into.address, host.view(np.uint8))
            yield queue.event()
        return bound

    def _on_host(self, frame: Frame) -> Steps:
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
        if isinstance(like, np.ndarray):
            return super().add(frame, other, like)
        return Request(self._add(frame, other, like))

    def _add(self, frame: Frame, other: Frame, like: DeviceArray) -> Steps:
        one, two = (yield from self._on_host(frame)), (yield from self._on_host(other))
        total = super().add(one, two, np.empty(like.size, like.dtype))
        return (yield from self._placed(total, like))

    def accumulator(self, block, into=None) -> Any:
        if isinstance(block, np.ndarray) and (into is None or isinstance(into, np.ndarray)):
            return super().accumulator(block, into)
        dtype = accumulator_dtype(block.dtype)
        if not isinstance(into, DeviceArray) or into.dtype != dtype:
            device = (block if isinstance(block, DeviceArray) else into).device
            into = device.scratch(block.size * dtype.itemsize).view(dtype)
        self.copy(into, block).wait()
        return into

    def copy(self, into, block) -> Any:
        if isinstance(block, np.ndarray) and isinstance(into, np.ndarray):
            return super().copy(into, block)
        return Request(self._copied(into, block))

    def _copied(self, into, block) -> Steps:
        devices = [x.device for x in (into, block) if isinstance(x, DeviceArray)]
        with self.queue(*dict.fromkeys(devices)) as queue:
            if len(devices) == 2 and block.dtype == into.dtype:
                queue.copy(into.address, block.address, into.nbytes)
                yield queue.event()
                return
            # Between host and device, or with rounding.
            if isinstance(block, DeviceArray):
                values = self._host(block)
                queue.to_host(values.view(np.uint8), block.address)
                yield queue.event()
                block = values
            if isinstance(into, np.ndarray):
                np.copyto(into, block, "same_kind")
                return
            host = self._host(into)
            np.copyto(host, block, "same_kind")
            queue.to_device(into.address, host.view(np.uint8))
            yield queue.event()

    def is_same(self, block, into) -> bool:
        if isinstance(block, DeviceArray) and isinstance(into, DeviceArray):
            return block.address == into.address
        return type(block) is type(into) and super().is_same(block, into)

    def _host(self, like: DeviceArray) -> np.ndarray:
        """Scratch memory on the host for a block's values."""
        return self.pool.get(like.nbytes)[: like.nbytes].view(like.dtype)

    @contextmanager
    def _lease(self, group: list[_Asked]) -> Iterator[tuple[Any, Lease]]:
        """A queue that a batch is put into; closed where that fails, else by those who share it."""
        queue = self.queue(group[0].block.device)
        try:
            yield queue, Lease(queue, len(group))
        except BaseException:
            queue.close()
            raise


def _stages(asked: list[_Asked], first_nbytes: int) -> Iterator[list[_Asked]]:
    """Cut what was asked for at once, so that the first results do not wait for the last."""
    group: list[_Asked] = []
    nbytes, least = 0, first_nbytes
    for one in asked:
        group.append(one)
        nbytes += one.block.nbytes
        if nbytes >= least:
            yield group
            group, nbytes, least = [], 0, 2 * least
    if group:
        yield group

"""The verbs' work on a GPU's memory: coded there where the codec has kernels.

What the verbs of one turn of the event loop ask for is started together: all peers' chunks of an Alltoall
are encoded by one launch, and chunks that have arrived together are decoded by one. Frames are staged through
pinned host memory, from where MPI sends them, or stay on the device for an MPI that takes them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from compcoll import frame as frames
from compcoll.codecs import sample
from compcoll.codecs.base import SLACK, Codec
from compcoll.codecs.decoding import alike
from compcoll.codecs.lossless import Lossless
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import checks, kernels, operations
from compcoll.devices.batch import Batch, Block
from compcoll.devices.memory import DeviceArray
from compcoll.engine import rounding
from compcoll.engine.device.host import Frame
from compcoll.engine.device.pool import Pool
from compcoll.engine.device.requests import Lease, Request, Steps
from compcoll.engine.device.staged import StagedWork
from compcoll.engine.device.turns import Asked, Decoding, Encoding, Summing, Turn

__all__ = ["CudaWork"]


class CudaWork(StagedWork):
    """`StagedWork` in which the device encodes, decodes and adds wherever it has the kernels.

    Attributes
    ----------
    turn : Turn
        What the device is asked for; its `begin` starts that.
    """

    def __init__(self, codec: Codec, pool: Pool, checksum: bool = True):
        super().__init__(codec, pool, checksum)
        self.turn = Turn()

    # -- encoding

    def encode(self, block, carried: float, into=None, place: int = 0) -> Any:
        if not isinstance(block, DeviceArray) or not block.size:
            return super().encode(block, carried, into)
        attempts = self.codec.attempts(block.dtype)
        return self._attempt(
            Encoding(self._request(), block, place, carried=float(carried), attempts=attempts)
        )

    def _attempt(self, one: Encoding) -> Request:
        """Ask for what the first of the codecs needs."""
        codec, block = one.attempts[0], one.block
        if isinstance(codec, Lossless):
            return self.turn.later(one, self._take_samples, block.device)
        if kernels.encodes(codec.name, block.dtype, (block.size,)):
            return self.turn.later(one, self._encode_batch, block.device, block.dtype, codec)
        one.request.begin(self._encode_on_host(block, one.carried))
        return one.request

    def _again(self, one: Encoding, attempts: Sequence[Codec], refused: bool) -> Request:
        return self._attempt(replace(one, request=self._request(), attempts=tuple(attempts), refused=refused))

    def _take_samples(self, group: list[Encoding]) -> None:
        places = [sample.places(one.block.nbytes, one.block.dtype) for one in group]
        begins = [0, *accumulate(-(-at.nbytes // 16) * 16 for at in places)]
        with self._lease(group) as (queue, lease):
            taken, host = queue.scratch(begins[-1]), self.pool.get(begins[-1])[: begins[-1]]
            operations.gather(queue, _blocks(group), places, [taken + begin for begin in begins[:-1]])
            queue.to_host(host, taken)
        for one, begin, at in zip(group, begins, places, strict=False):
            one.request.begin(self._sampled(lease, one, host[begin : begin + at.nbytes]))

    def _sampled(self, lease: Lease, one: Encoding, taken: np.ndarray) -> Steps:
        with lease:
            yield lease.event
        codec: Any = one.attempts[0]
        chosen = codec.chosen_from(taken, one.block.dtype, (one.block.size,))
        return (yield from self._again(one, (*chosen, *one.attempts[1:]), one.refused))

    def _encode_batch(self, group: list[Encoding]) -> None:
        codec = group[0].attempts[0]
        with self._lease(group) as (queue, lease):
            memory = [_room(one) for one in group]
            made = operations.encode(
                queue, codec, _blocks(group), [frame.address for frame in memory],
                [one.carried for one in group], self.checksum, [one.refused for one in group],
            )  # fmt: skip
        for i, (one, frame) in enumerate(zip(group, memory, strict=True)):
            one.request.begin(self._encoded(lease, made, i, one, frame))

    def _encoded(self, lease: Lease, made: Batch, i: int, one: Encoding, memory: DeviceArray) -> Steps:
        codec, block = one.attempts[0], one.block
        with lease as queue:
            # A size that does not depend on the data needs no second look.
            params = codec.params(block.dtype, (block.size,))
            nbytes = checks.payload_nbytes(codec.name, block.dtype, block.size, params)
            known = 0 <= nbytes <= block.nbytes
            if known:
                data, header = self._fetch(queue, memory, nbytes)
            yield queue.event() if known else lease.event
            nbytes = int(made.results[i]["nbytes"])
            if nbytes >= 0:
                if not known:
                    data, header = self._fetch(queue, memory, nbytes)
                    yield queue.event()
                return Frame(data, frames.inspect(header, data.size))
        refused = one.refused or (nbytes in checks.REFUSALS and not self.codec.lossless)
        return (yield from self._again(one, one.attempts[1:], refused))

    def _fetch(self, queue: Any, memory: DeviceArray, nbytes: int) -> tuple[Any, np.ndarray]:
        """A frame where MPI takes it, and its header on the host, as soon as the queue is done."""
        size = frames.HEADER_NBYTES + nbytes
        header = self.pool.get(frames.HEADER_NBYTES if self.direct else size)
        header = header[: frames.HEADER_NBYTES if self.direct else size]
        queue.to_host(header, memory.address)
        return memory[:size] if self.direct else header, header

    # -- decoding

    def decode(self, frame: Frame, into) -> Any:
        return self._decode_later(frame, into, False) or super().decode(frame, into)

    def decode_add(self, frame: Frame, into) -> Any:
        return self._decode_later(frame, into, True) or super().decode_add(frame, into)

    def _decode_later(self, frame: Frame, into, adding: bool) -> Request | None:
        """A request, where the device has the kernels."""
        if isinstance(into, np.ndarray):
            return None
        info = self._checked(frame, into, adding)
        clears = into.dtype != info.dtype and not adding  # 16-bit floats into an accumulator
        adding = adding or clears
        own = kernels.fits(info.codec, info.dtype, len(info.shape), adding)
        if not own or not info.size or not checks.size_is_sound(info):
            return None
        one = Decoding(self._request(), into, frame=frame, clears=clears)
        chosen = kernels.decoders(info.codec, info.dtype, info.params, adding, len(info.shape))
        start = self._add_batch if adding else self._decode_batch
        return self.turn.later(one, start, into.device, len(info.shape), *chosen)

    def _add_batch(self, group: list[Decoding]) -> None:
        self._decode_batch(group, adding=True)

    def _decode_batch(self, group: list[Decoding], adding: bool = False) -> None:
        with self._lease(group) as (queue, lease):
            payloads = [_payload(queue, one.frame) for one in group]
            for one in group:
                if one.clears:
                    queue.zero(one.block.address, one.block.nbytes)
            infos: Any = [one.frame.info for one in group]
            made = operations.decode(queue, infos, payloads, [one.block.address for one in group], adding)
            # What was added to zeros was not rounded.
            summed = adding and group[0].block.dtype in dtypes.FLOATS and not all(one.clears for one in group)
            sums = operations.largest(queue, _blocks(group)) if summed else None
        for i, one in enumerate(group):
            one.request.begin(self._decoded(lease, made, i, one, sums))

    def _decoded(self, lease: Lease, made: Batch, i: int, one: Decoding, sums: Batch | None) -> Steps:
        with lease:
            yield lease.event
            _raise(one.frame, made.results[i])
            return one.frame.bound + (0.0 if one.clears else _rounding(sums, i, one.block.dtype))

    # -- adding frames

    def add(self, frame: Frame, other: Frame, like) -> Any:
        if not isinstance(like, DeviceArray):
            return super().add(frame, other, like)
        info, second = self._checked(frame, like), self._checked(other, like)
        own = alike(info, second) and kernels.adds(info.codec, info.dtype) and info.size
        if not own or not checks.size_is_sound(info) or not checks.size_is_sound(second):
            return super().add(frame, other, like)
        one = Summing(self._request(), like, terms=(frame, other))
        return self.turn.later(one, self._sum_batch, like.device, info.dtype, info.params)

    def _sum_batch(self, group: list[Summing]) -> None:
        with self._lease(group) as (queue, lease):
            memory = [_room(one) for one in group]
            payloads = [(_payload(queue, one.terms[0]), _payload(queue, one.terms[1])) for one in group]
            infos: Any = [tuple(term.info for term in one.terms) for one in group]
            made = operations.add(queue, infos, payloads, [frame.address for frame in memory])
        for i, (one, frame) in enumerate(zip(group, memory, strict=True)):
            one.request.begin(self._summed(lease, made, i, one, frame))

    def _summed(
        self, lease: Lease, made: tuple[Batch, Batch], i: int, one: Summing, memory: DeviceArray
    ) -> Steps:
        sums, terms = made
        with lease as queue:
            yield lease.event
            for k, term in enumerate(one.terms):
                _raise(term, terms.results[i + k * sums.n])
            if (nbytes := int(sums.results[i]["nbytes"])) >= 0:
                data, header = self._fetch(queue, memory, nbytes)
                yield queue.event()
                return Frame(data, frames.inspect(header, data.size))
        return (yield from self._add_decoded(*one.terms, one.block))

    # -- around them

    def copy(self, into, block) -> Any:
        here = (
            isinstance(into, DeviceArray) and isinstance(block, DeviceArray) and into.device is block.device
        )
        kernel = kernels.converter(block.dtype, into.dtype) if here else None
        if kernel is None or not into.size:
            return super().copy(into, block)
        return Request(self._converted(into, block, kernel))

    def _converted(self, into: DeviceArray, block: DeviceArray, kernel: kernels.Kernel) -> Steps:
        with self.queue(into.device) as queue:
            operations.convert(queue, kernel, [into.size], [block.address], [into.address])
            narrower = into.itemsize < block.itemsize
            blocks = [Block(into.address, into.dtype, (into.size,))]
            made = operations.largest(queue, blocks) if narrower else None
            yield queue.event()
        if made is None:
            return 0.0
        return rounding.of_result(into.dtype, operations.magnitude(made, 0, into.dtype))

    def _request(self) -> Request:
        return Request(start=self.turn.begin)

    @contextmanager
    def _lease(self, group: Sequence[Asked]) -> Iterator[tuple[Any, Lease]]:
        """A queue that a batch is put into; closed where that fails, else by those who share it."""
        queue = self.queue(group[0].block.device)
        lease = Lease(queue, len(group))
        try:
            yield queue, lease
            lease.event = queue.event()
        except BaseException:
            queue.close()
            raise


def _blocks(group: Sequence[Asked]) -> list[Block]:
    return [Block(one.block.address, one.block.dtype, (one.block.size,)) for one in group]


def _room(one: Asked) -> DeviceArray:
    """Memory for the frame of a block."""
    return one.block.device.scratch(frames.HEADER_NBYTES + one.block.nbytes + SLACK)


def _rounding(sums: Batch | None, i: int, dtype: np.dtype) -> float:
    """The error of additions whose sums a batch has looked at."""
    return 0.0 if sums is None else rounding.of_addition(dtype, operations.magnitude(sums, i, dtype))


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


def _raise(frame: Frame, result: np.void) -> None:
    """Raise what is wrong with a frame that the device has read."""
    assert frame.info is not None
    if problem := checks.problem(frame.info, result):
        raise FrameError(problem)

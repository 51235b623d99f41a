"""Operations on a GPU's memory: coded there where the codec has kernels.

Operations that are ready together are started together: all peers' chunks of an Alltoall are encoded by one
launch, and chunks that have arrived together are decoded by one. Frames are staged through pinned host
memory, from where MPI sends them, or stay on the device for an MPI that takes them there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from compcoll.codecs import Codec, sample
from compcoll.codecs.decoding import alike
from compcoll.codecs.lossless import Lossless
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import checks, kernels, operations
from compcoll.devices.batch import Batch, Block
from compcoll.devices.memory import DeviceArray
from compcoll.engine import rounding
from compcoll.engine.device.batches import FrameBatch, known_info, payloads
from compcoll.engine.device.futures import DeviceFuture, Last, Steps
from compcoll.engine.device.launches import Copying, Decoding, Encoding, Frame, LaunchBatcher, Summing
from compcoll.engine.device.staged import StagedWork
from compcoll.frame import FrameInfo

__all__ = ["CudaWork"]


class CudaWork(StagedWork):
    """`StagedWork` in which the device encodes, decodes and adds wherever it has the kernels.

    Attributes
    ----------
    batcher : LaunchBatcher
        Its `launch` starts the operations.
    """

    def __init__(self, codec: Codec, direct: bool = False):
        super().__init__(codec, direct)
        self.batcher = LaunchBatcher()

    # -- encoding

    def encode(self, block: DeviceArray, carried: float, codec: Codec | None = None) -> DeviceFuture:
        codec = codec or self.codec
        return self._attempt(Encoding(block, carried, codec, codec.attempts(block.dtype)))

    def _attempt(self, one: Encoding) -> DeviceFuture:
        """Begin with the first of the codecs."""
        codec, block = one.attempts[0], one.block
        if not block.is_aligned:
            return super().encode(block, one.carried, one.codec)
        if block.size and isinstance(codec, Lossless):
            return self.batcher.add(one, self._take_samples, block.device)
        if block.size and kernels.encodes(codec.name, block.dtype, (block.size,)):
            return self.batcher.add(one, self._encode_batch, block.device, block.dtype, codec, one.refused)
        return super().encode(block, one.carried, one.codec)

    def _take_samples(self, group: Sequence[Encoding]) -> Steps:
        places = [sample.places(one.block.nbytes, one.block.dtype) for one in group]
        begins = [0, *accumulate(-(-at.nbytes // 16) * 16 for at in places)]
        device = group[0].block.device
        with self.queue(device) as queue:
            taken, host = queue.scratch(begins[-1]), device.host(begins[-1])
            operations.gather(queue, _blocks(group), places, [taken + begin for begin in begins[:-1]])
            queue.to_host(host, taken)
            yield queue.event()
        return [
            self._sampled(one, host[begin : begin + at.nbytes])
            for one, begin, at in zip(group, begins, places, strict=False)
        ]

    def _sampled(self, one: Encoding, taken: np.ndarray) -> DeviceFuture:
        codec: Any = one.attempts[0]
        chosen = codec.chosen_from(taken, one.block.dtype, (one.block.size,))
        return self._attempt(one._replace(attempts=(*chosen, *one.attempts[1:])))

    def _encode_batch(self, group: Sequence[Encoding]) -> Steps:
        codec, refused = group[0].attempts[0], group[0].refused
        info = known_info(codec, group, refused)
        made = FrameBatch(group, self.direct)
        with self.queue(group[0].block.device) as queue:
            batch = operations.encode(
                queue,
                codec,
                _blocks(group),
                made.addresses,
                [one.carried for one in group],
                True,
                refused,
                results=info is None,
            )
            if info is not None:
                made.fetch_known(queue, info)
            yield queue.event()
            if info is None and made.fetch(queue, batch):
                yield queue.event()
        return [
            self._refused(one, frame) if isinstance(frame, int) else frame
            for one, frame in zip(group, made.frames(), strict=True)
        ]

    def _refused(self, one: Encoding, status: int) -> DeviceFuture:
        """The frame of the codec that comes next."""
        refused = one.refused or (status in checks.REFUSALS and not one.codec.lossless)
        return self._attempt(one._replace(attempts=one.attempts[1:], refused=refused))

    # -- decoding

    def decode(self, frame: Frame, into: Any) -> DeviceFuture:
        return self._decode(frame, into, False) or super().decode(frame, into)

    def decode_add(self, frame: Frame, into: Any) -> DeviceFuture:
        return self._decode(frame, into, True) or super().decode_add(frame, into)

    def _decode(self, frame: Frame, into: Any, adding: bool) -> DeviceFuture | None:
        """The result where the device has the kernels."""
        if isinstance(into, np.ndarray) or not into.is_aligned:
            return None
        info = frame.info
        clears = into.dtype != info.dtype and not adding  # 16-bit floats into an accumulator
        adding = adding or clears
        alike = _decoder(info.codec, info.dtype, info.params, info.shape, info.payload_nbytes, adding)
        start = self._add_batch if adding else self._decode_batch
        return self.batcher.add(Decoding(into, frame, clears), start, into.device, alike) if alike else None

    def _add_batch(self, group: Sequence[Decoding]) -> Steps:
        return self._decode_batch(group, adding=True)

    def _decode_batch(self, group: Sequence[Decoding], adding: bool = False) -> Steps:
        given, dtype = [one.frame for one in group], group[0].block.dtype
        with self.queue(group[0].block.device) as queue:
            addresses = payloads(queue, given)
            for one in group:
                if one.clears:
                    queue.zero(one.block.address, one.block.nbytes)
            outs = [one.block.address for one in group]
            read = operations.decode(queue, [frame.info for frame in given], addresses, outs, adding)
            # Adding to zeros rounds nothing.
            summed = adding and dtype in dtypes.FLOATS and not all(one.clears for one in group)
            sums = operations.largest(queue, _blocks(group)) if summed else None
            yield Last(queue)
        errors = [frame.info.bound for frame in given]
        for i, one in enumerate(group):
            if sums is not None and not one.clears:
                errors[i] += rounding.of_addition(dtype, operations.magnitude(sums, i, dtype))
        return [problem or error for problem, error in zip(_problems(read, given), errors, strict=True)]

    # -- adding frames

    def add(self, frame: Frame, other: Frame, like: Any) -> DeviceFuture:
        info, second = frame.info, other.info
        own = isinstance(like, DeviceArray) and alike(info, second) and kernels.adds(info.codec, info.dtype)
        if not own or not info.size or not checks.size_is_sound(info) or not checks.size_is_sound(second):
            return super().add(frame, other, like)
        one = Summing(like, (frame, other))
        return self.batcher.add(one, self._sum_batch, like.device, info.dtype, info.params)

    def _sum_batch(self, group: Sequence[Summing]) -> Steps:
        n, made = len(group), FrameBatch(group, self.direct)
        both = [one.terms[0] for one in group] + [one.terms[1] for one in group]
        with self.queue(group[0].block.device) as queue:
            addresses = payloads(queue, both)
            pairs = list(zip(addresses[:n], addresses[n:], strict=True))
            infos = [(one.terms[0].info, one.terms[1].info) for one in group]
            batch, terms = operations.add(queue, infos, pairs, made.addresses)
            yield queue.event()
            if made.fetch(queue, batch):
                yield queue.event()
        problems, frames = _problems(terms, both), made.frames()
        return [
            problems[i]
            or problems[n + i]
            or (super(CudaWork, self).add(*one.terms, one.block) if isinstance(frames[i], int) else frames[i])
            for i, one in enumerate(group)
        ]

    # -- around them

    def copy(self, into: Any, block: Any) -> DeviceFuture:
        here = (
            isinstance(into, DeviceArray) and isinstance(block, DeviceArray) and into.device is block.device
        )
        kernel = kernels.converter(block.dtype, into.dtype) if here else None
        if kernel is None or not into.size or not into.is_aligned or not block.is_aligned:
            return super().copy(into, block)
        return self.batcher.add(
            Copying(into, block), self._convert_batch, into.device, into.dtype, block.dtype
        )

    def _convert_batch(self, group: Sequence[Copying]) -> Steps:
        into, block = group[0].block, group[0].source
        kernel: Any = kernels.converter(block.dtype, into.dtype)
        with self.queue(into.device) as queue:
            sources, targets = [one.source.address for one in group], [one.block.address for one in group]
            operations.convert(queue, kernel, [one.block.size for one in group], sources, targets)
            made = operations.largest(queue, _blocks(group)) if into.itemsize < block.itemsize else None
            yield Last(queue)
        if made is None:
            return [0.0] * len(group)
        most = [operations.magnitude(made, i, into.dtype) for i in range(len(group))]
        return [rounding.of_result(into.dtype, one) for one in most]


def _blocks(group: Sequence[Any]) -> list[Block]:
    return [Block(one.block.address, one.block.dtype, (one.block.size,)) for one in group]


def _problems(batch: Batch, given: Sequence[Frame]) -> list[FrameError | None]:
    """The error of each frame's payload, as the device found it, or None."""
    found: list[FrameError | None] = []
    results = zip(batch.results["bad"].tolist(), batch.results["checksum"].tolist(), strict=True)
    for i, (frame, (bad, checksum)) in enumerate(zip(given, results, strict=True)):
        sound = not bad and frame.info.checksum in (None, checksum)
        found.append(None if sound else FrameError(str(checks.problem(frame.info, batch.results[i]))))
    return found


@lru_cache(1024)
def _decoder(
    codec: str,
    dtype: np.dtype,
    params: tuple[int, int],
    shape: tuple[int, ...],
    payload_nbytes: int,
    adding: bool,
) -> str:
    """The names of the kernels that decode such a payload; none where there are none, or it is not sound."""
    size = math.prod(shape)
    info = FrameInfo(codec, dtype, shape, size * dtype.itemsize, payload_nbytes, 0, None, 0.0, params, False)
    if not size or not kernels.fits(codec, dtype, len(shape), adding) or not checks.size_is_sound(info):
        return ""
    return f"{dtype} {len(shape)} {params} " + " ".join(
        kernel.name for kernel in kernels.decoders(codec, dtype, params, adding, len(shape))
    )

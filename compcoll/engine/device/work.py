"""The verbs' work on a GPU's memory: coded there where the codec has kernels.

What the verbs of one turn of the event loop ask for is started together: all peers' chunks of an Alltoall
are encoded by one launch, and chunks that have arrived together are decoded by one. Frames are staged through
pinned host memory, from where MPI sends them, or stay on the device for an MPI that takes them there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from compcoll.codecs import sample
from compcoll.codecs.base import Codec
from compcoll.codecs.decoding import alike
from compcoll.codecs.lossless import Lossless
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import checks, kernels, operations
from compcoll.devices.batch import Batch, Block
from compcoll.devices.memory import DeviceArray
from compcoll.engine import rounding
from compcoll.engine.device.batches import Made, known_info, payloads
from compcoll.engine.device.host import Frame
from compcoll.engine.device.pool import Pool
from compcoll.engine.device.requests import Last, Lease, Request, Steps
from compcoll.engine.device.staged import StagedWork
from compcoll.engine.device.turns import Asked, Copying, Decoding, Encoding, Summing, Turn
from compcoll.frame import FrameInfo

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
            return self.turn.later(one, self._encode_batch, block.device, block.dtype, codec, one.refused)
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
        codec, refused = group[0].attempts[0], group[0].refused
        info = known_info(codec, group, self.checksum, refused)
        made = Made(group, self.pool, self.direct)
        with self._lease(group) as (queue, lease):
            made.batch = operations.encode(
                queue, codec, _blocks(group), made.addresses, [one.carried for one in group], self.checksum,
                refused, results=info is None,
            )  # fmt: skip
            if info is not None:
                made.fetch_known(queue, info)
        for i, one in enumerate(group):
            one.request.begin(
                (self._encoded if info is None else self._encoded_as_known)(lease, made, i, one)
            )

    def _encoded_as_known(self, lease: Lease, made: Made, i: int, one: Encoding) -> Steps:
        with lease:
            yield lease.event
            status, frame = made.known(i)
        return frame or (yield from self._refused(one, status))

    def _encoded(self, lease: Lease, made: Made, i: int, one: Encoding) -> Steps:
        with lease as queue:
            yield lease.event
            assert made.batch is not None
            nbytes = int(made.batch.results[i]["nbytes"])
            if nbytes >= 0:
                yield made.fetch(queue)
                return made.fetched(i, nbytes)
        return (yield from self._refused(one, nbytes))

    def _refused(self, one: Encoding, status: int) -> Request:
        """The frame of the codec that comes next."""
        refused = one.refused or (status in checks.REFUSALS and not self.codec.lossless)
        return self._again(one, one.attempts[1:], refused)

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
        alike = _decoder(info.codec, info.dtype, info.params, info.shape, info.payload_nbytes, adding)
        if not alike:
            return None
        one = Decoding(self._request(), into, frame=frame, clears=clears)
        start = self._add_batch if adding else self._decode_batch
        return self.turn.later(one, start, into.device, alike)

    def _add_batch(self, group: list[Decoding]) -> None:
        self._decode_batch(group, adding=True)

    def _decode_batch(self, group: list[Decoding], adding: bool = False) -> None:
        with self._lease(group, last=True) as (queue, lease):
            addresses = payloads(queue, [one.frame for one in group])
            for one in group:
                if one.clears:
                    queue.zero(one.block.address, one.block.nbytes)
            infos: Any = [one.frame.info for one in group]
            made = operations.decode(queue, infos, addresses, [one.block.address for one in group], adding)
            # What was added to zeros was not rounded.
            summed = adding and group[0].block.dtype in dtypes.FLOATS and not all(one.clears for one in group)
            sums = operations.largest(queue, _blocks(group)) if summed else None
        found = Results(made)
        for i, one in enumerate(group):
            one.request.begin(self._decoded(lease, found, i, one, sums))

    def _decoded(self, lease: Lease, found: Results, i: int, one: Decoding, sums: Batch | None) -> Steps:
        with lease:
            yield lease.event
            found.check(i, one.frame)
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
        made = Made(group, self.pool, self.direct)
        with self._lease(group) as (queue, lease):
            both = [one.terms[0] for one in group] + [one.terms[1] for one in group]
            addresses = payloads(queue, both)
            infos: Any = [tuple(term.info for term in one.terms) for one in group]
            pairs = list(zip(addresses[: len(group)], addresses[len(group) :], strict=True))
            made.batch, terms = operations.add(queue, infos, pairs, made.addresses)
        found = Results(terms)
        for i, one in enumerate(group):
            one.request.begin(self._summed(lease, made, found, i, one))

    def _summed(self, lease: Lease, made: Made, terms: Results, i: int, one: Summing) -> Steps:
        with lease as queue:
            yield lease.event
            assert made.batch is not None
            for k, term in enumerate(one.terms):
                terms.check(i + k * made.n, term)
            if (nbytes := int(made.batch.results[i]["nbytes"])) >= 0:
                yield made.fetch(queue)
                return made.fetched(i, nbytes)
        return (yield from self._add_decoded(*one.terms, one.block))

    # -- around them

    def copy(self, into, block) -> Any:
        here = (
            isinstance(into, DeviceArray) and isinstance(block, DeviceArray) and into.device is block.device
        )
        kernel = kernels.converter(block.dtype, into.dtype) if here else None
        if kernel is None or not into.size:
            return super().copy(into, block)
        one = Copying(self._request(), into, source=block)
        return self.turn.later(one, self._convert_batch, into.device, into.dtype, block.dtype)

    def _convert_batch(self, group: list[Copying]) -> None:
        into, block = group[0].block, group[0].source
        kernel: Any = kernels.converter(block.dtype, into.dtype)
        with self._lease(group, last=True) as (queue, lease):
            sources, targets = [one.source.address for one in group], [one.block.address for one in group]
            operations.convert(queue, kernel, [one.block.size for one in group], sources, targets)
            made = operations.largest(queue, _blocks(group)) if into.itemsize < block.itemsize else None
        for i, one in enumerate(group):
            one.request.begin(self._converted(lease, i, one, made))

    def _converted(self, lease: Lease, i: int, one: Copying, made: Batch | None) -> Steps:
        with lease:
            yield lease.event
            if made is None:
                return 0.0
            dtype = one.block.dtype
            return rounding.of_result(dtype, operations.magnitude(made, i, dtype))

    def _request(self) -> Request:
        return Request(start=self.turn.begin)

    @contextmanager
    def _lease(self, group: Sequence[Asked], last: bool = False) -> Iterator[tuple[Any, Lease]]:
        """A queue that a batch is put into; closed where that fails, else by those who share it.

        ``last``: nothing is put behind it.
        """
        queue = self.queue(group[0].block.device)
        lease = Lease(queue, len(group))
        try:
            yield queue, lease
            lease.event = Last(queue) if last else queue.event()
        except BaseException:
            queue.close()
            raise


def _blocks(group: Sequence[Asked]) -> list[Block]:
    return [Block(one.block.address, one.block.dtype, (one.block.size,)) for one in group]


def _rounding(sums: Batch | None, i: int, dtype: np.dtype) -> float:
    """The error of additions whose sums a batch has looked at."""
    return 0.0 if sums is None else rounding.of_addition(dtype, operations.magnitude(sums, i, dtype))


class Results:
    """What a device says of payloads that it has read, as plain numbers; read when the first is asked for."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self._found: list[tuple[int, int]] | None = None

    def check(self, i: int, frame: Frame) -> None:
        """Raise what is wrong with the payload of a frame."""
        if self._found is None:
            results = self._batch.results
            self._found = list(zip(results["bad"].tolist(), results["checksum"].tolist(), strict=True))
        bad, checksum = self._found[i]
        info = frame.info
        assert info is not None
        if bad or (info.checksum is not None and checksum != info.checksum):
            raise FrameError(str(checks.problem(info, self._batch.results[i])))


@lru_cache(1024)
def _decoder(
    codec: str, dtype: np.dtype, params: tuple[int, int], shape: tuple[int, ...], payload_nbytes: int,
    adding: bool,
) -> str:  # fmt: skip
    """The names of the kernels that decode such a payload; none where there are none, or it is not sound."""
    size = math.prod(shape)
    info = FrameInfo(codec, dtype, shape, size * dtype.itemsize, payload_nbytes, 0, None, 0.0, params, False)
    if not size or not kernels.fits(codec, dtype, len(shape), adding) or not checks.size_is_sound(info):
        return ""
    return f"{dtype} {len(shape)} {params} " + " ".join(
        kernel.name for kernel in kernels.decoders(codec, dtype, params, adding, len(shape))
    )

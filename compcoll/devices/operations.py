"""What a device does to several frames in one go: what is launched, and with which arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from compcoll.core import dtypes
from compcoll.devices import kernels
from compcoll.devices.batch import Batch, Block, Launcher
from compcoll.devices.kernels import Kernel
from compcoll.frame import HEADER_NBYTES, FrameInfo, header_bytes

__all__ = ["add", "convert", "decode", "encode", "gather", "largest", "magnitude"]


class Coder(Protocol):
    """A codec, as far as a batch needs it: `compcoll.codecs.base.Codec`."""

    name: ClassVar[str]

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]: ...


class Places(Protocol):
    """Pieces of ``piece`` bytes that begin ``step`` bytes apart: `compcoll.codecs.sample.Places`."""

    @property
    def piece(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


def encode(
    device: Launcher, codec: Coder, blocks: Sequence[Block], frames: Sequence[int],
    carried: float | Sequence[float] = 0.0, checksum: bool = True,
    fallback: bool | Sequence[bool] = False,
) -> Batch:  # fmt: skip
    """Encode blocks, alike in dtype and number of dimensions, into frames at 16-byte aligned addresses.

    Each has room for the header and the block's raw bytes rounded up to 8, and `SLACK`. After the device is
    done ``results`` has each frame's payload bytes, or a status where there is no frame. ``carried`` is the
    absolute error of the values, or that of each block's; ``fallback`` says where another codec was to be
    used.
    """
    batch = Batch(device, len(blocks))
    dtype = blocks[0].dtype
    errors = np.broadcast_to(carried, len(blocks)).tolist()
    refused = np.broadcast_to(fallback, len(blocks)).tolist()
    for i, (block, frame) in enumerate(zip(blocks, frames, strict=True)):
        params = codec.params(dtype, block.shape or (1,))
        header = header_bytes(codec.name, dtype, block.shape, params, errors[i], checksum, refused[i])
        batch.headers[i, :HEADER_NBYTES] = np.frombuffer(header, np.uint8)
        payload = frame + HEADER_NBYTES
        batch.jobs[i]["src"], batch.jobs[i]["dst"] = block.address, payload
        n = kernels.units(codec.name, block.reals, block.nbytes)
        batch.jobs[i]["n"], batch.jobs[i]["nbytes"] = n, block.nbytes
        batch.jobs[i]["params"] = kernels.job_params(codec.name, dtype, block.shape, params)
        batch.sums[i]["src"], batch.sums[i]["nbytes"] = payload, block.nbytes
        batch.seals[i]["src"], batch.seals[i]["dst"] = batch.header_address(i), frame
    if codec.name == "raw":  # whose kernel has nothing to find out
        batch.results["nbytes"] = batch.jobs["nbytes"]
    batch.add_scratch(codec.name)
    device.upload(batch.memory)
    shape = blocks[0].shape
    for kernel in kernels.encoders(codec.name, dtype, codec.params(dtype, shape or (1,)), len(shape)):
        batch.launch(kernel, batch.jobs, 2)
    if checksum:
        batch.launch(kernels.CHECKSUM, batch.sums, 3, "nbytes")
    batch.launch(kernels.SEAL, batch.seals, 4)
    batch.finish()
    return batch


def gather(
    device: Launcher, blocks: Sequence[Block], places: Sequence[Places], targets: Sequence[int]
) -> None:
    """Copy pieces of each block to an address of its own, side by side."""
    batch = Batch(device, len(blocks))
    for job, block, at, target in zip(batch.jobs, blocks, places, targets, strict=True):
        job["src"], job["dst"], job["n"] = block.address, target, at.nbytes
        job["params"] = at.piece, at.step
    device.upload(batch.memory)
    batch.launch(kernels.COPY, batch.jobs, 2)


def convert(device: Launcher, kernel: Kernel, n: int, source: int, target: int) -> None:
    """Write elements as those of another type; see `compcoll.devices.kernels.converter`."""
    batch = Batch(device, 1)
    batch.jobs[0]["src"], batch.jobs[0]["dst"], batch.jobs[0]["n"] = source, target, n
    device.upload(batch.memory)
    batch.launch(kernel, batch.jobs, 2)


def largest(device: Launcher, blocks: Sequence[Block]) -> Batch:
    """Look for the largest magnitudes in blocks of one floating-point type; then `magnitude` has them."""
    batch = Batch(device, len(blocks))
    for job, block in zip(batch.jobs, blocks, strict=True):
        job["src"], job["n"] = block.address, block.reals
    device.upload(batch.memory)
    batch.launch(kernels.largest(blocks[0].dtype), batch.jobs, 2)
    batch.finish()
    return batch


def magnitude(batch: Batch, i: int, dtype: np.dtype) -> float:
    """What `largest` found in a block; not finite where any value is not."""
    word = int(batch.results[i]["extent"][0])
    real = dtypes.real_dtype(dtype)
    return float(np.array([word], f"u{real.itemsize}").view(real)[0])


def decode(
    device: Launcher, infos: Sequence[FrameInfo], payloads: Sequence[int], outs: Sequence[int], adding=False
) -> Batch:
    """Decode payloads of one codec, dtype and parameters at these addresses; or add them to accumulators.

    The addresses are 16-byte aligned. After the device is done `problems` tells which were damaged.
    """
    batch = Batch(device, len(infos))
    first = infos[0]
    for i, (info, payload, out) in enumerate(zip(infos, payloads, outs, strict=True)):
        job = batch.jobs[i]
        width = 2 if info.dtype.kind == "c" else 1
        n = kernels.units(info.codec, info.size * width, info.nbytes)
        job["src"], job["dst"], job["n"] = payload, out, n
        job["nbytes"] = info.payload_nbytes
        job["params"] = kernels.job_params(info.codec, info.dtype, info.shape, info.params)
        if info.checksum is not None:
            batch.sums[i]["src"], batch.sums[i]["nbytes"] = payload, info.payload_nbytes
    batch.add_scratch(first.codec)
    device.upload(batch.memory)
    if any(info.checksum is not None for info in infos):
        batch.launch(kernels.CHECKSUM, batch.sums, 3, "nbytes")
    for kernel in kernels.decoders(first.codec, first.dtype, first.params, adding, len(first.shape)):
        batch.launch(kernel, batch.jobs, 2)
    batch.finish()
    return batch


def add(
    device: Launcher,
    infos: Sequence[tuple[FrameInfo, FrameInfo]],
    payloads: Sequence[tuple[int, int]],
    frames: Sequence[int],
) -> tuple[Batch, Batch]:
    """Form the frames of sums of two frames each, all of one codec, dtype and parameters; see `encode`.

    Returns
    -------
    sums : Batch
        The sizes of the new frames, or a status: ``TOO_LARGE`` where they have to be decoded.
    terms : Batch
        For `problem`, the first terms and then the second ones.
    """
    n, first = len(infos), infos[0][0]
    width = 2 if first.dtype.kind == "c" else 1
    terms, sums = Batch(device, 2 * n), Batch(device, n)
    for i, pair in enumerate(infos):
        reals = pair[0].size * width
        for k, info in zip((i, n + i), pair, strict=True):
            payload = payloads[i][k >= n]
            terms.jobs[k]["src"], terms.jobs[k]["n"] = payload, reals
            terms.jobs[k]["nbytes"], terms.jobs[k]["params"] = info.payload_nbytes, info.params
            if info.checksum is not None:
                terms.sums[k]["src"], terms.sums[k]["nbytes"] = payload, info.payload_nbytes
        _sum_job(sums, i, pair, frames[i], (terms.job_address(i), terms.job_address(n + i)))
        sums.jobs[i]["n"] = reals
    sums.add_scratch(first.codec, 2)
    for batch in (terms, sums):
        device.upload(batch.memory)
    if any(info.checksum is not None for pair in infos for info in pair):
        terms.launch(kernels.CHECKSUM, terms.sums, 3, "nbytes")
    for kernel in kernels.adders(first.dtype):
        sums.launch(kernel, sums.jobs, 2)
    if first.checksum is not None:
        sums.launch(kernels.CHECKSUM, sums.sums, 3, "nbytes")
    sums.launch(kernels.SEAL, sums.seals, 4)
    terms.finish()
    sums.finish()
    return sums, terms


def _sum_job(
    sums: Batch, i: int, pair: tuple[FrameInfo, FrameInfo], frame: int, terms: tuple[int, int]
) -> None:
    a, b = pair
    header = header_bytes(a.codec, a.dtype, a.shape, a.params, a.bound + b.bound, a.checksum is not None)
    sums.headers[i, :HEADER_NBYTES] = np.frombuffer(header, np.uint8)
    payload = frame + HEADER_NBYTES
    sums.jobs[i]["src"], sums.jobs[i]["dst"], sums.jobs[i]["nbytes"] = terms[0], payload, a.nbytes
    sums.jobs[i]["params"] = a.params[0], terms[1]
    sums.sums[i]["src"], sums.sums[i]["nbytes"] = payload, a.nbytes
    sums.seals[i]["src"], sums.seals[i]["dst"] = sums.header_address(i), frame

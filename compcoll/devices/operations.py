"""Launches of a device for several frames at once: kernels and their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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
    device: Launcher,
    codec: Coder,
    blocks: Sequence[Block],
    frames: Sequence[int],
    carried: float | Sequence[float] = 0.0,
    checksum: bool = True,
    fallback: bool | Sequence[bool] = False,
    results: bool = True,
) -> Batch:
    """Encode blocks, alike in dtype and number of dimensions, into frames at 16-byte aligned addresses.

    Each has room for the header and the block's raw bytes rounded up to 8, and `SLACK`. After the device is
    done ``results`` has each frame's payload bytes, or a status where there is no frame. ``carried`` is the
    absolute error of the values, or that of each block's; ``fallback`` says where another codec was to be
    used. Without ``results`` nothing is fetched; what a codec whose frames have known sizes refuses then
    shows by a header without magic bytes, whose size is the status.
    """
    batch, first = Batch(device, len(blocks)), blocks[0]
    dtype = first.dtype
    shapes = [block.shape for block in blocks]
    refused = [fallback] * len(blocks) if isinstance(fallback, bool) else fallback
    params = {shape: codec.params(dtype, shape or (1,)) for shape in dict.fromkeys(shapes)}
    jobs, nbytes = batch.jobs, [block.nbytes for block in blocks]
    jobs["src"], jobs["nbytes"] = [block.address for block in blocks], nbytes
    jobs["dst"] = np.array(frames, np.uint64) + HEADER_NBYTES
    jobs["n"] = [kernels.units(codec.name, block.reals, n) for block, n in zip(blocks, nbytes, strict=True)]
    jobs["params"] = [kernels.job_params(codec.name, dtype, shape, params[shape]) for shape in shapes]
    kinds = [(shape, bool(other)) for shape, other in zip(shapes, refused, strict=True)]
    for kind in dict.fromkeys(kinds):
        header = _header(codec.name, dtype, kind[0], params[kind[0]], checksum, kind[1])
        rows = slice(None) if kinds.count(kind) == batch.n else [i for i, k in enumerate(kinds) if k == kind]
        batch.headers[rows] = header
    batch.carried[:] = carried
    batch.results["wanted"] = checksum
    if codec.name == "raw":  # whose kernel has nothing to find out
        batch.results["nbytes"] = jobs["nbytes"]
    batch.add_scratch(codec.name)
    device.upload(batch.memory)
    for kernel in kernels.encoders(codec.name, dtype, params[shapes[0]], len(first.shape)):
        batch.launch(kernel)
    if results:
        batch.finish()
    return batch


@lru_cache(256)
def _header(
    codec: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    params: tuple[int, int],
    checksum: bool,
    fallback: bool,
) -> np.ndarray:
    """A header of values that carry no error yet."""
    return np.frombuffer(header_bytes(codec, dtype, shape, params, 0.0, checksum, fallback), np.uint8)


def gather(
    device: Launcher, blocks: Sequence[Block], places: Sequence[Places], targets: Sequence[int]
) -> None:
    """Copy pieces of each block to an address of its own, side by side."""
    batch = Batch(device, len(blocks))
    jobs = batch.jobs
    jobs["src"], jobs["dst"] = [block.address for block in blocks], targets
    jobs["n"], jobs["params"] = [at.nbytes for at in places], [(at.piece, at.step) for at in places]
    device.upload(batch.memory)
    batch.launch(kernels.COPY)


def convert(
    device: Launcher, kernel: Kernel, sizes: Sequence[int], sources: Sequence[int], targets: Sequence[int]
) -> None:
    """Write elements of arrays as those of another type; see `compcoll.devices.kernels.converter`."""
    batch = Batch(device, len(sizes))
    batch.jobs["src"], batch.jobs["dst"], batch.jobs["n"] = sources, targets, sizes
    device.upload(batch.memory)
    batch.launch(kernel)


def largest(device: Launcher, blocks: Sequence[Block]) -> Batch:
    """Look for the largest magnitudes in blocks of one floating-point type; then `magnitude` has them."""
    batch = Batch(device, len(blocks))
    batch.jobs["src"] = [block.address for block in blocks]
    batch.jobs["n"] = [block.reals for block in blocks]
    device.upload(batch.memory)
    batch.launch(kernels.largest(blocks[0].dtype))
    batch.finish()
    return batch


def magnitude(batch: Batch, i: int, dtype: np.dtype) -> float:
    """The result of `largest` on a block; not finite where any value is not."""
    word = int(batch.results[i]["extent"][0])
    real = dtypes.real_dtype(dtype)
    return float(np.array([word], f"u{real.itemsize}").view(real)[0])


def decode(
    device: Launcher, infos: Sequence[FrameInfo], payloads: Sequence[int], outs: Sequence[int], adding=False
) -> Batch:
    """Decode payloads of one codec, dtype and parameters at these addresses; or add them to accumulators.

    The addresses are 16-byte aligned. After the device is done `problems` tells which were damaged.
    """
    batch, first = Batch(device, len(infos)), infos[0]
    jobs, width = batch.jobs, 2 if first.dtype.kind == "c" else 1
    jobs["src"], jobs["dst"] = payloads, outs
    jobs["n"] = [kernels.units(info.codec, info.size * width, info.nbytes) for info in infos]
    jobs["nbytes"] = [info.payload_nbytes for info in infos]
    jobs["params"] = [kernels.job_params(i.codec, i.dtype, i.shape, i.params) for i in infos]
    batch.results["wanted"] = [info.checksum is not None for info in infos]
    batch.add_scratch(first.codec)
    device.upload(batch.memory)
    own = kernels.sums_up(first.codec, first.dtype, first.params, len(first.shape))
    if not own and any(info.checksum is not None for info in infos):
        batch.launch(kernels.CHECKSUM, "nbytes")
    for kernel in kernels.decoders(first.codec, first.dtype, first.params, adding, len(first.shape)):
        batch.launch(kernel)
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
    both = [pair[0] for pair in infos] + [pair[1] for pair in infos]
    addresses = [pair[0] for pair in payloads] + [pair[1] for pair in payloads]
    terms.jobs["src"], terms.jobs["n"] = addresses, [info.size * width for info in both]
    terms.jobs["nbytes"], terms.jobs["params"] = [i.payload_nbytes for i in both], [i.params for i in both]
    terms.results["wanted"] = [info.checksum is not None for info in both]
    firsts, jobs = both[:n], sums.jobs
    jobs["src"] = [terms.job_address(i) for i in range(n)]
    jobs["dst"] = np.array(frames, np.uint64) + HEADER_NBYTES
    jobs["n"], jobs["nbytes"] = [a.size * width for a in firsts], [a.nbytes for a in firsts]
    jobs["params"] = [(a.params[0], terms.job_address(n + i)) for i, a in enumerate(firsts)]
    sums.results["wanted"] = [a.checksum is not None for a in firsts]
    for i, (a, _) in enumerate(infos):
        sums.headers[i] = _header(a.codec, a.dtype, a.shape, a.params, a.checksum is not None, False)
    sums.carried[:] = [a.bound + b.bound for a, b in infos]
    sums.add_scratch(first.codec, 2)
    for batch in (terms, sums):
        device.upload(batch.memory)
    if any(info.checksum is not None for info in both):
        terms.launch(kernels.CHECKSUM, "nbytes")
    for kernel in kernels.adders(first.dtype):
        sums.launch(kernel)
    terms.finish()
    sums.finish()
    return sums, terms

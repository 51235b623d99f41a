"""Encoding and decoding several frames in one go on a device: what is launched, and with which arguments.

It knows addresses, not arrays, so that the same code runs on a GPU (cuda.py) and, in tests, on the CPU's
executor of the same kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from compcoll import _cpu, dtypes
from compcoll.devices import kernels
from compcoll.devices.kernels import HEADER, JOB, RESULT, Kernel
from compcoll.frame import HEADER_NBYTES, FrameInfo, header_bytes

__all__ = ["Block", "Control", "Launcher", "add", "convert", "decode", "encode", "gather"]


@dataclass(frozen=True)
class Block:
    """A contiguous array on a device."""

    address: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.reals * dtypes.real_dtype(self.dtype).itemsize

    @property
    def reals(self) -> int:
        """Real numbers: two for a complex one."""
        return math.prod(self.shape) * (2 if self.dtype.kind == "c" else 1)


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


class Control(Protocol):
    """A batch's results, headers and jobs, in host memory and, after `Launcher.upload`, on the device."""

    host: np.ndarray
    address: int


class Launcher(Protocol):
    """A device, as far as a batch needs it. Everything happens in the order of the calls."""

    #: Blocks of threads of one launch that suffice to keep the device busy.
    max_grid: int

    def control(self, nbytes: int) -> Control:
        """Memory of a batch, zeroed on the host's side."""

    def upload(self, control: Control) -> None:
        """Copy the host's side to the device."""

    def scratch(self, nbytes: int) -> int:
        """Address of memory that is kept until all is done."""

    def zero(self, address: int, nbytes: int) -> None:
        """Zero memory of the device."""

    def download(self, control: Control, nbytes: int) -> None:
        """Start to copy the first bytes back."""

    def launch(self, kernel: Kernel, grid: tuple[int, int], jobs: int) -> None:
        """Start a kernel on the job array at this device address."""


class Batch:
    """Results, headers and jobs of ``n`` frames in one piece of memory, so that one copy brings them over."""

    def __init__(self, device: Launcher, n: int):
        self.device, self.n = device, n
        sizes = [n * RESULT.itemsize, n * HEADER.itemsize, *[n * JOB.itemsize] * 3]
        starts = [0, *np.cumsum(sizes).tolist()]
        self.memory = device.control(starts[-1])
        self._starts = starts
        self.results = self._part(0, RESULT)
        self.headers = self._part(1, HEADER).view(np.uint8).reshape(n, HEADER.itemsize)
        self.jobs, self.sums, self.seals = (self._part(i, JOB) for i in (2, 3, 4))
        for jobs in (self.jobs, self.sums, self.seals):
            jobs["result"] = self.memory.address + RESULT.itemsize * np.arange(n, dtype=np.uint64)

    def _part(self, i: int, dtype: np.dtype) -> np.ndarray:
        return self.memory.host[self._starts[i] : self._starts[i + 1]].view(dtype)

    def header_address(self, i: int) -> int:
        return self.memory.address + self._starts[1] + i * HEADER.itemsize

    def add_scratch(self, codec: str, words: int = 1) -> None:
        """Give each job the zeroed memory that its kernels need besides: `kernels.scratch_nbytes`."""
        sizes = [kernels.scratch_nbytes(codec, int(n), words) for n in self.jobs["n"]]
        if total := sum(sizes):
            address = self.device.scratch(total)
            self.device.zero(address, total)
            self.jobs["scratch"] = address + np.cumsum([0, *sizes[:-1]], dtype=np.uint64)

    def launch(self, kernel: Kernel, jobs: np.ndarray, part: int, size: str = "n") -> None:
        """Start a kernel on all of the batch's jobs of one kind."""
        grid = kernel.grid(int(jobs[size].max()), max(self.device.max_grid // self.n, 1))
        for i in range(0, self.n, kernels.MAX_JOBS):
            address = self.memory.address + self._starts[part] + i * JOB.itemsize
            self.device.launch(kernel, (grid, min(self.n - i, kernels.MAX_JOBS)), address)

    def finish(self) -> None:
        """Start to fetch the results."""
        self.device.download(self.memory, self.n * RESULT.itemsize)


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
    jobs = terms.memory.address + terms._starts[2]
    for i, pair in enumerate(infos):
        reals = pair[0].size * width
        for k, info in zip((i, n + i), pair, strict=True):
            payload = payloads[i][k >= n]
            terms.jobs[k]["src"], terms.jobs[k]["n"] = payload, reals
            terms.jobs[k]["nbytes"], terms.jobs[k]["params"] = info.payload_nbytes, info.params
            if info.checksum is not None:
                terms.sums[k]["src"], terms.sums[k]["nbytes"] = payload, info.payload_nbytes
        _sum_job(sums, i, pair, frames[i], (jobs + i * JOB.itemsize, jobs + (n + i) * JOB.itemsize))
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


def payload_nbytes(codec: str, dtype: np.dtype, size: int, params: tuple[int, int]) -> int:
    """Bytes that an encoder makes of so many elements; -1 where that depends on more than their number."""
    reals = size * (2 if dtype.kind == "c" else 1)
    real = dtypes.real_dtype(dtype).itemsize
    p0, p1 = params
    if codec == "raw":
        return reals * real if params == (0, 0) else -1
    if codec == "zfp":
        least, most = (12, 256) if real == 8 else (9, 128)
        return 8 * _ceil(_ceil(reals, 4) * p0, 64) if least <= p0 <= most and not p1 else -1
    block = p0 & 0xFFFFFFFF
    if codec in ("szp", "mpc", "float") or block not in (32, 64, 128, 256) or p0 >> 33:
        return -1
    return _ceil(reals, block) * max(real, 4) + (_ceil(reals, 2) if codec == "int4" else reals)


def size_is_sound(info: FrameInfo) -> bool:
    """Whether a payload has the size that its header's words ask for; the kernels rely on it."""
    if info.codec == "zfp" and len(info.shape) > 1:
        return _blocks_are_sound(info)
    if info.codec == "float":
        return info.params == (1, 0)
    if info.codec not in ("szp", "mpc"):
        return info.payload_nbytes == payload_nbytes(info.codec, info.dtype, info.size, info.params)
    # Their kernels look at the rest themselves.
    if info.codec == "szp":
        head = 4 * _ceil(_ceil(info.size * (2 if info.dtype.kind == "c" else 1), 32), 4)
    else:
        word = 8 if dtypes.real_dtype(info.dtype).itemsize == 8 else 4
        head = 8 + word * _ceil(_ceil(info.nbytes, word), 8 * word)
        if not 1 <= info.params[0] <= 32 or info.params[1]:
            return False
    return info.payload_nbytes >= head and info.nbytes < kernels.LIMIT


def _blocks_are_sound(info: FrameInfo) -> bool:
    """`size_is_sound` for zfp in 2 and 3 dimensions; its kernels count values in 32 bits."""
    shape = (*info.shape[:-1], info.shape[-1] * (2 if info.dtype.kind == "c" else 1))
    bits, unused = info.params
    word, header = (64, 12) if dtypes.real_dtype(info.dtype).itemsize == 8 else (32, 9)
    if not header <= bits <= word * 4 ** len(shape) or unused or math.prod(shape) >= kernels.LIMIT:
        return False
    return info.payload_nbytes == 8 * _ceil(math.prod(_ceil(n, 4) for n in shape) * bits, 64)


def _ceil(n: int, parts: int) -> int:
    return (n + parts - 1) // parts


def problem(info: FrameInfo, result: np.void) -> str | None:
    """What is wrong with a decoded frame, or None."""
    if info.checksum is not None and int(result["checksum"]) != info.checksum:
        return f"the payload's checksum is not {info.checksum:#010x}: the payload is damaged"
    if result["bad"]:
        return f"the {info.codec} payload of {info.payload_nbytes} bytes is not a stream of this codec"
    return None


#: What an encoder's result says where the values have to go another way.
REFUSALS = (_cpu.NONFINITE, _cpu.UNREPRESENTABLE)

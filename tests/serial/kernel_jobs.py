"""Single kernel launches for tests and measurements, with jobs as the engine makes them.

This module uses addresses, not arrays, so that the same code runs on a GPU (benchmarks/gpu_machine.py) and
in the executor (executor.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from compcoll.devices import kernels
from compcoll.devices.kernels import Kernel
from compcoll.frame import HEADER_NBYTES, FrameInfo, header_bytes

__all__ = [
    "CHECKSUM",
    "JOB",
    "RESULT",
    "Batch",
    "Block",
    "Launcher",
    "add",
    "decode",
    "encode",
    "grid",
    "problem",
]

#: struct Job and struct Result of csrc/cuda/job.cuh.
JOB = np.dtype(
    [
        ("src", "<u8"),
        ("dst", "<u8"),
        ("n", "<u8"),
        ("nbytes", "<u8"),
        ("params", "<u8", 2),
        ("result", "<u8"),
        ("scratch", "<u8"),
    ]
)
RESULT = np.dtype(
    [
        ("nbytes", "<i8"),
        ("bound", "<f8"),
        ("bad", "<u4"),
        ("checksum", "<u4"),
        ("extent", "<u8", 3),
        ("params", "<u8", 2),
        ("arrived", "<u4"),
        ("wanted", "<u4"),
        ("parts", "<u8"),
        ("header", "u1", 80),
    ]
)

#: Decoders that do not form checksums begin with this kernel.
CHECKSUM = kernels.decoders("raw", np.dtype("u1"), (0, 0), False)[0]
#: Smallest tile of a look-back, in units of the codec (csrc/cuda/scan.cuh).
_TILES = {"mpc": 1 << 14, "szp": 1 << 12, "float": 1 << 12}


@dataclass(frozen=True)
class Block:
    """A contiguous array on a device."""

    address: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Launcher(Protocol):
    """Device interface of a batch. Calls take effect in order."""

    #: Blocks of 128 threads that keep the device busy.
    max_grid: int

    def control(self, nbytes: int) -> Any:
        """Memory with a zeroed side ``host`` on the host and an ``address`` on the device."""

    def upload(self, control: Any) -> None:
        """Copy the host's side to the device."""

    def scratch(self, nbytes: int) -> int:
        """Address of memory that is kept until the batch is complete."""

    def zero(self, address: int, nbytes: int) -> None:
        """Zero memory of the device."""

    def download(self, control: Any, nbytes: int) -> None:
        """Start to copy the first bytes back."""

    def launch(self, kernel: Kernel, grid: tuple[int, int], jobs: int) -> None:
        """Start a kernel on the job array at this device address."""


class Batch:
    """Results and jobs of ``n`` frames in contiguous memory, which one copy uploads."""

    def __init__(self, device: Launcher, n: int):
        self.device, self.n = device, n
        self._first_job = n * RESULT.itemsize
        self.memory = device.control(self._first_job + n * JOB.itemsize)
        self.results = self.memory.host[: self._first_job].view(RESULT)
        self.jobs = self.memory.host[self._first_job :].view(JOB)
        self.jobs["result"] = np.arange(n, dtype=np.uint64) * RESULT.itemsize + self.memory.address

    def job_address(self, i: int) -> int:
        return self.memory.address + self._first_job + i * JOB.itemsize

    def upload(self, codec: str = "", words: int = 1) -> None:
        """Copy the batch to the device; give each job the zeroed scratch memory of the codec."""
        if tile := _TILES.get(codec):
            sizes = [8 + 8 * words * -(-n // tile) for n in self.jobs["n"].tolist()]
            address = self.device.scratch(sum(sizes))
            self.device.zero(address, sum(sizes))
            self.jobs["scratch"] = np.cumsum([address, *sizes[:-1]], dtype=np.uint64)
        self.device.upload(self.memory)

    def launch(self, kernel: Kernel) -> None:
        """Start a kernel on all jobs."""
        most = self.jobs["nbytes" if kernel == CHECKSUM else "n"].max()
        size = grid(kernel, int(most), max(self.device.max_grid // self.n, 1))
        self.device.launch(kernel, (size, self.n), self.job_address(0))

    def finish(self) -> None:
        """Start to fetch the results."""
        self.device.download(self.memory, self._first_job)


def grid(kernel: Kernel, size: int, most: int) -> int:
    """Number of thread blocks for a job of ``size``, limited to the threads of ``most`` blocks of 128."""
    return min(max(-(-size // kernel.per_cta), 1), max(most * 128 // kernel.threads, 1))


def encode(device: Launcher, codec: Any, blocks: Sequence[Block], frames: Sequence[int]) -> Batch:
    """Encode blocks, alike in dtype and number of dimensions, into frames at 16-byte aligned addresses.

    Each frame has room for the header, the block's raw bytes, and `SLACK`. Completed results hold each
    frame's payload bytes, or a status if there is no frame.
    """
    batch, dtype, ndim = Batch(device, len(blocks)), blocks[0].dtype, len(blocks[0].shape)
    for job, result, block, frame in zip(batch.jobs, batch.results, blocks, frames, strict=True):
        params = codec.params(dtype, block.shape)
        job["src"], job["dst"], job["nbytes"] = block.address, frame + HEADER_NBYTES, block.nbytes
        job["n"] = _units(codec.name, dtype, block.shape)
        job["params"] = _job_params(codec.name, dtype, block.shape, params)
        header = header_bytes(FrameInfo(codec.name, dtype, block.shape, params))
        result["header"], result["wanted"] = np.frombuffer(header, np.uint8), 1
        result["parts"] = dtype.kind == "c"
        if codec.name == "raw":  # the raw kernel computes no size
            result["nbytes"] = block.nbytes
    batch.upload(codec.name)
    for kernel in kernels.encoders(codec.name, dtype, codec.params(dtype, blocks[0].shape), ndim):
        batch.launch(kernel)
    batch.finish()
    return batch


def decode(
    device: Launcher, infos: Sequence[FrameInfo], payloads: Sequence[int], outs: Sequence[int], adding=False
) -> Batch:
    """Decode payloads of one codec, dtype and parameters; or add them to accumulators.

    The addresses are 16-byte aligned. On completion `problem` tells which payloads are damaged.
    """
    batch, first = Batch(device, len(infos)), infos[0]
    jobs = batch.jobs
    jobs["src"], jobs["dst"] = payloads, outs
    jobs["n"] = [_units(i.codec, i.dtype, i.shape) for i in infos]
    jobs["nbytes"] = [i.payload_nbytes for i in infos]
    jobs["params"] = [_job_params(i.codec, i.dtype, i.shape, i.params) for i in infos]
    batch.results["wanted"] = [i.checksum is not None for i in infos]
    batch.upload(first.codec)
    for kernel in kernels.decoders(first.codec, first.dtype, first.params, adding, len(first.shape) or 1):
        if kernel != CHECKSUM or batch.results["wanted"].any():
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
        Sizes of the new frames, or a status: ``TOO_LARGE`` if they have to be decoded.
    terms : Batch
        Results for `problem`: all first terms, then all second ones.
    """
    n, first = len(infos), infos[0][0]
    terms, sums = Batch(device, 2 * n), Batch(device, n)
    both = [a for a, _ in infos] + [b for _, b in infos]
    terms.jobs["src"] = [a for a, _ in payloads] + [b for _, b in payloads]
    terms.jobs["n"] = [_units(i.codec, i.dtype, i.shape) for i in both]
    terms.jobs["nbytes"], terms.jobs["params"] = [i.payload_nbytes for i in both], [i.params for i in both]
    terms.results["wanted"] = [i.checksum is not None for i in both]
    jobs = sums.jobs
    jobs["src"] = [terms.job_address(i) for i in range(n)]
    jobs["dst"] = np.array(frames, np.uint64) + HEADER_NBYTES
    jobs["n"], jobs["nbytes"] = terms.jobs["n"][:n], [a.nbytes for a, _ in infos]
    jobs["params"] = [(a.params[0], terms.job_address(n + i)) for i, (a, _) in enumerate(infos)]
    sums.results["wanted"], sums.results["parts"] = terms.results["wanted"][:n], first.dtype.kind == "c"
    for result, (a, b) in zip(sums.results, infos, strict=True):
        checksum = None if a.checksum is None else 0
        header = header_bytes(replace(a, payload_nbytes=0, bound=a.bound + b.bound, checksum=checksum))
        result["header"] = np.frombuffer(header, np.uint8)
    terms.upload()
    sums.upload(first.codec, 2)
    if terms.results["wanted"].any():
        terms.launch(CHECKSUM)
    for kernel in kernels.adders(first.codec, first.dtype):
        sums.launch(kernel)
    terms.finish()
    sums.finish()
    return sums, terms


def problem(info: FrameInfo, result: np.void) -> str | None:
    """The fault of a decoded frame, or None."""
    if info.checksum is not None and int(result["checksum"]) != info.checksum:
        return f"the payload's checksum is not {info.checksum:#010x}: the payload is damaged"
    if result["bad"]:
        return f"the {info.codec} payload of {info.payload_nbytes} bytes is not a stream of this codec"
    return None


def _units(codec: str, dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Size of an array in the units of a codec's kernels: bytes or real numbers."""
    size = math.prod(shape)
    return size * (dtype.itemsize if codec in ("mpc", "raw") else 2 if dtype.kind == "c" else 1)


def _job_params(
    codec: str, dtype: np.dtype, shape: tuple[int, ...], params: tuple[int, int]
) -> tuple[int, int]:
    """The words of a job: those of the header, and for zfp in 2 and 3 dimensions the two fastest extents."""
    if codec != "zfp" or len(shape) < 2:
        return params
    return params[0], shape[-1] * (2 if dtype.kind == "c" else 1) | shape[-2] << 32

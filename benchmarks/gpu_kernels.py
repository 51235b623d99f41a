"""Parts of `gpu_check`, each a process of its own: ``python -m benchmarks.gpu_kernels PART [CODEC TYPE]``.

Each row is a line of JSON and is printed at once.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.gpu_check import SPECS, TYPES
from benchmarks.gpu_machine import FAKE, Machine, kernel_jobs, open_machine, size_of
from compcoll import codec, decode, frame
from compcoll.codecs.base import SLACK
from compcoll.core import dtypes
from compcoll.devices import kernels

__all__ = ["DTYPES", "PARTS", "SPECS", "main"]

DTYPES = {name: dtypes.BFLOAT16 if name == "bfloat16" else np.dtype(name) for name in TYPES}
#: Bytes of a differing frame to keep, around the first difference.
SAVED = 1 << 20
SMALL = (1, 517, 20_003, 1 << 20)


def report(what: str, status: str = "ok", **more: Any) -> None:
    """Print a row."""
    print(json.dumps({"what": what, "status": status, **more}), flush=True)


def data(dtype: np.dtype, nbytes: int) -> np.ndarray:
    """A wave with a little noise; its period is larger than a cache."""
    n = nbytes // dtype.itemsize
    part = min(n, 1 << 24)
    noise = np.random.default_rng(0).standard_normal(part, np.float32)
    wave = np.sin(np.arange(part) / 50) + 1e-3 * noise
    return np.resize(wave.astype(dtype), n)


def device(machine: Machine) -> None:
    """Report the device and the speed of its copies."""
    report("device", **machine.about())
    n, device = machine.nbytes, machine.device
    source, target, host = device.empty(n), device.empty(n), device.host(n)
    host[:] = 1
    with device.queue() as queue:
        for name, moved, call in (
            ("copy to the device", n, lambda: queue.to_device(source.address, host)),
            ("copy to the host", n, lambda: queue.to_host(host, source.address)),
            (
                "copy on the device, read + written",
                2 * n,
                lambda: queue.copy(target.address, source.address, n),
            ),
        ):
            report(name, **{"GB/s": moved / machine.seconds(queue, call) / 1e9})
    with device.queue() as one, device.queue() as other:
        back = device.host(n)

        def both() -> None:
            one.to_device(source.address, host)
            other.to_host(back, target.address)
            one.stream.synchronize(), other.stream.synchronize()

        report("copies both ways at once", **{"GB/s": 2 * n / machine.wall(both) / 1e9})
    begin = time.perf_counter()
    device.host(n + 1)  # a size that the allocator cannot serve from freed memory
    report("pinned memory", **{"GB/s": n / (time.perf_counter() - begin) / 1e9})
    batch = kernel_jobs.Batch(device_queue := device.queue(), 1)
    batch.jobs["src"], batch.jobs["nbytes"], batch.results["wanted"] = source.address, n, 1
    with device_queue as queue:
        batch.upload()
        took = machine.seconds(queue, lambda: batch.launch(kernel_jobs.CHECKSUM))
    report("checksum", **{"GB/s": n / took / 1e9})


def load(machine: Machine) -> None:
    """Report the seconds until the kernels of each module can be launched."""
    found = {kernel.module: kernel for kernel in kernels.all_kernels()}
    for kernel in (found[name] for name in kernels.MODULES):
        begin = time.perf_counter()
        machine.device.function(kernel)
        report(kernel.module, s=time.perf_counter() - begin)


class Pair:
    """An array on the device with memory for its frame, and the batches that encode and decode it."""

    def __init__(self, machine: Machine, spec: str, values: np.ndarray):
        self.device, self.codec, self.values = machine.device, codec(spec), values
        self.host = self.codec.encode(values)
        self.block = machine.array(values)
        self.frame = self.device.empty(frame.HEADER_NBYTES + values.nbytes + SLACK)

    def encode(self, queue: Any) -> kernel_jobs.Batch:
        """Start to encode; the batch keeps all memory that the kernels need."""
        block = kernel_jobs.Block(self.block.address, self.block.dtype, (self.block.size,))
        return kernel_jobs.encode(queue, self.codec, [block], [self.frame.address])

    def decode(self, queue: Any, out: int) -> kernel_jobs.Batch:
        """Start to decode."""
        return kernel_jobs.decode(queue, [self.info], [self.frame.address + frame.HEADER_NBYTES], [out])

    def compare(self, ctas: int | None = None) -> dict[str, Any]:
        """How the frame or its decoded values differ from the CPU's, with bytes of both; empty if equal.

        ``ctas``: limit on the number of thread blocks.
        """
        made = self._run(self.encode, ctas)
        status = int(made.results[0]["nbytes"])
        if status < 0:
            refused = frame.inspect(self.host).codec != self.codec.name
            return {"why": f"status {status}" if refused else f"refused ({status}), and the CPU does not"}
        mine = self.device.fetch(self.frame[: frame.HEADER_NBYTES + status])
        if mine.size != self.host.size or not np.array_equal(mine, self.host):
            return {
                "why": "the frame is not the CPU's",
                **difference(mine, self.host),
                "header": headers(mine, self.host),
            }
        self.info = frame.inspect(mine)
        out, expected = self.device.empty(self.values.nbytes), np.empty_like(self.values)
        made = self._run(lambda queue: self.decode(queue, out.address), ctas)
        if why := kernel_jobs.problem(self.info, made.results[0]):
            return {"why": why}
        decode(self.host, expected)
        found, bytes_ = self.device.fetch(out), expected.view(np.uint8)
        return (
            {}
            if np.array_equal(found, bytes_)
            else {"why": "the values are not the CPU's", **difference(found, bytes_)}
        )

    def _run(self, start: Callable[[Any], kernel_jobs.Batch], ctas: int | None) -> kernel_jobs.Batch:
        with self.device.queue() as queue:
            queue.max_grid = ctas or queue.max_grid
            made = start(queue)
            queue.wait()
        return made


def difference(mine: np.ndarray, host: np.ndarray) -> dict[str, Any]:
    """Position and number of bytes that differ between two arrays, and the bytes around the first one."""
    n = min(mine.size, host.size)
    wrong = np.flatnonzero(mine[:n] != host[:n])
    first = int(wrong[0]) if wrong.size else n
    begin = 0 if max(mine.size, host.size) <= SAVED else max(first - SAVED // 2, 0)
    saved = {"gpu": mine[begin : begin + SAVED], "cpu": host[begin : begin + SAVED]}
    return {
        "first byte": first,
        "last byte": int(wrong[-1]) if wrong.size else n,
        "bytes": int(wrong.size),
        "of": f"{mine.size} and {host.size}",
        "saved from": begin,
        "frames": {name: base64.b64encode(part.tobytes()).decode() for name, part in saved.items()},
    }


def headers(mine: np.ndarray, host: np.ndarray) -> str:
    """The header fields that differ, with the GPU's and the CPU's values."""
    try:
        fields = asdict(frame.inspect(mine)), asdict(frame.inspect(host))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ", ".join(f"{k} {v} and {fields[1][k]}" for k, v in fields[0].items() if v != fields[1][k])


def _checked(pair: Pair, what: str, **more: Any) -> bool:
    """Report whether a pair's bytes are the CPU's; if not, repeat three times and with one thread block."""
    found = pair.compare()
    status = "ok" if not found else "refused" if found["why"].startswith("status") else "failed"
    if status == "failed":
        again = [pair.compare() for _ in range(3)]
        found["again"] = ", ".join(
            "right" if not one else "the same" if one == found else "otherwise" for one in again
        )
        found["one block of threads"] = "right" if not pair.compare(1) else "wrong"
    report(what, status, **more, **found)
    return status == "ok"


def launch(machine: Machine, spec: str, dtype: np.dtype) -> None:
    """Launch each kernel once and compare its bytes with the CPU's."""
    for n in SMALL if machine.nbytes > 1 << 20 else SMALL[:2]:
        _checked(Pair(machine, spec, data(dtype, n * dtype.itemsize)), f"{spec} {dtype}, {n} values")


def times(machine: Machine, spec: str, dtype: np.dtype) -> None:
    """Compare a pair's bytes with the CPU's, then report GB/s of prepared batches launched repeatedly."""
    values = data(dtype, machine.nbytes)
    pair, what = Pair(machine, spec, values), f"{spec} {dtype}"
    if not _checked(pair, f"{what}, {values.nbytes} bytes"):
        return
    row: dict[str, Any] = {"ratio": values.nbytes / pair.info.payload_nbytes}
    out = pair.device.empty(values.nbytes)
    with machine.alone():
        report(
            what, **row, **_speed(machine, values.nbytes, pair.encode, lambda q: pair.decode(q, out.address))
        )
        if dtype != np.float32:
            return
        for chunk in machine.chunks:
            batch = Chunks(pair, chunk, machine.batch_nbytes)
            report(
                f"{what}, {batch.n} chunks of {size_of(chunk)}",
                **_speed(machine, batch.nbytes, batch.encode, batch.decode),
            )


def _speed(
    machine: Machine, nbytes: int, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for verb, start in (("encode", encode), ("decode", decode)):
        with machine.device.queue() as queue:
            again = Again(queue)
            start(again)
            took = machine.seconds(queue, again.repeat)
        row[f"{verb} GB/s"], row[f"{verb} launches"] = nbytes / took / 1e9, again.launches
    return row


class Chunks:
    """Part of a pair's array, cut into chunks that are coded in one batch."""

    def __init__(self, pair: Pair, nbytes: int, most: int):
        self.n = max(min(most, pair.values.nbytes) // nbytes, 1)
        self.nbytes, size = self.n * nbytes, nbytes // pair.values.itemsize
        self._codec, device = pair.codec, pair.device
        self._blocks = [
            kernel_jobs.Block(pair.block.address + i * nbytes, pair.block.dtype, (size,))
            for i in range(self.n)
        ]
        room = -(-(frame.HEADER_NBYTES + nbytes + SLACK) // 128) * 128
        self._memory, self._out = device.empty(self.n * room), device.empty(self.nbytes)
        self._frames = [self._memory.address + i * room for i in range(self.n)]
        self._outs = [self._out.address + i * nbytes for i in range(self.n)]
        with device.queue() as queue:
            self.encode(queue)
            queue.wait()
        heads = device.fetch(self._memory).reshape(self.n, room)[:, : frame.HEADER_NBYTES]
        self._infos = [frame.inspect(head.copy(), frame.HEADER_NBYTES + nbytes + SLACK) for head in heads]

    def encode(self, queue: Any) -> kernel_jobs.Batch:
        """Start to encode."""
        return kernel_jobs.encode(queue, self._codec, self._blocks, self._frames)

    def decode(self, queue: Any) -> kernel_jobs.Batch:
        """Start to decode."""
        return kernel_jobs.decode(
            queue, self._infos, [at + frame.HEADER_NBYTES for at in self._frames], self._outs
        )


class Again:
    """A queue that records its calls, so that they can be repeated without preparation."""

    def __init__(self, queue: Any):
        self._queue, self.device, self.max_grid = queue, queue.device, queue.max_grid
        self._control, self._scratch, self.control, self.scratch = None, None, queue.control, queue.scratch
        self._calls: list[Callable[[], Any]] = []
        self.launches = 0

    def upload(self, control: Any) -> None:
        self._note(lambda: self._queue.upload(control))

    def zero(self, address: int, nbytes: int) -> None:
        self._note(lambda: self._queue.zero(address, nbytes))

    def launch(self, kernel: Any, grid: tuple[int, int], jobs: int) -> None:
        self.launches += 1
        self._note(lambda: self._queue.launch(kernel, grid, jobs))

    def download(self, control: Any, nbytes: int) -> None:
        """Do nothing: a download would overwrite the host's copy, which `repeat` uploads again."""

    def _note(self, call: Callable[[], Any]) -> None:
        self._calls.append(call)
        call()

    def repeat(self) -> None:
        """Make all recorded calls again."""
        for call in self._calls:
            call()


def large(machine: Machine, spec: str, dtype: np.dtype) -> None:
    """Compare the bytes of an array just below the largest size that kernels take."""
    values = data(dtype, machine.large_nbytes)
    _checked(Pair(machine, spec, values), f"{spec} {dtype}, {values.nbytes} bytes")


def host(machine: Machine) -> None:
    """Report the host time per chunk that the engine's steps take, including the driver's calls."""
    from benchmarks import gpu_host

    fake = machine.nbytes < gpu_host.NBYTES
    nbytes, batches = (8 << 10, (1, 4)) if fake else (gpu_host.NBYTES, gpu_host.BATCHES)
    for n in batches:
        blocks = [machine.array(data(np.dtype("f4"), n * nbytes)) for _ in range(2)]
        for spec in gpu_host.SPECS:
            found = gpu_host.stages(spec, blocks, nbytes, 4 * machine.repeats)
            us = {f"{verb} us a chunk": 1e6 * seconds / n for verb, seconds in found.items()}
            report(f"{spec}, {n} chunks of {nbytes >> 10} KiB", **us)


def small(machine: Machine) -> None:
    """Run every codec and type once, for the sanitizer."""
    machine.without_pool()
    for dtype in DTYPES.values():
        for n in (1, 517, 20_003):
            array = machine.array(data(dtype, n * dtype.itemsize))
            for spec in (*SPECS, "lossless"):
                decode(codec(spec).encode(array), machine.array(np.zeros(n, dtype)))
    report("all codecs and types")


PARTS: dict[str, Callable[..., None]] = {
    part.__name__: part for part in (device, load, launch, times, large, host, small)
}


def main(arguments: list[str] | None = None) -> int:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("codec", nargs="?")
    parser.add_argument("type", nargs="?")
    parser.add_argument(FAKE, action="store_true")
    options = parser.parse_args(arguments)
    machine = open_machine(options.fake)
    if options.codec is None:
        PARTS[options.part](machine)
    else:
        PARTS[options.part](machine, options.codec, DTYPES[options.type])
    return 0


if __name__ == "__main__":
    sys.exit(main())

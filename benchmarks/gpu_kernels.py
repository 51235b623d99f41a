"""Parts of `gpu_check`, each a process of its own: ``python -m benchmarks.gpu_kernels PART [CODEC TYPE]``.

What is found is printed as it is found, a line of JSON for each row.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu_machine import FAKE, Machine, open_machine
from compcoll import codec, frame
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode_into
from compcoll.core import dtypes
from compcoll.devices import checks, kernels, operations
from compcoll.devices.batch import Batch, Block

__all__ = ["DTYPES", "PARTS", "SPECS", "main"]

SPECS = (
    "zfp:rate=8",
    "raw",
    "bfp:bits=7",
    "int8",
    "zfp:rate=16",
    "int4",
    "fp8",
    "zfp:rate=12",
    "szp:abs=1e-3",
    "mpc",
    "float",
)
DTYPES = {dtype.name: dtype for dtype in map(np.dtype, ("float32", "float64", "float16"))}
if dtypes.BFLOAT16 is not None:
    DTYPES["bfloat16"] = dtypes.BFLOAT16
NVCOMP = ("ANS", "Bitcomp", "Cascaded", "LZ4")
SMALL = (1, 517, 20_003, 1 << 20)


def report(what: str, status: str = "ok", **more: Any) -> None:
    """Print a row."""
    print(json.dumps({"what": what, "status": status, **more}), flush=True)


def data(dtype: np.dtype, nbytes: int) -> np.ndarray:
    """A wave with a little noise, which repeats only after more than a cache holds."""
    n = nbytes // dtype.itemsize
    part = min(n, 1 << 24)
    noise = np.random.default_rng(0).standard_normal(part, np.float32)
    wave = np.sin(np.arange(part) / 50) + 1e-3 * noise
    return np.resize(wave.astype(dtype), n)


def device(machine: Machine) -> None:
    """The device, and the speed of its copies."""
    report("device", **machine.about())
    n, device = machine.nbytes, machine.device
    source, target, host = device.empty(n), device.empty(n), device.host(n)
    host[:] = 1
    with device.queue() as queue:
        for name, moved, call in (
            ("copy to the device", n, lambda: queue.to_device(source.address, host)),
            ("copy to the host", n, lambda: queue.to_host(host, source.address)),
            ("copy on the device, read + written", 2 * n,
             lambda: queue.copy(target.address, source.address, n)),
        ):  # fmt: skip
            report(name, **{"GB/s": moved / machine.seconds(queue, call) / 1e9})


def load(machine: Machine) -> None:
    """Seconds until the kernels of a module can be launched."""
    for kernel in {kernel.module: kernel for kernel in kernels.all_kernels()}.values():
        begin = time.perf_counter()
        with machine.cupy.cuda.Device(machine.device.index):
            _ = machine.device.function(kernel).kernel
        report(kernel.module, s=time.perf_counter() - begin)


class Pair:
    """An array on the device, room for its frame, and the batches that encode and decode it."""

    def __init__(self, machine: Machine, spec: str, values: np.ndarray):
        self.device, self.codec, self.values = machine.device, codec(spec), values
        self.block = machine.array(values)
        self.frame = self.device.empty(frame.HEADER_NBYTES + values.nbytes + SLACK)

    def encode(self, queue: Any) -> Batch:
        """Start to encode; all that later launches need is there afterwards."""
        block = Block(self.block.address, self.block.dtype, (self.block.size,))
        return operations.encode(queue, self.codec, [block], [self.frame.address])

    def compare(self) -> str:
        """Differences of the frame and its values from the CPU's; nothing, or a refusal's status."""
        with self.device.queue() as queue:
            made = self.encode(queue)
            queue.wait()
        status = int(made.results[0]["nbytes"])
        # Whatever codec the CPU goes on to where this one refuses, has not been asked for.
        host = self.codec.encode(self.values)
        if status < 0:
            return (
                f"status {status}"
                if frame.inspect(host).codec != self.codec.name
                else "refused, and the CPU does not"
            )
        mine = np.asarray(self.frame[: frame.HEADER_NBYTES + status])
        if mine.size != host.size or not np.array_equal(mine, host):
            return "the frame is not the CPU's"
        self.info = frame.inspect(mine)
        out, expected = self.device.empty(self.values.nbytes), np.empty_like(self.values)
        with self.device.queue() as queue:
            made = self.decode(queue, out.address)
            queue.wait()
        if problem := checks.problem(self.info, made.results[0]):
            return problem
        decode_into(host, self.info, expected)
        return (
            "" if np.array_equal(np.asarray(out), expected.view(np.uint8)) else "the values are not the CPU's"
        )

    def decode(self, queue: Any, out: int) -> Batch:
        """Start to decode."""
        return operations.decode(queue, [self.info], [self.frame.address + frame.HEADER_NBYTES], [out])


def _checked(pair: Pair, what: str, **more: Any) -> bool:
    problem = pair.compare()
    status = "ok" if not problem else "refused" if problem.startswith("status") else "failed"
    report(what, status, **more, **({"why": problem} if problem else {}))
    return status == "ok"


def launch(machine: Machine, spec: str, dtype: np.dtype) -> None:
    """One launch of each kernel, and its bytes beside the CPU's."""
    for n in SMALL if machine.nbytes > 1 << 20 else SMALL[:2]:
        _checked(Pair(machine, spec, data(dtype, n * dtype.itemsize)), f"{spec} {dtype}, {n} values")


def times(machine: Machine, spec: str, dtype: np.dtype) -> None:
    """GB/s of the array, prepared batches launched again and again; its bytes are compared before."""
    values = data(dtype, machine.nbytes)
    pair, what = Pair(machine, spec, values), f"{spec} {dtype}"
    if not _checked(pair, f"{what}, {values.nbytes} bytes"):
        return
    device, out = pair.device, pair.device.empty(values.nbytes)
    row: dict[str, Any] = {"ratio": values.nbytes / pair.info.payload_nbytes}
    for verb, start in (("encode", pair.encode), ("decode", lambda queue: pair.decode(queue, out.address))):
        with device.queue() as queue:
            again = Again(queue)
            start(again)
            took = machine.seconds(queue, again.repeat)
        row[f"{verb} GB/s"], row[f"{verb} launches"] = values.nbytes / took / 1e9, again.launches
    report(what, **row)


class Again:
    """A queue that notes what it is asked for, so that it can be done again without any preparation."""

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
        """Results stay where they are: the host's side is what `upload` brings again."""

    def _note(self, call: Callable[[], Any]) -> None:
        self._calls.append(call)
        call()

    def repeat(self) -> None:
        """All of it once more."""
        for call in self._calls:
            call()


def large(machine: Machine, spec: str, dtype: np.dtype) -> None:
    """Bytes just below the most that kernels take."""
    values = data(dtype, machine.large_nbytes)
    _checked(Pair(machine, spec, values), f"{spec} {dtype}, {values.nbytes} bytes")


def host(machine: Machine) -> None:
    """Host time for each chunk of a batch, CUDA's calls included."""
    from benchmarks import gpu_host
    from compcoll.engine.device.work import CudaWork

    nbytes = gpu_host.NBYTES if machine.nbytes > 1 << 20 else 8 << 10
    for n in gpu_host.BATCHES:
        blocks = [machine.array(data(np.dtype("f4"), nbytes)) for _ in range(n)]
        work = CudaWork(codec(gpu_host.SPEC))
        work.batcher.first_nbytes = 1 << 40
        begun: dict[str, float] = {}

        def run(verb: str, ask: Callable[[], list[Any]], work: Any = work, begun: Any = begun) -> list[Any]:
            begin = time.perf_counter()
            asked = ask()
            work.batcher.launch()
            begun[verb] = min(begun.get(verb, 1e9), time.perf_counter() - begin)
            while not all(future.done for future in asked):
                pass
            return [future.result() for future in asked]

        for _ in range(20):
            frames = run("encode", lambda b=blocks, w=work: [w.encode(x, 0.0) for x in b])
            run(
                "decode",
                lambda f=frames, b=blocks, w=work: [w.decode(x, y) for x, y in zip(f, b, strict=True)],
            )
        report(
            f"{n} chunks of {nbytes >> 10} KiB", **{f"{k} us a chunk": 1e6 * v / n for k, v in begun.items()}
        )


def nvcomp(machine: Machine) -> None:
    """NVIDIA's own codecs on the same data, where their package is installed."""
    try:
        import cupy
        from nvidia import nvcomp as theirs
    except ImportError as error:
        report("nvCOMP", "missing", why=str(error))
        return
    values = cupy.asarray(data(np.dtype("f4"), machine.nbytes).view(np.uint8))
    for algorithm in NVCOMP:
        try:
            chosen, array = theirs.Codec(algorithm=algorithm), theirs.as_array(values)
            made = chosen.encode(array)

            def ended(call: Callable[[], Any]) -> Callable[[], None]:
                return lambda: (call(), cupy.cuda.Device().synchronize())[1]  # its streams are its own

            encode = machine.wall(ended(lambda c=chosen, a=array: c.encode(a)))
            decode = machine.wall(ended(lambda c=chosen, m=made: c.decode(m)))
            report(
                f"nvCOMP {algorithm} float32", ratio=values.nbytes / made.buffer_size,
                **{"encode GB/s": values.nbytes / encode / 1e9, "decode GB/s": values.nbytes / decode / 1e9},
            )  # fmt: skip
        except Exception as error:  # its versions differ in what they offer
            report(f"nvCOMP {algorithm}", "missing", why=f"{type(error).__name__}: {error}")


def small(machine: Machine) -> None:
    """Every codec and type once, for the sanitizer."""
    from compcoll import decode

    machine.without_pool()
    for dtype in DTYPES.values():
        for n in (1, 517, 20_003):
            array = machine.array(data(dtype, n * dtype.itemsize))
            for spec in (*SPECS, "lossless"):
                decode(codec(spec).encode(array), machine.array(np.zeros(n, dtype)))
    report("all codecs and types")


PARTS: dict[str, Callable[..., None]] = {
    part.__name__: part for part in (device, load, launch, times, large, host, nvcomp, small)
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

"""Kernels against the device's own copy, and NVIDIA's codecs on the same data; for `gpu_check`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu_machine import FAKE, Machine, open_machine
from compcoll import codec, frame
from compcoll.codecs.base import SLACK
from compcoll.core import dtypes
from compcoll.devices import kernels, operations
from compcoll.devices.batch import Batch, Block

__all__ = ["kernel_speeds", "nvcomp_speeds", "small"]

SPECS = ("zfp:rate=8", "zfp:rate=16", "zfp:rate=12", "mpc", "float", "szp:abs=1e-3", "int8", "int4", "fp8")
DTYPES = [np.dtype(d) for d in ("float32", "float64", "float16")]
if dtypes.BFLOAT16 is not None:
    DTYPES.append(dtypes.BFLOAT16)
NVCOMP = ("ANS", "Bitcomp", "Cascaded", "LZ4")


def data(dtype: np.dtype, nbytes: int) -> np.ndarray:
    """A wave with a little noise, which repeats only after more than a cache holds."""
    n = nbytes // dtype.itemsize
    part = min(n, 1 << 24)
    noise = np.random.default_rng(0).standard_normal(part, np.float32)
    wave = np.sin(np.arange(part) / 50) + 1e-3 * noise
    return np.resize(wave.astype(dtype), n)


def kernel_speeds(machine: Machine, seconds: float) -> list[dict[str, Any]]:
    """The device's copy, then every codec and type for as long as there is time."""
    device, nbytes, end = machine.device, machine.kernel_nbytes, time.monotonic() + seconds
    target = device.empty(frame.HEADER_NBYTES + nbytes + SLACK)
    source = device.empty(nbytes)
    with device.queue() as queue:
        took = machine.seconds(queue, lambda: queue.copy(target.address, source.address, nbytes))
    copy = 2 * nbytes / took
    rows: list[dict[str, Any]] = [{"what": "device copy, read + written", "GB/s": copy / 1e9}]
    for dtype in DTYPES:
        source = machine.array(data(dtype, nbytes))
        block = Block(source.address, dtype, (source.size,))
        for spec in SPECS:
            what = f"{spec} {dtype}"
            if time.monotonic() > end:
                rows.append({"what": what, "error": "no time left"})
                continue
            try:
                rows.append({"what": what, **_codec_speed(machine, spec, block, target, copy)})
            except Exception as error:
                rows.append({"what": what, "error": f"{type(error).__name__}: {error}"})
    return rows


def _codec_speed(machine: Machine, spec: str, block: Block, target: Any, copy: float) -> dict[str, Any]:
    """GB/s of uncompressed data, arguments' copies included; and as a share of what a copy moves."""
    device, chosen = machine.device, codec(spec)
    if not kernels.encodes(chosen.name, block.dtype, block.shape):
        return {"error": "no kernel"}
    made: list[Batch] = []

    def encode_once() -> None:
        made[:] = [operations.encode(queue, chosen, [block], [target.address])]

    with device.queue() as queue:
        encode = machine.seconds(queue, encode_once)
        queue.wait()
    if (status := int(made[0].results[0]["nbytes"])) < 0:
        return {"error": f"the codec refuses these values, status {status}"}
    info = frame.inspect(np.asarray(target[: frame.HEADER_NBYTES]), target.size)
    payload, out = target.address + frame.HEADER_NBYTES, device.empty(block.nbytes)
    with device.queue() as queue:
        decode = machine.seconds(queue, lambda: operations.decode(queue, [info], [payload], [out.address]))
    moved = block.nbytes + 2 * info.payload_nbytes  # the checksum reads the payload again
    return {
        "ratio": block.nbytes / info.payload_nbytes,
        "encode GB/s": block.nbytes / encode / 1e9, "decode GB/s": block.nbytes / decode / 1e9,
        "encode of copy": moved / encode / copy, "decode of copy": moved / decode / copy,
    }  # fmt: skip


def nvcomp_speeds(machine: Machine, seconds: float) -> list[dict[str, Any]]:
    """NVIDIA's own codecs on the same data, where their package is installed."""
    try:
        import cupy
        from nvidia import nvcomp
    except ImportError as error:
        return [{"what": "nvCOMP", "skipped": str(error)}]
    end, rows = time.monotonic() + seconds, []
    for dtype in (np.dtype("f4"), np.dtype("f2")):
        values = cupy.asarray(data(dtype, machine.kernel_nbytes).view(np.uint8))
        for algorithm in NVCOMP:
            row: dict[str, Any] = {"what": f"nvCOMP {algorithm} {dtype}"}
            rows.append(row)
            if time.monotonic() > end:
                row["error"] = "no time left"
                continue
            try:
                row.update(_nvcomp_speed(nvcomp, cupy, algorithm, values))
            except Exception as error:  # its versions differ in what they offer
                row["error"] = f"{type(error).__name__}: {error}"
    return rows


def _nvcomp_speed(nvcomp: Any, cupy: Any, algorithm: str, values: Any) -> dict[str, Any]:
    chosen, array = nvcomp.Codec(algorithm=algorithm), nvcomp.as_array(values)

    def best(call: Callable[[], Any]) -> float:
        call()
        times = []
        for _ in range(5):
            cupy.cuda.get_current_stream().synchronize()
            begin = time.perf_counter()
            call()
            cupy.cuda.Device().synchronize()  # its streams are its own
            times.append(time.perf_counter() - begin)
        return min(times)

    frame_ = chosen.encode(array)
    encode, decode = best(lambda: chosen.encode(array)), best(lambda: chosen.decode(frame_))
    nbytes = values.nbytes
    return {
        "ratio": nbytes / frame_.buffer_size,
        "encode GB/s": nbytes / encode / 1e9, "decode GB/s": nbytes / decode / 1e9,
    }  # fmt: skip


def small(machine: Machine) -> None:
    """Every codec and type once, for the sanitizer."""
    from compcoll import decode

    machine.without_pool()
    for dtype in DTYPES:
        for n in (1, 517, 20_003):
            array = machine.array(data(dtype, n * dtype.itemsize))
            for spec in (*SPECS, "lossless", "raw"):
                decode(codec(spec).encode(array), machine.array(np.zeros(n, dtype)))


if __name__ == "__main__":
    small(open_machine(FAKE in sys.argv))

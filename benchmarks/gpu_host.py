"""Host time per chunk of the device path: what Python does around a GPU, with the GPU left out.

CUDA's calls are stubs that return at once, so what is left is the time of a rank's own thread: the more of it
a chunk takes, the fewer bytes a second a rank can give its GPU to do. Frames are real ones, made on the host
beforehand. ``python -m benchmarks.gpu_host`` needs no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.osu.machine import machine

__all__ = ["measure", "stubs"]

BATCHES = (1, 4, 16, 64)
SPEC, NBYTES = "bfp:bits=7", 512 << 10


class _Context:
    """A device, a stream or an event of which nothing is asked."""

    ptr, done, id = 0, True, 0

    def __init__(self, *args: Any, **more: Any):
        pass

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Calls:
    """The number of calls of each of CUDA's functions."""

    def __init__(self) -> None:
        self.total = 0
        #: The header that copies of frames of this size bring to each.
        self.header, self.frame_nbytes = b"", 0

    def count(self, *args: Any) -> int:
        self.total += 1
        return 0

    def copy(self, dst: int, src: int, nbytes: int, kind: int, stream: int) -> None:
        self.total += 1
        self._write_header(dst, nbytes, kind)

    def _write_header(self, dst: int, nbytes: int, kind: int) -> None:
        if kind == 2 and nbytes == self.frame_nbytes:
            ctypes.memmove(dst, self.header, len(self.header))

    def copy_rows(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, n: int, kind: int, stream: int
    ) -> None:
        self.total += 1
        for i in range(n):
            self._write_header(dst + i * dpitch, width, kind)


def stubs(calls: Calls) -> ModuleType:
    """A module in CuPy's place, whose device has memory, but does nothing with it."""
    module: Any = ModuleType("cupy")
    memory = np.zeros(256 << 20, np.uint8)

    def alloc(nbytes: int) -> Any:
        assert nbytes <= memory.size
        return SimpleNamespace(ptr=memory.ctypes.data)

    runtime = SimpleNamespace(
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
        memcpyAsync=calls.copy,
        memcpy2DAsync=calls.copy_rows,
        memsetAsync=calls.count,
        eventRecord=calls.count,
        eventQuery=calls.count,
        hostAllocPortable=1,
        getDevice=lambda: 0,
        CUDARuntimeError=RuntimeError,
        getDeviceProperties=lambda i: {"multiProcessorCount": 132, "major": 9, "minor": 0},
    )
    module.cuda = SimpleNamespace(
        Device=_Context,
        Stream=_Context,
        Event=_Context,
        alloc=alloc,
        runtime=runtime,
        PinnedMemory=lambda nbytes, flags: bytearray(nbytes),
        PinnedMemoryPointer=lambda memory, offset: memory,
        is_available=lambda: True,
        get_current_stream=_Context,
    )
    launch = SimpleNamespace(get_function=lambda name: calls.count, compile=lambda: None)
    module.RawModule = lambda **more: launch
    module.__version__ = "stub"
    return module


def _timed(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest call."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def measure(batches: tuple[int, ...] = BATCHES, repeats: int = 200) -> list[dict[str, Any]]:
    """Microseconds, and calls of CUDA, for each chunk of a batch of ``n`` chunks."""
    from compcoll import codec
    from compcoll.devices import cuda
    from compcoll.devices.memory import DeviceArray
    from compcoll.engine.device.launches import Frame
    from compcoll.engine.device.work import CudaWork
    from compcoll.frame import HEADER_NBYTES, inspect

    calls = Calls()
    before = sys.modules.get("cupy")
    sys.modules["cupy"] = stubs(calls)
    caches = cuda.available, cuda.Device.of
    for one in caches:
        one.cache_clear()
    try:
        device = cuda.Device.of(0)
        blocks = [DeviceArray(device, 1 << 20, "f4", NBYTES // 4, None) for _ in range(max(batches))]
        frame = codec(SPEC).encode(np.sin(np.arange(NBYTES // 4, dtype="f4") / 50))
        calls.header, calls.frame_nbytes = frame[:HEADER_NBYTES].tobytes(), frame.size
        rows = []
        for n in batches:
            slab = np.tile(frame, n).reshape(n, -1)
            if slab.base is not None:
                slab = slab.copy()
            arrived = [slab[i] for i in range(n)]
            work = CudaWork(codec(SPEC))
            work.batcher.first_nbytes = 1 << 40  # all of them are one batch

            def finish(asked: list[Any], work: CudaWork = work) -> None:
                work.batcher.launch()
                for future in asked:
                    if not future.done:
                        raise RuntimeError("a stub's work is done at once")
                    future.result()

            def encode(n: int = n, work: CudaWork = work, finish: Any = finish) -> None:
                finish([work.encode(block, 0.0) for block in blocks[:n]])

            def decode(arrived: list[Any] = arrived, work: CudaWork = work, finish: Any = finish) -> None:
                came = [Frame(data, inspect(data)) for data in arrived]
                finish([work.decode(one, block) for one, block in zip(came, blocks, strict=False)])

            check = inspect(frame).checksum
            row: dict[str, Any] = {"chunks": n}
            for name, call in (("encode", encode), ("decode", decode)):
                with _answers(check if name == "decode" else None):
                    call()
                    calls.total = 0
                    call()
                    row[f"{name} calls"] = calls.total / n
                    row[f"{name} us"] = 1e6 * _timed(call, repeats) / n
            rows.append(row)
        return rows
    finally:
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before
        for one in caches:
            one.cache_clear()


class _answers:
    """A decoder's result for every payload: that it has this checksum."""

    def __init__(self, checksum: int | None):
        self.checksum = checksum

    def __enter__(self) -> None:
        from compcoll.devices.queue import Queue

        self.download = Queue.download
        if self.checksum is not None:
            from compcoll.devices.kernels import RESULT

            def download(queue: Any, control: Any, nbytes: int) -> None:
                self.download(queue, control, nbytes)
                control.host[:nbytes].view(RESULT)["checksum"] = self.checksum

            Queue.download = download  # type: ignore[method-assign]

    def __exit__(self, *exc: object) -> None:
        from compcoll.devices.queue import Queue

        Queue.download = self.download  # type: ignore[method-assign]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(repeats=options.repeats)
    if options.json:
        print(json.dumps({"machine": machine(), "codec": SPEC, "nbytes": NBYTES, "rows": rows}, indent=2))
        return
    print(f"{SPEC}, chunks of {NBYTES >> 10} KiB; per chunk, CUDA's calls being stubs")
    print(f"{'chunks':>7} {'encode us':>10} {'calls':>6} {'decode us':>10} {'calls':>6}")
    for row in rows:
        print(
            f"{row['chunks']:7} {row['encode us']:10.1f} {row['encode calls']:6.2f} "
            f"{row['decode us']:10.1f} {row['decode calls']:6.2f}"
        )


if __name__ == "__main__":
    main()

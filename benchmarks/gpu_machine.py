"""The device that `gpu_check` measures: a GPU, or what stands for CuPy in the tests."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.devices.memory import DeviceArray

__all__ = ["FAKE", "Machine", "open_machine"]

#: The option that puts the tests' stand-in for CuPy in the GPU's place, to try out everything but the GPU.
FAKE = "--fake"


class Machine:
    """A GPU, as far as it is measured.

    Attributes
    ----------
    device : Device
    nbytes : int
        Array that codecs are timed on.
    large_nbytes : int
        The largest one that kernels take: just below 4 GiB.
    batch_nbytes : int
        All chunks that are coded together.
    messages, chunks : tuple of int
        Bytes of a rank's buffer in the collectives, and of chunks.
    repeats : int
    """

    nbytes = 512 << 20  # starting kernels has to be short beside running them
    batch_nbytes = 64 << 20
    large_nbytes = (4 << 30) - (1 << 16)
    messages = (64 << 20,)
    chunks = (1 << 20, 4 << 20, 16 << 20)
    repeats = 5

    def __init__(self, rank: int = 0):
        import cupy

        from compcoll.devices.cuda import Device

        self.cupy, index = cupy, rank % cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device(index).use()
        self.device: Any = Device.of(index)

    def about(self) -> dict[str, Any]:
        """The GPU and the versions of what drives it."""
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.device.index)
        return {
            "gpu": properties["name"].decode(),
            "gpus": runtime.getDeviceCount(),
            "capability": f"{properties['major']}.{properties['minor']}",
            "memory": properties["totalGlobalMem"],
            "driver": runtime.driverGetVersion(),
            "runtime": runtime.runtimeGetVersion(),
            "cupy": self.cupy.__version__,
        }

    def array(self, values: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array on the device."""
        result = self.device.empty(values.nbytes)
        with self.device.queue() as queue:
            queue.to_device(result.address, values.reshape(-1).view(np.uint8))
        return result.view(values.dtype)

    def buffer(self, values: np.ndarray) -> Any:
        """The same as a user has it."""
        return self.cupy.asarray(values)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no other process of a check has the GPU; what only the CPU does is outside."""
        with open(os.environ.get("COMPCOLL_GPU_LOCK", os.devnull)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def without_pool(self) -> None:
        """Allocate every array by itself, so that the sanitizer sees where it ends."""
        self.cupy.cuda.set_allocator(None)

    def seconds(self, queue: Any, call: Callable[[], Any]) -> float:
        """Time of a call on a queue: several in a row, so that the GPU never waits for the host."""
        call()
        best = float("inf")
        for _ in range(3):
            begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            begin.record(queue.stream)
            for _ in range(self.repeats):
                call()
            end.record(queue.stream)
            end.synchronize()
            best = min(best, self.cupy.cuda.get_elapsed_time(begin, end) / 1e3 / self.repeats)
        return best

    def wall(self, call: Callable[[], Any]) -> float:
        """Shortest of several times of a call that ends by itself."""
        call()
        times = []
        for _ in range(self.repeats):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return min(times)


class FakeMachine(Machine):
    """The same with so little data that the executor of the tests ends soon; its times mean nothing."""

    nbytes, large_nbytes, batch_nbytes = 32 << 10, 48 << 10, 8 << 10
    messages, chunks = (16 << 10,), (4 << 10,)
    repeats = 1

    def without_pool(self) -> None:
        pass


def open_machine(fake: bool, rank: int = 0) -> Machine:
    """The device of a rank; ranks share the GPUs that there are."""
    if not fake:
        return Machine(rank)
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "serial"))
    from executor import build
    from fake_cupy import installed

    library = build()
    if library is None:
        raise RuntimeError("the stand-in for CuPy needs g++ on x86-64")
    standing_in = installed(library)
    standing_in.__enter__()
    machine = FakeMachine(rank)
    machine.standing_in = standing_in  # type: ignore[attr-defined]  # as long as this process
    return machine

"""The device that `gpu_check` measures: a GPU, or the tests' device on the CPU in place of one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.devices.kernels import Kernel, all_kernels
from compcoll.devices.memory import DeviceArray

__all__ = ["FAKE", "Machine", "open_machine"]

#: The option that puts the tests' device in the GPU's place, to try out everything but the GPU.
FAKE = "--fake"


class Machine:
    """A GPU, as far as it is measured.

    Attributes
    ----------
    device : Device
    kernel_nbytes : int
        Array that kernels are timed on.
    messages : tuple of int
        Bytes of a rank's buffer in the collectives.
    repeats : int
    """

    kernel_nbytes = 512 << 20  # starting kernels has to be short beside running them
    messages = (1 << 20, 16 << 20, 64 << 20, 256 << 20)
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
            "gpu": properties["name"].decode(), "gpus": runtime.getDeviceCount(),
            "capability": f"{properties['major']}.{properties['minor']}",
            "memory": properties["totalGlobalMem"], "driver": runtime.driverGetVersion(),
            "runtime": runtime.runtimeGetVersion(), "cupy": self.cupy.__version__,
        }  # fmt: skip

    def compile(self) -> list[dict[str, Any]]:
        """Seconds that each module takes, all at once; CuPy keeps what it has compiled before."""

        def one(kernel: Kernel) -> dict[str, Any]:
            begin = time.perf_counter()
            try:
                with self.cupy.cuda.Device(self.device.index):
                    _ = self.device.function(kernel).kernel
            except Exception as error:
                return {"what": kernel.module, "error": f"{type(error).__name__}: {error}"}
            return {"what": kernel.module, "s": time.perf_counter() - begin}

        with ThreadPoolExecutor() as threads:
            return list(threads.map(one, {kernel.module: kernel for kernel in all_kernels()}.values()))

    def array(self, values: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array on the device."""
        result = self.device.empty(values.nbytes)
        with self.device.queue() as queue:
            queue.to_device(result.address, values.reshape(-1).view(np.uint8))
        return result.view(values.dtype)

    def buffer(self, values: np.ndarray) -> Any:
        """The same as a user has it."""
        return self.cupy.asarray(values)

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


class FakeMachine(Machine):
    """The executor of the tests, with so little data that it ends soon; its times mean nothing."""

    kernel_nbytes = 32 << 10
    messages = (16 << 10,)
    repeats = 1

    def __init__(self, rank: int = 0):
        sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "serial"))
        from executor import Device, build

        library = build()
        if library is None:
            raise RuntimeError("the tests' device needs g++ on x86-64")
        self.device = Device(library, rank)

    def compile(self) -> list[dict[str, Any]]:
        return []

    def buffer(self, values: np.ndarray) -> DeviceArray:
        return self.array(values)

    def without_pool(self) -> None:
        pass

    def about(self) -> dict[str, Any]:
        return {"gpu": "none, the tests' device", "gpus": 0, "memory": 0}

    def seconds(self, queue: Any, call: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        call()
        queue.wait()
        return time.perf_counter() - begin


def open_machine(fake: bool, rank: int = 0) -> Machine:
    """The device of a rank; ranks share the GPUs that there are."""
    return FakeMachine(int(os.environ.get("PMI_RANK", rank))) if fake else Machine(rank)

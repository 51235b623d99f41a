"""The device that `gpu_check` measures: a GPU through CuPy, or the tests' stand-in."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.gpu_rows import FAKE
from compcoll.devices import cuda
from compcoll.devices.kernels import Kernel
from compcoll.devices.memory import DeviceArray, wrap

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "serial"))

import kernel_jobs
from kernel_compiler import compile_kernels

__all__ = [
    "FAKE",
    "Device",
    "Machine",
    "Queue",
    "arguments",
    "compile_kernels",
    "is_late",
    "kernel_jobs",
    "open_machine",
    "report",
    "size_of",
    "slowest",
]


class Device:
    """A GPU that the caller launches kernels and copies on.

    Attributes
    ----------
    index : int
    max_grid : int
        Blocks of 128 threads that fill the GPU.
    """

    def __init__(self, cupy: Any, index: int):
        self.cupy, self.index = cupy, index
        self.max_grid = 16 * cupy.cuda.runtime.getDeviceProperties(index)["multiProcessorCount"]
        self._modules: dict[str, Any] = {}

    def empty(self, nbytes: int) -> DeviceArray:
        """Allocate memory on the GPU."""
        found = wrap(self.cupy.empty(nbytes, np.uint8))
        assert found is not None
        return found

    def host(self, nbytes: int) -> np.ndarray:
        """Allocate pinned host memory."""
        memory = self.cupy.cuda.PinnedMemory(nbytes, 1)
        return np.frombuffer(self.cupy.cuda.PinnedMemoryPointer(memory, 0), np.uint8, nbytes)

    def fetch(self, array: DeviceArray) -> np.ndarray:
        """Copy an array to the host."""
        values = np.empty(array.size, array.dtype)
        with self.queue() as queue:
            queue.to_host(values, array.address)
        return values

    def function(self, kernel: Kernel) -> Any:
        """The function of a kernel of csrc/cuda; its module is loaded, or compiled, on first use."""
        if kernel.module not in self._modules:
            self._modules[kernel.module] = cuda.load_module(self.cupy, kernel.module)
        return self._modules[kernel.module].get_function(kernel.name)

    def queue(self) -> Queue:
        """A queue that starts after the work in the caller's current stream."""
        return Queue(self)


class Queue:
    """A `kernel_jobs.Launcher` that also copies; it keeps scratch memory alive until `wait`."""

    def __init__(self, device: Device):
        self.device, self.max_grid, self._cuda = device, device.max_grid, device.cupy.cuda
        before = self._cuda.Event()
        before.record(self._cuda.get_current_stream())
        self.stream = self._cuda.Stream(non_blocking=True)
        self.stream.wait_event(before)
        self._keep: list[Any] = []

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.wait()

    def wait(self) -> None:
        """Wait until all queued work is complete."""
        self.stream.synchronize()
        self._keep.clear()

    def to_device(self, address: int, data: np.ndarray) -> None:
        """Copy an array of the host to an address."""
        self._copy(address, data.ctypes.data, data.nbytes, 1)

    def to_host(self, data: np.ndarray, address: int) -> None:
        """Copy to an array of the host."""
        self._copy(data.ctypes.data, address, data.nbytes, 2)

    def copy(self, to: int, address: int, nbytes: int) -> None:
        """Copy on the device."""
        self._copy(to, address, nbytes, 3)

    def _copy(self, to: int, address: int, nbytes: int, kind: int) -> None:
        self._cuda.runtime.memcpyAsync(to, address, nbytes, kind, self.stream.ptr)

    def zero(self, address: int, nbytes: int) -> None:
        """Zero memory of the device."""
        self._cuda.runtime.memsetAsync(address, 0, nbytes, self.stream.ptr)

    def scratch(self, nbytes: int) -> int:
        """Allocate scratch memory on the device and return its address."""
        self._keep.append(self.device.empty(nbytes))
        return self._keep[-1].address

    def control(self, nbytes: int) -> Any:
        """Allocate zeroed pinned host memory, and as much on the device."""
        host = self.device.host(nbytes)
        host[:] = 0
        self._keep.append(host)
        return SimpleNamespace(host=host, address=self.scratch(nbytes))

    def upload(self, control: Any) -> None:
        """Copy the host's side to the device."""
        self.to_device(control.address, control.host)

    def download(self, control: Any, nbytes: int) -> None:
        """Copy the first bytes back."""
        self.to_host(control.host[:nbytes], control.address)

    def launch(self, kernel: Kernel, grid: tuple[int, int], jobs: int) -> None:
        """Start a kernel on jobs."""
        with self.stream:
            self.device.function(kernel)(grid, (kernel.threads,), (np.uint64(jobs),))


class Machine:
    """The GPU to measure, and the sizes to measure with.

    Attributes
    ----------
    device : Device
    nbytes : int
        Size of the array that codecs are timed on.
    large_nbytes : int
        Size of the largest array that kernels take: just below 4 GiB.
    batch_nbytes : int
        Size of all chunks of a batch together.
    messages, chunks : tuple of int
        Sizes of a rank's buffer in the collectives, and of chunks.
    repeats : int
    """

    nbytes = 512 << 20  # large enough that launching is short beside running
    batch_nbytes = 64 << 20
    large_nbytes = (4 << 30) - (1 << 16)
    messages = (64 << 20,)
    chunks = (1 << 20, 4 << 20, 16 << 20)
    repeats = 5
    _kind = Device

    def __init__(self, rank: int = 0):
        import cupy

        self.cupy, index = cupy, rank % cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device(index).use()
        self.device = self._kind(cupy, index)

    def about(self) -> dict[str, Any]:
        """The GPU, and the versions of driver, runtime and CuPy."""
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
        """Copy a NumPy array to the device."""
        result = self.device.empty(values.nbytes).view(values.dtype)
        with self.device.queue() as queue:
            queue.to_device(result.address, values)
        return result

    def buffer(self, values: np.ndarray) -> Any:
        """Copy a NumPy array to a CuPy array, as a user has it."""
        return self.cupy.asarray(values)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the GPU against other processes of the check; work on the CPU alone stays outside."""
        with open(os.environ.get("COMPCOLL_GPU_LOCK", os.devnull)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def without_pool(self) -> None:
        """Allocate every array by itself, so that the sanitizer sees where it ends."""
        self.cupy.cuda.set_allocator(None)

    def seconds(self, queue: Any, call: Callable[[], Any]) -> float:
        """Time of a call on a queue; several run in a row, so that the GPU never waits for the host."""
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
        """Shortest wall time of several calls; each returns when its work is complete."""
        call()
        times = []
        for _ in range(self.repeats):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return min(times)


class FakeQueue(Queue):
    """A queue whose kernels have the faults listed in ``COMPCOLL_STANDIN_FAULTS``, separated by commas.

    The faults are ``hang=NAME``, ``fail=NAME`` and ``race=NAME``; the last makes results wrong if there are
    several thread blocks.
    """

    def launch(self, kernel: Kernel, grid: tuple[int, int], jobs: int) -> None:
        faults = os.environ.get("COMPCOLL_STANDIN_FAULTS", "").split(",")
        if f"hang={kernel.name}" in faults:
            time.sleep(600)
        if f"fail={kernel.name}" in faults:
            raise RuntimeError(f"{kernel.name}: an illegal address")
        super().launch(kernel, grid, jobs)
        if f"race={kernel.name}" in faults and grid[0] > 1:
            self.stream.synchronize()
            job = np.frombuffer(
                (ctypes.c_uint8 * kernel_jobs.JOB.itemsize).from_address(jobs), kernel_jobs.JOB
            )[0]
            ctypes.c_uint8.from_address(int(job["dst"]) + 7).value ^= 1


class FakeDevice(Device):
    def queue(self) -> Queue:
        return FakeQueue(self)


class FakeMachine(Machine):
    """The tests' stand-in, with little data because its executor is slow; its times mean nothing."""

    nbytes, large_nbytes, batch_nbytes = 32 << 10, 48 << 10, 8 << 10
    messages, chunks = (16 << 10,), (4 << 10,)
    repeats = 1
    _kind = FakeDevice

    def without_pool(self) -> None:
        pass


def open_machine(fake: bool, rank: int = 0) -> Machine:
    """The device of a rank; ranks share the available GPUs in turn."""
    if not fake:
        return Machine(rank)
    import standin

    standing_in = standin.installed()
    standing_in.__enter__()
    machine = FakeMachine(rank)
    machine.standing_in = standing_in  # type: ignore[attr-defined]  # kept until this process exits
    return machine


# -- shared by the programs of several ranks that `gpu_check` starts


def arguments(seconds: float) -> argparse.ArgumentParser:
    """A parser with the programs' common options; ``seconds`` is the default of ``--seconds``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument(FAKE, action="store_true")
    return parser


def report(row: dict[str, Any]) -> None:
    """Print a row on rank 0 at once, so that a later hang does not lose it."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({**row, "ranks": MPI.COMM_WORLD.size}), flush=True)


def is_late(end: float, what: str) -> bool:
    """True if rank 0 has no time left, which a row then reports; collective."""
    from mpi4py import MPI

    late = MPI.COMM_WORLD.bcast(time.monotonic() > end)
    if late:
        report({"what": what, "status": "timeout", "why": "no time left"})
    return late


def slowest(call: Callable[[], Any], repeats: int) -> float:
    """Shortest time of several calls, each timed on its slowest rank; collective."""
    from mpi4py import MPI

    call()
    times = []
    for _ in range(repeats):
        MPI.COMM_WORLD.Barrier()
        begin = time.perf_counter()
        call()
        times.append(MPI.COMM_WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))
    return min(times)


def size_of(nbytes: int) -> str:
    """A size as it is printed in rows."""
    return f"{nbytes >> 20} MiB" if nbytes >> 20 else f"{nbytes >> 10} KiB"

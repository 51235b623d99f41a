"""The device of the tests: the kernels of csrc/cuda on the CPU, through csrc/cuda/executor.h."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from compcoll.devices.memory import DeviceArray
from compcoll.sources import csrc_dir

FLAGS = [
    "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden",
    "-DCC_LEVEL=device", "-Wall", "-Wno-unknown-pragmas", "-Werror",
]  # fmt: skip
GUARD = 256


def build() -> Path:
    """Compile the executor once for each state of the sources; None without a compiler for x86."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or os.uname().machine != "x86_64":
        return None
    sources = sorted(p for p in csrc_dir().rglob("*") if p.suffix in {".h", ".cuh", ".cu", ".cpp"})
    key = hashlib.sha256(" ".join([compiler, *FLAGS]).encode())
    for path in sources:
        key.update(path.read_bytes())
    cache = Path(tempfile.gettempdir()) / f"compcoll-executor-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    library = cache / f"{key.hexdigest()[:20]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch) / "executor.so"
            command = [compiler, *FLAGS, str(csrc_dir() / "cuda" / "executor.cpp"), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.replace(library)
    return library


class Memory:
    """Bytes at a multiple of 16 (plus ``shift``), poisoned, with guards on both sides."""

    def __init__(self, nbytes: int, shift: int = 0):
        whole = np.full(nbytes + 2 * GUARD + 32, 0xA5, np.uint8)
        start = GUARD + (-(whole.ctypes.data + GUARD)) % 16 + shift
        self._outside = whole[:start], whole[start + nbytes :]
        self.data = whole[start : start + nbytes]
        self.address = self.data.ctypes.data

    def untouched(self) -> bool:
        """Whether nobody wrote past an end."""
        return all((part == 0xA5).all() for part in self._outside)


class Control:
    def __init__(self, nbytes: int):
        self.memory = Memory(nbytes)
        self.host = np.zeros(nbytes, np.uint8)
        self.address = self.memory.address


class Executor:
    """`compcoll.devices.batch.Launcher` on the CPU."""

    def __init__(self, library: Path, max_grid: int = 6, seed: int = 0):
        self.library = ctypes.CDLL(str(library))
        self.library.executor_launch.restype = ctypes.c_char_p
        self.seed = seed  # of the order in which blocks and warps take turns
        self.max_grid = max_grid
        self.memories: list[Memory] = []

    def control(self, nbytes: int) -> Control:
        return Control(nbytes)

    def upload(self, control: Control) -> None:
        control.memory.data[:] = control.host

    def scratch(self, nbytes: int) -> int:
        self.memories.append(Memory(nbytes))
        return self.memories[-1].address

    def zero(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def download(self, control: Control, nbytes: int) -> None:
        assert all(m.untouched() for m in (control.memory, *self.memories))
        self.memories.clear()
        control.host[:nbytes] = control.memory.data[:nbytes]

    def launch(self, kernel, grid, jobs) -> None:
        function = ctypes.cast(self.library[kernel.name], ctypes.c_void_p)
        flush = "f64" not in kernel.name and kernel.name not in ("seal",) and "finish" not in kernel.name
        order = ctypes.c_uint64(self.seed)
        problem = self.library.executor_launch(
            function, *grid, kernel.threads, ctypes.c_void_p(jobs), int(flush), order
        )
        assert problem is None, f"{kernel.name}, seed {self.seed}: {problem.decode()}"


class Device:
    """What `compcoll.devices.cuda.Device` is to the runtime, with poisoned host memory for a GPU's."""

    def __init__(self, library: Path):
        self.executor = Executor(library)
        self.open = 0

    def empty(self, nbytes: int) -> DeviceArray:
        memory = Memory(nbytes)
        return DeviceArray(self, memory.address, np.uint8, nbytes, memory)

    def host(self, nbytes: int) -> np.ndarray:
        return np.full(nbytes, 0xA5, np.uint8)

    def queue(self) -> "Queue":
        self.open += 1
        return Queue(self)

    def array(self, values: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array."""
        result = self.empty(values.nbytes)
        result.owner.data[:] = values.reshape(-1).view(np.uint8)
        return result.view(values.dtype)


class Queue:
    """Does everything at once, but says so only when it is asked for the second time."""

    def __init__(self, device: Device):
        self.device, self.executor, self.max_grid = device, device.executor, device.executor.max_grid
        self.control, self.upload, self.download = (
            self.executor.control, self.executor.upload, self.executor.download,
        )  # fmt: skip
        self.launch = self.executor.launch
        self._keep: list[Memory] = []
        self._asked = 0

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        assert all(m.untouched() for m in self._keep)
        self.device.open -= 1

    def scratch(self, nbytes: int) -> int:
        self._keep.append(Memory(nbytes))
        return self._keep[-1].address

    def to_device(self, address: int, data: np.ndarray) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def to_host(self, data: np.ndarray, address: int) -> None:
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def copy(self, to: int, address: int, nbytes: int) -> None:
        ctypes.memmove(to, address, nbytes)

    def zero(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def done(self) -> bool:
        self._asked += 1
        return self._asked > 1

    def wait(self) -> None:
        pass

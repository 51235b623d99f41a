"""The device of the tests: the kernels of csrc/cuda on the CPU, through csrc/cuda/executor.h.

`Executor` runs them at once. On a `Device` nothing runs before somebody asks whether it is done, and then no
more than has to: streams overtake each other by chance, so that a wait that is missing shows.
"""

import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from pathlib import Path

import numpy as np

from compcoll.core.sources import csrc_dir
from compcoll.devices.finding import STAND_INS
from compcoll.devices.kernels import SOURCES
from compcoll.devices.memory import DeviceArray

PLAIN = [
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-DCC_LEVEL=device",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Werror",
]
#: With the checks of each access, which take as long to compile as the rest.
FLAGS = [*PLAIN, "-fsanitize=alignment,shift,bounds"]
GUARD = 256
_ONE_AT_A_TIME = threading.Lock()  # the emulated threads of a launch are global state of its library


def compiler():
    """The words of the compiler; none where there is none for x86."""
    words = shlex.split(os.environ.get("CXX", "g++"))
    return words if shutil.which(words[0]) and os.uname().machine == "x86_64" else []


def compile_kernels(sources: Path, modules, folder: Path, library: Path, flags=FLAGS) -> None:
    """Make a library of some of the kernels' files, and what runs them, in a copy of csrc."""
    cuda = sources / "cuda"

    def compile_one(name: str) -> str:
        made = folder / f"{name}.o"
        source = [str(cuda / f"{name}.cu")] if name in modules else [str(cuda / "executor.cpp")]
        command = [*compiler(), *flags, "-include", str(cuda / "executor.h"), "-x", "c++", "-c", *source]
        _run([*command, "-o", str(made)])
        return str(made)

    with ThreadPoolExecutor(2) as threads:
        objects = list(threads.map(compile_one, [*modules, "executor"]))
    _run([*compiler(), *flags, "-shared", *objects, "-o", str(library)])


def _run(command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def library_path() -> Path | None:
    """Where the executor of this state of the sources is, or will be; None without a compiler for x86.

    It checks accesses in runs of all tests; in runs of the sample where such a library is there already.
    """
    if not compiler():
        return None
    checked = _library(FLAGS)
    return checked if os.environ.get("EXHAUSTIVE", "0") != "0" or checked.exists() else _library(PLAIN)


def _library(flags) -> Path:
    sources = sorted(p for p in csrc_dir().rglob("*") if p.suffix in {".h", ".cuh", ".cu", ".cpp"})
    sources = [p for p in sources if p.parent.name not in {"engine", "preload"}]  # no part of it
    key = hashlib.sha256(" ".join([*compiler(), *flags]).encode())
    for path in sources:
        key.update(path.read_bytes())
    cache = Path(tempfile.gettempdir()) / f"compcoll-executor-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    return cache / f"{key.hexdigest()[:20]}.so"


def build(library: Path | None = None) -> Path | None:
    """Compile the executor, unless it is there or another process compiles it; None as `library_path`."""
    library = library or library_path()
    if library is not None and not library.exists():
        flags = FLAGS if library == _library(FLAGS) else PLAIN
        with (
            library.with_suffix(".lock").open("w") as lock,
            tempfile.TemporaryDirectory(dir=library.parent) as scratch,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                made = Path(scratch) / "executor.so"
                compile_kernels(csrc_dir(), SOURCES, Path(scratch), made, flags)
                made.replace(library)
    return library


def seeds():
    """Seeds of the orders in which blocks, warps and lanes take turns: others in every process.

    ``COMPCOLL_EXECUTOR_SEED`` is the first one of a run that is to be repeated; a test that fails prints it.
    """
    first = int(os.environ.get("COMPCOLL_EXECUTOR_SEED") or 1 + time.time_ns() % 10**9)
    print(f"COMPCOLL_EXECUTOR_SEED={first}", file=sys.stderr)
    return count(first)


class Memory:
    """Bytes at a multiple of 16 (plus ``shift``), poisoned, with guards on both sides."""

    def __init__(self, nbytes: int, shift: int = 0):
        whole = np.full(nbytes + 2 * GUARD + 32, 0xA5, np.uint8)
        start = GUARD + (-(whole.ctypes.data + GUARD)) % 16 + shift
        self.whole = whole
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

    def __init__(self, library: Path, max_grid: int = 6, seed: int | None = None, resident: int = 6):
        if not library.exists():
            build(library)  # by the first test that needs it: others go on meanwhile
        self.library = ctypes.CDLL(str(library))
        self.library.executor_launch.restype = ctypes.c_char_p
        self._seeds = seeds() if seed is None else repeat(seed)
        self.resident = resident  # blocks that run at a time, at most
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
        flush = "f64" not in kernel.name
        seed = next(self._seeds)
        with _ONE_AT_A_TIME:
            problem = self.library.executor_launch(
                function,
                *grid,
                kernel.threads,
                ctypes.c_void_p(jobs),
                int(flush),
                ctypes.c_uint64(seed),
                self.resident,
            )
        assert problem is None, f"{kernel.name}, seed {seed}: {problem.decode()}"


class Stream:
    """Operations that run in their order, some time or other."""

    def __init__(self, device: "Device"):
        self.device = device
        self.operations = deque()
        device.streams.append(self)

    def do(self, run) -> None:
        """Append an operation."""
        self.operations.append((run, None))

    def wait(self, event: "Event") -> None:
        """What is appended from here on comes after the event."""
        self.operations.append((None, event))

    def event(self) -> "Event":
        return Event(self)

    def runnable(self) -> bool:
        return bool(self.operations) and (self.operations[0][1] is None or self.operations[0][1].fired)

    def step(self) -> None:
        """Run the first operation, after what it waits for and nothing else."""
        run, event = self.operations[0]
        while event is not None and not event.fired:
            event.stream.step()
        self.operations.popleft()
        if run is not None:
            run()


class Event:
    """A place in a stream; what CuPy's is to the runtime."""

    def __init__(self, stream: Stream):
        self.stream, self.fired = stream, False
        stream.do(self._fire)

    def _fire(self) -> None:
        self.fired = True

    @property
    def done(self) -> bool:
        self.stream.device.advance()
        return self.fired

    def synchronize(self) -> None:
        with self.stream.device.lock:
            while not self.fired:
                self.stream.step()


class Device:
    """What `compcoll.devices.cuda.Device` is to the runtime, with poisoned host memory for a GPU's.

    Attributes
    ----------
    current : Stream
        The caller's.
    open : int
        Queues that nobody has closed yet.
    launches : Counter
        How often each kernel was started.
    copies : int
        Copies between host and device, but for those of control memory.
    pageable : int
        Those from or to host memory that is not from `host`, for which a GPU would have the host wait.
    prepared : set
        Names of codecs whose kernels were to be loaded.
    """

    def __init__(self, library: Path, seed: int = 0):
        self.executor = Executor(library)
        self.lock = threading.RLock()  # progress threads use a device too
        self.streams: list[Stream] = []
        self.launches: Counter[str] = Counter()
        self.copies = self.pageable = 0
        self.prepared: set[str] = set()
        self._pinned: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
        self.current = Stream(self)
        self.open = 0
        self._freed: deque[np.ndarray] = deque(maxlen=256)
        self._random = np.random.default_rng(seed)
        self._memories: weakref.WeakSet[Owned] = weakref.WeakSet()
        STAND_INS.add(self)

    def has(self, address: int) -> bool:
        """Whether memory is this device's."""
        return any(0 <= address - one.address < max(one.data.size, 1) for one in list(self._memories))

    def empty(self, nbytes: int) -> DeviceArray:
        memory = Owned(self, nbytes)
        self._memories.add(memory)
        return DeviceArray(self, memory.address, np.uint8, nbytes, memory)

    scratch = empty

    def host(self, nbytes: int) -> np.ndarray:
        memory = np.full(nbytes, 0xA5, np.uint8)
        self._pinned[id(memory)] = memory
        return memory

    def note_copy(self, data: np.ndarray) -> None:
        """Count a copy from or to an array of the host."""
        self.copies += 1
        while isinstance(data.base, np.ndarray):
            data = data.base
        self.pageable += self._pinned.get(id(data)) is not data

    def prepare(self, codecs) -> None:
        self.prepared.update(codecs)

    def mark(self) -> list[Event]:
        with self.lock:
            return [self.current.event()]

    def queue(self, after: list[Event] | None = None) -> "Queue":
        return Queue(self, after)

    def advance(self) -> None:
        """Run one operation of any stream."""
        with self.lock:
            able = [stream for stream in self.streams if stream.runnable()]
            if able:
                able[self._random.integers(len(able))].step()

    def array(self, values: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array."""
        result = self.empty(values.nbytes)
        result.owner.data[:] = values.reshape(-1).view(np.uint8)
        return result.view(values.dtype)

    def fill_later(self, array: DeviceArray, values: np.ndarray) -> None:
        """Give an array its values in the caller's stream, which takes its time."""
        data = values.reshape(-1).view(np.uint8).copy()
        self.current.do(lambda: ctypes.memmove(array.address, data.ctypes.data, data.size))

    def free(self, whole: np.ndarray) -> None:
        """What was freed is poisoned, and stays so until it is reused; it never is."""
        whole[:] = 0x5A
        self._freed.append(whole)

    def sound(self) -> bool:
        """Whether everything is closed, and nobody wrote to what was free."""
        return self.open == 0 and all((whole == 0x5A).all() for whole in self._freed)


class Owned(Memory):
    """Memory that goes back to its device."""

    def __init__(self, device: Device, nbytes: int):
        super().__init__(nbytes)
        self.device = device

    def __del__(self):
        self.device.free(self.whole)


class Queue:
    """`compcoll.devices.cuda.Queue`, on a stream of its own."""

    def __init__(self, device: Device, after: list[Event] | None):
        self.device, self.executor, self.max_grid = device, device.executor, device.executor.max_grid
        with device.lock:
            device.open += 1
            self.stream = Stream(device)
            self.after(device.mark() if after is None else after)
        self._keep: list = []

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def after(self, events: list[Event]) -> None:
        for event in events:
            self.stream.wait(event)

    def close(self) -> None:
        self.wait()
        with self.device.lock:
            assert all(m.untouched() for m in self._keep if isinstance(m, Memory))
            self._keep.clear()
            self.device.streams.remove(self.stream)
            self.device.open -= 1

    def scratch(self, nbytes: int) -> int:
        self._keep.append(Owned(self.device, nbytes))
        return self._keep[-1].address

    def to_device(self, address: int, data: np.ndarray) -> None:
        self.device.note_copy(data)
        self._move(address, data.ctypes.data, data.nbytes, data)

    def to_host(self, data: np.ndarray, address: int) -> None:
        self.device.note_copy(data)
        self._move(data.ctypes.data, address, data.nbytes, data)

    def rows_to_host(self, data: np.ndarray, address: int, pitch: int) -> None:
        self.device.note_copy(data)
        for i, row in enumerate(data):
            self._move(row.ctypes.data, address + i * pitch, row.nbytes, data)

    def rows_to_device(self, address: int, pitch: int, data: np.ndarray) -> None:
        self.device.note_copy(data)
        for i, row in enumerate(data):
            self._move(address + i * pitch, row.ctypes.data, row.nbytes, data)

    def copy(self, to: int, address: int, nbytes: int) -> None:
        self._move(to, address, nbytes)

    def _move(self, to: int, address: int, nbytes: int, *keep: np.ndarray) -> None:
        self._keep += keep
        self.stream.do(lambda: ctypes.memmove(to, address, nbytes))

    def zero(self, address: int, nbytes: int) -> None:
        self.stream.do(lambda: ctypes.memset(address, 0, nbytes))

    def control(self, nbytes: int) -> Control:
        self._keep.append(Control(nbytes))
        return self._keep[-1]

    def upload(self, control: Control) -> None:
        self.stream.do(lambda: self.executor.upload(control))

    def download(self, control: Control, nbytes: int) -> None:
        self.stream.do(lambda: self.executor.download(control, nbytes))

    def launch(self, kernel, grid, jobs) -> None:
        self.device.launches[kernel.name] += 1
        self.stream.do(lambda: self.executor.launch(kernel, grid, jobs))

    def event(self) -> Event:
        return self.stream.event()

    def wait(self) -> None:
        with self.device.lock:
            while self.stream.operations:
                self.stream.step()

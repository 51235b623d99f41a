"""Kernels of csrc/cuda on the CPU, run at once through tests/native/executor.h; standin.py has streams."""

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
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from pathlib import Path

import numpy as np

from compcoll.devices.kernels import all_kernels
from compcoll.devices.nvrtc import csrc_dir, fixed_in

#: Folder of executor.cpp, executor.h and fibers.h, which run kernels.
NATIVE = Path(__file__).resolve().parents[1] / "native"
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
#: Flags that check each access, which doubles the compile time.
FLAGS = [*PLAIN, "-fsanitize=alignment,shift,bounds"]
GUARD = 256
_ONE_AT_A_TIME = threading.Lock()  # the emulated threads of a launch are global state of its library


def compiler():
    """The compiler's command as words; empty without a compiler for x86."""
    words = shlex.split(os.environ.get("CXX", "g++"))
    return words if shutil.which(words[0]) and os.uname().machine == "x86_64" else []


def compile_kernels(sources: Path, modules, folder: Path, library: Path, flags=FLAGS) -> None:
    """Compile modules of kernels from a copy of csrc, with the code that runs them, into a library."""
    cuda = sources / "cuda"
    units = {"executor": f'#include "{NATIVE}/executor.cpp"\n'}
    for module in modules:
        file, *fixed = module.split("-")
        front, behind = f"#define CC_FIXED {fixed_in(module)}\n", "#undef CC_FIXED\n"
        text = f'#include "{cuda}/{file}.cu"\n'
        # Instances for one type are compiled together, which takes less time.
        unit = "-".join([file, *fixed[:1]])
        units[unit] = units.get(unit, "") + (front + text + behind if fixed else text)

    def compile_one(unit: str) -> str:
        made, source = folder / f"{unit}.o", folder / f"{unit}.cpp"
        source.write_text(units[unit])
        command = [
            *compiler(),
            *flags,
            *(["-Og"] if "-" in unit else []),
            "-include",
            str(NATIVE / "executor.h"),
        ]
        run([*command, "-c", str(source), "-o", str(made)])
        return str(made)

    with ThreadPoolExecutor(2) as threads:
        objects = list(threads.map(compile_one, sorted(units, key=lambda unit: "-" not in unit)))
    run([*compiler(), *flags, "-shared", *objects, "-o", str(library)])


def run(command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def library_path() -> Path | None:
    """Path of the executor for this state of the sources, built or not; None without a compiler for x86.

    The executor checks accesses if EXHAUSTIVE is set, or if such a library exists already.
    """
    if not compiler():
        return None
    checked = _library(FLAGS)
    return checked if os.environ.get("EXHAUSTIVE", "0") != "0" or checked.exists() else _library(PLAIN)


def _modules() -> list[str]:
    return list(dict.fromkeys(kernel.module for kernel in all_kernels()))


def _library(flags) -> Path:
    sources = sorted(p for p in csrc_dir().rglob("*") if p.suffix in {".h", ".cuh", ".cu", ".cpp"})
    sources = [p for p in sources if p.parent.name not in {"engine", "layer", "preload"}]  # not compiled in
    sources += [NATIVE / name for name in ("executor.cpp", "executor.h", "fibers.h")]
    key = hashlib.sha256(" ".join([*compiler(), *flags, *_modules()]).encode())
    for path in sources:
        key.update(path.read_bytes())
    cache = Path(tempfile.gettempdir()) / f"compcoll-executor-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    return cache / f"{key.hexdigest()[:20]}.so"


def make_once(library: Path, make) -> None:
    """Make a library with ``make(scratch)``, unless it exists or another process makes it."""
    if library.exists():
        return
    with (
        library.with_suffix(".lock").open("w") as lock,
        tempfile.TemporaryDirectory(dir=library.parent) as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            make(Path(scratch)).replace(library)


def build(library: Path | None = None) -> Path | None:
    """Compile the executor if needed; return its path, or None without a compiler for x86."""
    library = library or library_path()

    def make(scratch: Path) -> Path:
        flags = FLAGS if library == _library(FLAGS) else PLAIN
        compile_kernels(csrc_dir(), _modules(), scratch, scratch / "executor.so", flags)
        return scratch / "executor.so"

    if library is not None:
        make_once(library, make)
    return library


def make_by_one(comm, make) -> None:
    """Compile on rank 0, if it has a compiler, while the other ranks wait."""
    error = None
    if comm.Get_rank() == 0 and compiler():
        try:
            make()
        except Exception as problem:
            error = str(problem)
    made = comm.Ibarrier()
    while not made.Test():
        time.sleep(0.05)  # a rank that spins in MPI would keep the compiler from a core
    error = comm.bcast(error)
    assert error is None, error


def seeds():
    """Seeds of the random orders of blocks, warps and lanes; every process starts at another one.

    ``COMPCOLL_EXECUTOR_SEED`` sets the first seed, to repeat a run; a failing test prints it.
    """
    first = int(os.environ.get("COMPCOLL_EXECUTOR_SEED") or 1 + time.time_ns() % 10**9)
    print(f"COMPCOLL_EXECUTOR_SEED={first}", file=sys.stderr)
    return count(first)


class Memory:
    """Poisoned bytes at a multiple of 16 plus ``shift``, with guards on both sides."""

    def __init__(self, nbytes: int, shift: int = 0):
        whole = np.full(nbytes + 2 * GUARD + 32, 0xA5, np.uint8)
        start = GUARD + (-(whole.ctypes.data + GUARD)) % 16 + shift
        self.whole = whole
        self._outside = whole[:start], whole[start + nbytes :]
        self.data = whole[start : start + nbytes]
        self.address = self.data.ctypes.data

    def untouched(self) -> bool:
        """True if no byte outside was written."""
        return all((part == 0xA5).all() for part in self._outside)


class Control:
    def __init__(self, nbytes: int):
        self.memory = Memory(nbytes)
        self.host = np.zeros(nbytes, np.uint8)
        self.address = self.memory.address


class Executor:
    """`kernel_jobs.Launcher` on the CPU."""

    def __init__(self, library: Path, max_grid: int = 6, seed: int | None = None, resident: int = 6):
        if not library.exists():
            build(library)  # by the first test that needs it; other tests run meanwhile
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

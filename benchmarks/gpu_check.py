"""Checks that need a GPU, in 200 seconds: ``make gpu-check``, or this file by itself.

It needs no pip and no network: on a machine with a GPU and CuPy, ``python3 benchmarks/gpu_check.py --out
FILE`` in a copy of the repository with what ``make carry`` has built, in ``carry/``.

In an order in which each part is worth having if the rest fails: what can be imported, MPI without a GPU,
the device and its copies, loading, one launch of each codec's kernels with its bytes, collectives of 2 ranks,
the limit that driver and MPI set, random calls, some of it and NCCL between the lab's two hosts, torch's
backend, DDP and FSDP2, WeightSync, checkpoints, tests of bytes, codecs timed at a size at which bytes are
compared too, host time per chunk, bytes just below 4 GiB, and compute-sanitizer: `PARTS`. Each is a process
of its own with a limit, so that what hangs, or breaks the device for its process, costs one row. Of codec
and type a pair that hung is not tried again; one whose bytes are not the CPU's goes through memcheck.

A row is a line of JSON, printed and appended to ``benchmarks/results/<gpu>-<date>.jsonl`` at once. Its status
is ``ok``, ``refused`` (the codec cannot carry these values, and the CPU's does not either), ``skipped``,
``missing`` (something is not installed), ``failed`` or ``timeout``. The last that is printed, in 10,000
characters, is what it all comes to. Ends with 2 without a GPU, else with the sum of 1 where something failed,
4 where something ran out of time and 8 where something is missing. Frames that differ are beside the rows, in
``<name>-frames.zip``.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.offline_bundle import use  # noqa: E402

BUDGET, LIMIT, PRINTED = 200.0, 20.0, 10_000
STATUSES = {"ok": 0, "refused": 0, "skipped": 0, "failed": 1, "timeout": 4, "missing": 8}
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAKE = "--fake"
TESTS = "tests/serial/test_devices_bytes.py"
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
TYPES = ("float32", "float64", "float16", "bfloat16")
#: Codecs whose kernels wait for each other need many blocks of threads; the others are looked at first.
LARGE = (("zfp:rate=8", "float32"), ("raw", "float32"), ("mpc", "float32"), ("szp:abs=1e-3", "float32"))
IMPORTS = {
    "numpy": "import numpy as it",
    "mpi4py": "import mpi4py as it; from mpi4py import MPI; more['mpi'] = MPI.Get_library_version()[:60]",
    "compcoll": "import compcoll as it, compcoll.core._cpu, compcoll.engine._engine",
    "cupy": "import cupy as it; more['gpus'] = it.cuda.runtime.getDeviceCount()",
    "torch": "import torch as it; more['cuda'], more['gpu'] = it.version.cuda, it.cuda.is_available()",
}
#: What a summary has before other figures.
FIRST = ("machine", "device", "times", "collectives", "limit", "lab", "training")
#: Without these nothing of a GPU can be tried.
NEEDED = ("compcoll", "cupy")
#: Programs between the lab's hosts, each with the rate of the links in Gb/s.
LAB: tuple[tuple[int, tuple[str, ...]], ...] = (
    (25, ("gpu_collectives", "--brief")),
    (25, ("gpu_limit", "--brief")),
    (10, ("gpu_collectives", "--brief")),
    (10, ("gpu_limit", "--brief")),
    (25, ("gpu_torch", "--part", "training")),
    (25, ("gpu_torch", "--part", "nccl")),
    (10, ("gpu_torch", "--part", "nccl")),
)
#: Programs of random calls, whose buffers are on GPUs on some of the ranks.
RANDOM = ROOT / "tests" / "mpi" / "random_programs.py"
NO_LAB, TIMED_OUT = 69, 124  # exit statuses of `netlab`: this machine cannot have one; it has ended ranks
#: Ways to start MPI, all but the first for a machine without any network.
LOCAL: tuple[dict[str, str], ...] = (
    {},
    {"HYDRA_IFACE": "lo", "FI_PROVIDER": "shm"},
    {"HYDRA_IFACE": "lo", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"},
)
RANKS = """
import json, numpy, compcoll
from mpi4py import MPI
comm = compcoll.Comm(MPI.COMM_WORLD, codec="bfp:bits=12", min_nbytes=0)
x, y = numpy.ones(100000, "f4"), numpy.zeros(100000, "f4")
comm.Allreduce(x, y)
right = bool((y == comm.size).all()) and comm.size == 2 and comm.report.accelerated
if comm.rank == 0:
    row = {"what": "2 ranks of the host", "status": "ok" if right else "failed", "ranks": comm.size}
    print(json.dumps(row), flush=True)
"""


class Check:
    """Rows, as they come, and what is left of the time."""

    def __init__(self, path: Path | None, seconds: float, limit: float, fake: bool):
        self.path, self.seconds, self.limit, self.start = path, seconds, limit, time.monotonic()
        self.fake = [FAKE] if fake else []
        self.rows: list[dict[str, Any]] = []
        self.saved = 0
        self.hung: set[str] = set()  # "codec type"
        self.pairs = [(spec, kind) for spec in SPECS for kind in TYPES]
        self.end = seconds
        self._lock = threading.Lock()

    @property
    def passed(self) -> float:
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds that are left of the part."""
        return min(self.end, self.seconds) - self.passed

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Print and save a row."""
        row = {"part": part, "at": round(self.passed, 1), **row}
        frames = row.pop("frames", None)
        with self._lock:
            self.rows.append(row)
            if part == "device" and self.path is None and "gpu" in row:
                self.path = default_path(row["gpu"])
            more = {k: v for k, v in row.items() if k not in ("part", "at", "what", "status")}
            more["tail"] = more.get("tail", "").strip().rpartition("\n")[2]  # the file has all of it
            text = "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items() if v != ""
            )
            print(f"{row['at']:6.1f} s  {row['status']:8} {part:12} {row['what']:34} {text}", flush=True)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.writelines(json.dumps(one) + "\n" for one in self.rows[self.saved :])
                self.saved = len(self.rows)
                if frames:
                    self._save(re.sub(r"[^\w.=]+", "-", row["what"]), frames)

    def _save(self, name: str, frames: dict[str, str]) -> None:
        """Add frames, in base 64, to the file of those that differ."""
        assert self.path is not None
        with zipfile.ZipFile(
            self.path.with_name(f"{self.path.stem}-frames.zip"), "a", zipfile.ZIP_DEFLATED
        ) as file:
            for key, data in frames.items():
                file.writestr(f"{len(file.namelist()) // 2}-{name}.{key}", base64.b64decode(data))

    def run(
        self, part: str, what: str, command: Sequence[str], limit: float | None = None, note: str = ""
    ) -> list[str]:
        """Rows that a process prints, with a note; and one for what became of it, where that is not plain.

        Returns the status of each.
        """
        limit = min(limit or self.limit, self.left - 3)  # within which it is killed if it ends on no signal
        if limit < 1:
            self.add(part, {"what": what + note, "status": "timeout", "why": "no time left"})
            return ["timeout"]
        found: list[str] = []

        def line(text: str) -> None:
            if text.startswith('{"what"'):
                row = json.loads(text)
                found.append(row["status"])
                self.add(part, {**row, "what": row["what"] + note})

        status, tail = execute(command, limit, line)
        why = (
            f"not done after {limit:.0f} s"
            if status is None
            else f"exit status {status}"
            if status
            else "no row"
        )
        if status != 0 or not found:
            of_lab = {None: "timeout", TIMED_OUT: "timeout", NO_LAB: "missing"}
            found.append(of_lab.get(status, "failed"))
            self.add(part, {"what": what + note, "status": found[-1], "why": why, "tail": tail})
        return found

    def kernels(self, part: str, *more: str, limit: float | None = None) -> list[str]:
        """A part of `gpu_kernels`."""
        command = [*python("benchmarks.gpu_kernels", part, *more), *self.fake]
        return self.run(part, " ".join(more) or part, command, limit)

    def pair(self, part: str, spec: str, kind: str, limit: float | None = None) -> None:
        """A part of `gpu_kernels` on a codec and a type, and memcheck where its bytes are not the CPU's."""
        what = f"{spec} {kind}"
        if what in self.hung:
            self.add(part, {"what": what, "status": "skipped", "why": "it hung before"})
            return
        found = self.kernels(part, spec, kind, limit=limit)
        if "timeout" in found:
            self.hung.add(what)
        elif "failed" in found and (tool := find_tool("compute-sanitizer")):
            command = [*python("benchmarks.gpu_kernels", "launch", spec, kind), *self.fake]
            self.run("memcheck", what, [tool, "--error-exitcode", "9", *command], 40)

    @property
    def status(self) -> int:
        """The exit status."""
        return sum({STATUSES[row["status"]] for row in self.rows})


def execute(command: Sequence[str], limit: float, line: Any = lambda text: None) -> tuple[int | None, str]:
    """Run a command: its status, None where it took too long, and the last that it printed.

    All that it has started ends with it.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            errors="replace",
        )
    except OSError as error:
        return 127, str(error)
    late = threading.Event()

    def stop() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its ranks, which a kill would leave behind
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, stop)
    timer.start()
    tail: list[str] = []
    assert process.stdout is not None
    with process.stdout:
        for text in process.stdout:
            line(text.strip())
            tail = [*tail[-39:], text.rstrip()]
    process.wait()
    timer.cancel()
    return None if late.is_set() else process.returncode, "\n".join(tail)[-2000:]


def python(module: str, *arguments: str) -> list[str]:
    """The command for a module."""
    return [sys.executable, "-m", module, *arguments]


def default_path(gpu: str) -> Path:
    """The file of this GPU and day."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return ROOT / "benchmarks" / "results" / f"{name}-{date.today()}.jsonl"


def find_tool(name: str) -> str | None:
    """A program of the CUDA toolkit."""
    place = Path("/usr/local/cuda/bin") / name
    return shutil.which(name) or (str(place) if place.is_file() else None)


def run_imports(check: Check) -> None:
    """Each package by itself, with version and place; compcoll is built in place where it has to be."""

    def run(name: str) -> list[str]:
        row = f"{{'what': {name!r}, 'status': 'ok', 'version': it.__version__, 'file': it.__file__, **more}}"
        absent = f"{{'what': {name!r}, 'status': 'missing', 'why': 'not installed'}}"
        code = (
            f"import json; more = {{}}\ntry:\n    {IMPORTS[name]}; row = {row}\n"
            "except ModuleNotFoundError as error:\n"
            f"    if error.name != {name!r}: raise\n    row = {absent}\n"
            "print(json.dumps(row))"
        )
        return check.run("imports", name, [sys.executable, "-c", code])

    with ThreadPoolExecutor(len(IMPORTS)) as threads:
        found = dict(zip(IMPORTS, threads.map(run, IMPORTS), strict=True))
    if found["compcoll"] != ["ok"]:
        python = shlex.quote(sys.executable)
        build = (
            f"{python} setup.py -q build_ext --inplace && make -s -C tests/native internals PYTHON={python}"
        )
        status, tail = execute(["sh", "-c", build], check.seconds / 4)
        row = {"what": "built in place", "status": "failed" if status else "ok", "tail": tail}
        check.add("imports", row)
        check.end += check.seconds / 4
        run("compcoll")


def run_mpi(check: Check) -> None:
    """A job of 2 ranks on the host, by the first of several ways that works, which later jobs take, too."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        check.add("mpi", {"what": "2 ranks of the host", "status": "missing", "why": "no mpiexec"})
        return
    for i, settings in enumerate(LOCAL):
        os.environ.update(settings)
        limit = max(check.left - 3, 2) / (2 if i < len(LOCAL) - 1 else 1)
        found = check.run(
            "mpi", f"{settings}"[1:-1] or "as it is", [mpiexec, "-n", "2", sys.executable, "-c", RANKS], limit
        )
        if found == ["ok"]:
            return
        for name in settings:
            del os.environ[name]


def run_tests(check: Check) -> None:
    """The tests of codecs' bytes, of which some have to pass: without a GPU all are skipped."""
    parallel = ("-n", "4") if _installed("xdist") else ()
    report = (
        check.path.with_name(f"{check.path.stem}-tests.xml") if check.path is not None else Path(os.devnull)
    )
    command = python(
        "pytest",
        TESTS,
        "--gpu",
        "-o",
        "addopts=",
        "-o",
        "timeout=20",
        "-W",
        "default",
        "-v",
        "--tb=short",
        *parallel,
        f"--junitxml={report}",
    )
    status, tail = execute(command, max(check.left - 3, 1))
    passed = status == 0 and " passed" in tail[-200:]
    row = {"what": TESTS, "status": "timeout" if status is None else "ok" if passed else "failed"}
    last = tail.rpartition("\n")[2].strip("= ")
    check.add("tests", {**row, "counts": last} if passed else {**row, "tail": tail})


def _installed(name: str) -> bool:
    return execute([sys.executable, "-c", f"import {name}"], 10)[0] == 0


def run_ranks(
    check: Check, part: str, module: str, *more: str, ranks: int = 2, share: float = 1.0, gbit: int = 0
) -> list[str]:
    """A program on ranks that share the GPUs that there are; with ``gbit`` each on a host of the lab.

    ``share``: of the time that is left of the part.
    """
    what, mpiexec = f"{part} of {ranks} ranks", shutil.which("mpiexec")
    if mpiexec is None:
        check.add(part, {"what": what, "status": "missing", "why": "no mpiexec"})
        return ["missing"]
    seconds = max((check.left - 3) * share, 1)
    command = [mpiexec, "-n", str(ranks)]
    if gbit:
        hosts = ["--hosts", str(ranks), "--gbit", str(gbit), "--timeout", str(seconds)]
        command = [*python("benchmarks.netlab", *hosts), "--"]
    command += [sys.executable, "-m", "mpi4py", "-m", f"benchmarks.{module}", *more]
    command += ["--seconds", str(seconds * 0.8), *check.fake]
    return check.run(part, what, command, seconds + (2 if gbit else 0), f", {gbit} Gb/s" if gbit else "")


def run_lab(check: Check) -> None:
    """Programs on two hosts of the lab, as long as the machine can have one."""
    for i, (gbit, words) in enumerate(LAB):
        if run_ranks(check, "lab", *words, share=1 / (len(LAB) - i), gbit=gbit) == ["missing"] and not i:
            return


def run_random(check: Check) -> None:
    """Random programs, on an even number of ranks and on an odd one, which say how many of them differ."""
    mpiexec = shutil.which("mpiexec")
    for ranks, share in ((2, 0.6), (3, 1.0)):
        row = {"what": f"random programs of {ranks} ranks", "status": "missing", "why": "no mpiexec"}
        if mpiexec is not None:
            seconds = max((check.left - 3) * share, 1)
            many = ["--count", "1000000", "--minutes", str(seconds / 80)]
            more = ["--gpus", *(["--devices", "--count", "3"] if check.fake else many)]
            command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", str(RANDOM), *more]
            status, tail = execute(command, seconds)
            found = {None: "timeout", 0: "ok"}.get(status, "failed")
            row |= {"status": found, "why": "", "tail": tail}
        check.add("random", row)


def run_pairs(
    check: Check, part: str, at_once: int, some: Sequence[tuple[str, str]] = (), limit: float | None = None
) -> None:
    """A part of each codec and type, or of some, several at once."""
    chosen = [pair for pair in check.pairs if not some or pair in some]
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(lambda pair: check.pair(part, *pair, limit=limit), chosen))


def run_sanitizer(check: Check) -> None:
    """Out-of-bounds accesses, races and reads of what nobody wrote, in a small run."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        check.add("sanitizer", {"what": "compute-sanitizer", "status": "missing", "why": "not installed"})
        return

    def run(kind: str) -> None:
        command = [tool, "--tool", kind, "--error-exitcode", "9", *python("benchmarks.gpu_kernels", "small")]
        check.run("sanitizer", kind, [*command, *check.fake], 60)

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, TOOLS))


#: Seconds that each part adds to those within which it has to be done, and what it does: what one leaves
#: others have.
PARTS: dict[str, tuple[int, Callable[[Check], Any]]] = {
    "imports": (10, run_imports),
    "mpi": (7, run_mpi),
    "device": (3, lambda check: check.kernels("device", limit=60)),
    "load": (3, lambda check: check.kernels("load", limit=60)),
    "launch": (10, lambda check: run_pairs(check, "launch", 6)),
    "collectives": (18, lambda check: run_ranks(check, "collectives", "gpu_collectives")),
    "limit": (5, lambda check: run_ranks(check, "limit", "gpu_limit")),
    "random": (16, run_random),
    "lab": (48, run_lab),
    "torch": (18, lambda check: run_ranks(check, "torch", "gpu_torch")),
    "training": (10, lambda check: run_ranks(check, "training", "gpu_torch", "--part", "training")),
    "weights": (8, lambda check: run_ranks(check, "weights", "gpu_torch", "--part", "weights")),
    "tests": (11, run_tests),
    "times": (12, lambda check: run_pairs(check, "times", 4)),  # one at a time has the GPU: `Machine.alone`
    "host": (3, lambda check: check.kernels("host")),
    "large": (6, lambda check: run_pairs(check, "large", 2, LARGE, 60)),
    "sanitizer": (12, run_sanitizer),
}


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; the exit status."""
    options = parse(arguments)
    if options.carry or not options.fake:
        use(options.carry or ROOT / "carry")
    from benchmarks.osu.machine import commit, machine

    check = Check(options.out, options.seconds, options.limit, options.fake)
    specs = options.codecs.split(",") if options.codecs else SPECS
    kinds = options.types.split(",") if options.types else TYPES
    check.pairs = [(spec, kind) for spec in specs for kind in kinds]
    about = {
        **machine(),
        "python": platform.python_version(),
        "commit": commit() or os.environ.get("COMPCOLL_CARRIED"),
        "command": " ".join(sys.argv),
    }

    chosen = options.parts.split(",") if options.parts else list(PARTS)
    check.add("machine", {"what": "host", "status": "ok", **about})
    allowed = sum(PARTS[part][0] for part in chosen)
    check.end = 0.0
    with tempfile.NamedTemporaryFile() as lock:
        os.environ["COMPCOLL_GPU_LOCK"] = lock.name
        for part in chosen:
            check.end += check.seconds * PARTS[part][0] / allowed
            PARTS[part][1](check)
            if part == "mpi" and not options.fake and (problem := without_gpu(check)):
                print(f"gpu-check needs an NVIDIA GPU and CuPy (pip install 'compcoll[cuda13]'): {problem}")
                return 2
    print(summary(check))
    return check.status


def without_gpu(check: Check) -> str:
    """Why no part that needs a GPU can be tried; nothing where they can."""
    for row in check.rows:
        bad = row["part"] == "imports" and row["what"] in NEEDED and row["status"] != "ok"
        later = any(
            r["what"] == row["what"] and r["status"] == "ok" for r in check.rows if r["part"] == "imports"
        )
        if bad and not later:
            return (
                f"{row['what']}: {row.get('tail', '').strip().rpartition(chr(10))[2] or row.get('why', '')}"
            )
    return ""


def summary(check: Check) -> str:
    """What it all comes to, in `PRINTED` characters: what went wrong, then the figures."""
    counts = {s: sum(row["status"] == s for row in check.rows) for s in STATUSES}
    lines = [
        f"{check.passed:.0f} s: " + ", ".join(f"{n} {s}" for s, n in counts.items() if n) + f"; {check.path}"
    ]
    wrong = [row for row in check.rows if STATUSES[row["status"]]]
    lines += [f"{row['status']} {_line(row, 300)}" for row in wrong]
    right = [row for row in check.rows if row["status"] == "ok" and row["part"] != "launch"]
    lines += [_line(row, 160) for row in right if row["part"] in FIRST]
    lines += [_line(row, 120) for row in right if row["part"] not in FIRST]
    text = "\n".join(lines)
    return text if len(text) < PRINTED else text[: PRINTED - 20].rpartition("\n")[0] + "\n(and more)"


def _line(row: dict[str, Any], most: int) -> str:
    """A row in so many characters."""
    more = {
        k: v for k, v in row.items() if k not in ("part", "at", "what", "status", "tail", "command", "file")
    }
    text = " ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items() if v != ""
    )
    tail = row.get("tail", "").strip().rpartition("\n")[2]
    return f"{row['part']} {row['what']}: {text} {tail}".strip()[:most]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=BUDGET, help="time for all (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="time for a process (default: %(default)s)"
    )
    parser.add_argument("--parts", help="these alone, with commas between, in this order")
    parser.add_argument("--out", type=Path, help="file (default: benchmarks/results/<gpu>-<date>.jsonl)")
    parser.add_argument("--codecs", help="these alone, with commas between")
    parser.add_argument("--types", help="these alone, with commas between")
    parser.add_argument("--carry", type=Path, help="what was carried (default: carry/ beside this folder)")
    parser.add_argument(
        FAKE,
        action="store_true",
        help="on the tests' stand-in: all but the GPU; its times mean nothing",
    )
    options = parser.parse_args(arguments)
    if options.fake and options.out is None:
        parser.error(f"{FAKE} needs --out: its figures are no results")
    return options


if __name__ == "__main__":
    sys.exit(main())

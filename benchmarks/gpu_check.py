"""Checks that need a GPU, in less than nine minutes: ``make gpu-check``, or this file by itself.

In order of information: the device and its copies, loading, one launch of each codec's kernels with its
bytes, codecs timed at a size at which their bytes are compared too, bytes just below 4 GiB, host time per
chunk, collectives of 2 ranks, torch's backend, nvCOMP, tests/gpu, and compute-sanitizer. Each is a process of
its own with a limit, so that what hangs, or breaks the device for its process, costs one row.

A row is a line of JSON, printed and appended to ``benchmarks/results/<gpu>-<date>.jsonl`` at once. Its status
is ``ok``, ``refused`` (the codec cannot carry these values, and the CPU's does not either), ``missing``
(something is not installed), ``failed`` or ``timeout``. Ends with 2 without a GPU, else with the sum of 1
where something failed, 4 where something ran out of time and 8 where something is missing.

What ``make carry`` has built, in ``carry/``, is used where it is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.offline_bundle import use  # noqa: E402

BUDGET, LIMIT = 510.0, 20.0
STATUSES = {"ok": 0, "refused": 0, "skipped": 0, "failed": 1, "timeout": 4, "missing": 8}
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAKE = "--fake"
#: Codecs whose kernels wait for each other need many blocks of threads; the others are looked at first.
LARGE = (("zfp:rate=8", "float32"), ("raw", "float32"), ("mpc", "float32"), ("szp:abs=1e-3", "float32"))


class Check:
    """Rows, as they come, and what is left of the time."""

    def __init__(self, path: Path | None, seconds: float, limit: float, fake: bool):
        self.path, self.seconds, self.limit, self.start = path, seconds, limit, time.monotonic()
        self.fake = [FAKE] if fake else []
        self.rows: list[dict[str, Any]] = []
        self.saved = 0
        self._lock = threading.Lock()

    @property
    def passed(self) -> float:
        return time.monotonic() - self.start

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Print and save a row."""
        row = {"part": part, "at": round(self.passed, 1), **row}
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

    def run(self, part: str, what: str, command: Sequence[str], limit: float | None = None) -> None:
        """Rows that a process prints; and one for what became of the process, where that is not plain."""
        limit = min(limit or self.limit, self.seconds - self.passed)
        if limit < 1:
            self.add(part, {"what": what, "status": "timeout", "why": "no time left"})
            return
        found = 0

        def line(text: str) -> None:
            nonlocal found
            if text.startswith('{"what"'):
                found += 1
                self.add(part, json.loads(text))

        status, tail = execute(command, limit, line)
        if status is None:
            self.add(
                part,
                {"what": what, "status": "timeout", "why": f"not done after {limit:.0f} s", "tail": tail},
            )
        elif status:
            self.add(part, {"what": what, "status": "failed", "why": f"exit status {status}", "tail": tail})
        elif not found:
            self.add(part, {"what": what, "status": "failed", "why": "no row", "tail": tail})

    def kernels(self, part: str, *more: str, limit: float | None = None) -> None:
        """A part of `gpu_kernels`."""
        self.run(
            part, " ".join(more) or part, [*python("benchmarks.gpu_kernels", part, *more), *self.fake], limit
        )

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
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
            start_new_session=True, errors="replace",
        )  # fmt: skip
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


def run_tests(check: Check) -> None:
    """tests/gpu, of which some have to pass: without a GPU all are skipped."""
    command = python(
        "pytest", "tests/gpu", "-o", "addopts=", "-o", "timeout=20", "-W", "default", "-v", "--tb=short"
    )
    status, tail = execute(command, min(120, max(check.seconds - check.passed, 1)))
    passed = status == 0 and " passed" in tail[-200:]
    row = {"what": "tests/gpu", "status": "timeout" if status is None else "ok" if passed else "failed"}
    check.add("tests", row if passed else {**row, "tail": tail})


def run_ranks(check: Check, part: str, module: str, ranks: int) -> None:
    """A program on ranks that share the GPUs that there are."""
    what, mpiexec = f"{part} of {ranks} ranks", shutil.which("mpiexec")
    if mpiexec is None:
        check.add(part, {"what": what, "status": "missing", "why": "no mpiexec"})
        return
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", "-m", module]
    seconds = min(90.0, max(check.seconds - check.passed, 1))
    check.run(part, what, [*command, "--seconds", str(seconds * 0.8), *check.fake], seconds)


def run_sanitizer(check: Check) -> None:
    """Out-of-bounds accesses, races and reads of what nobody wrote, in a small run."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        check.add("sanitizer", {"what": "compute-sanitizer", "status": "missing", "why": "not installed"})
        return

    def run(kind: str) -> None:
        command = [tool, "--tool", kind, "--error-exitcode", "9", *python("benchmarks.gpu_kernels", "small")]
        check.run("sanitizer", kind, [*command, *check.fake], 60)

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, TOOLS))


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; the exit status."""
    options = parse(arguments)
    if not options.fake:
        use(ROOT / "carry")
    if not options.fake and (problem := without_gpu()):
        print(f"gpu-check needs an NVIDIA GPU and CuPy (pip install 'compcoll[cuda13]'): {problem}")
        return 2
    from benchmarks.gpu_kernels import DTYPES, SPECS
    from benchmarks.osu.machine import commit, machine

    check = Check(options.out, options.seconds, options.limit, options.fake)
    specs = options.codecs.split(",") if options.codecs else SPECS
    kinds = options.types.split(",") if options.types else list(DTYPES)
    about = {
        **machine(),
        "python": platform.python_version(),
        "commit": commit(),
        "command": " ".join(sys.argv),
    }
    pairs = [(spec, kind) for spec in specs for kind in kinds]

    def launch() -> None:
        with ThreadPoolExecutor(4) as threads:  # what is only compared needs no device of its own
            list(threads.map(lambda pair: check.kernels("launch", *pair), pairs))

    parts: dict[str, Callable[[], Any]] = {
        "device": lambda: check.kernels("device", limit=60),
        "load": lambda: check.kernels("load", limit=60),
        "launch": launch,
        "times": lambda: [check.kernels("times", *pair) for pair in pairs],
        "large": lambda: [check.kernels("large", *pair, limit=60) for pair in LARGE if pair in pairs],
        "host": lambda: check.kernels("host"),
        "collectives": lambda: run_ranks(check, "collectives", "benchmarks.gpu_collectives", 2),
        "torch": lambda: run_ranks(check, "torch", "benchmarks.gpu_torch", 2),
        "nvcomp": lambda: check.kernels("nvcomp", limit=30),
        "tests": lambda: run_tests(check),
        "sanitizer": lambda: run_sanitizer(check),
    }
    chosen = options.parts.split(",") if options.parts else list(parts)
    check.add("machine", {"what": "host", "status": "ok", **about})
    for part in chosen:
        parts[part]()
    counts = {s: sum(row["status"] == s for row in check.rows) for s in STATUSES}
    print(
        f"{check.passed:.0f} s: " + ", ".join(f"{n} {s}" for s, n in counts.items() if n) + f"; {check.path}"
    )
    return check.status


def without_gpu() -> str:
    """Why there is no GPU that can be reached; nothing where there is one."""
    code = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    status, tail = execute([sys.executable, "-c", code], 60)
    return "" if status == 0 else tail.strip().rsplit("\n", 1)[-1] or f"status {status}"


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
    parser.add_argument(
        FAKE,
        action="store_true",
        help="on the tests' stand-in for CuPy: all but the GPU; its times mean nothing",
    )
    options = parser.parse_args(arguments)
    if options.fake and options.out is None:
        parser.error(f"{FAKE} needs --out: its figures are no results")
    return options


if __name__ == "__main__":
    sys.exit(main())

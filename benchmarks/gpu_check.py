"""What can only be known on a GPU, in less than nine minutes: ``make gpu-check``.

Compiles the kernels, then runs tests/gpu, a small run under compute-sanitizer where that is installed, every
kernel against the device's own copy and against nvCOMP where that is installed, and collectives of 2 and 4
ranks against plain staging through host memory. A part that fails is recorded, and the next one begins. All
figures go to ``benchmarks/results/<gpu>-<date>.json``. Ends with 0 where all is well, 1 where something
failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_machine import FAKE, Machine, open_machine  # noqa: E402
from benchmarks.machine import commit, machine  # noqa: E402

BUDGET = 510.0
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


class Budget:
    """Seconds, and what is left of them."""

    def __init__(self, seconds: float):
        self.seconds, self.start = seconds, time.monotonic()

    def left(self, most: float) -> float:
        """What a part may take, at least one second."""
        return max(min(most, self.seconds - self.passed), 1.0)

    @property
    def passed(self) -> float:
        return time.monotonic() - self.start


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; the exit status."""
    options = parse(arguments)
    from compcoll.devices import cuda

    if not options.fake and not cuda.available():
        print(
            "gpu-check needs an NVIDIA GPU and CuPy (pip install 'compcoll[cuda13]' or 'compcoll[cuda12]'): "
            f"{why_not()}. {FAKE} tries out everything else."
        )
        return 2
    budget, gpu = Budget(options.seconds), open_machine(options.fake)
    result: dict[str, Any] = {"machine": describe(gpu), "parts": {}}
    fake = [FAKE] if options.fake else []
    from benchmarks.gpu_kernels import kernel_speeds, nvcomp_speeds

    parts: dict[str, Callable[[], Any]] = {
        "compile": gpu.compile,
        "tests": lambda: run_tests(budget.left(130)),
        "sanitizer": lambda: run_sanitizer(budget.left(60), fake),
        "kernels": lambda: kernel_speeds(gpu, budget.left(80)),
        "nvcomp": lambda: nvcomp_speeds(gpu, budget.left(30)),
        "collectives, 2 ranks": lambda: run_collectives(2, budget.left(90), fake),
        "collectives, 4 ranks": lambda: run_collectives(4, budget.left(100), fake),
    }
    for name, part in parts.items():
        print(f"{budget.passed:4.0f} s  {name}", flush=True)
        result["parts"][name] = guarded(part)
    result["seconds"] = budget.passed
    path = options.out or default_path(result["machine"]["gpu"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    show(result)
    wrong = problems(result["parts"])
    print("\n".join(["", *wrong, f"{budget.passed:.0f} s; figures are in {path}"]))
    return 1 if wrong else 0


def why_not() -> str:
    """What CuPy says where there is no GPU."""
    try:
        import cupy

        return f"CuPy {cupy.__version__} finds {cupy.cuda.runtime.getDeviceCount()} devices"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=BUDGET, help="time for all (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/<gpu>-<date>.json)")
    parser.add_argument(
        FAKE, action="store_true", help="on the device of the tests: all but the GPU; its times mean nothing"
    )
    options = parser.parse_args(arguments)
    if options.fake and options.out is None:
        parser.error(f"{FAKE} needs --out: its figures are no results")
    return options


def guarded(part: Callable[[], Any]) -> Any:
    """A part's result, or what went wrong with it."""
    try:
        return part()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def describe(gpu: Machine) -> dict[str, Any]:
    """Where and on what this ran, so that it can be run again."""
    import numpy as np

    import compcoll

    return {
        **gpu.about(), **machine(), "python": platform.python_version(), "numpy": np.__version__,
        "compcoll": compcoll.__version__, "commit": commit(), "command": " ".join(sys.argv),
        "date": str(date.today()),
    }  # fmt: skip


def default_path(gpu: str) -> Path:
    """The file of this GPU and day."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return ROOT / "benchmarks" / "results" / f"{name}-{date.today()}.json"


def _run(command: list[str], seconds: float) -> tuple[int, str]:
    """Exit status, -1 where it took too long, and what it printed until then."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return 127, str(error)
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec ends its ranks, which a kill would leave behind
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
        return -1, f"{output}\nnot done after {seconds:.0f} s"


def run_tests(seconds: float) -> dict[str, Any]:
    """tests/gpu, of which some have to pass: without a GPU all are skipped."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-o", "addopts=", "-rfEs", "--tb=short"]
    status, output = _run(command, seconds)
    lines = output.strip().splitlines()
    passed = status == 0 and " passed" in lines[-1]
    return {"passed": passed, "summary": lines[-12:] if passed else lines[-60:]}


def run_sanitizer(seconds: float, fake: list[str]) -> dict[str, Any]:
    """Out-of-bounds accesses, races and reads of what nobody wrote, in a small run."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        return {"skipped": "compute-sanitizer is not installed"}

    def run(kind: str) -> tuple[int, list[str]]:
        command = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable]
        status, output = _run([*command, "-m", "benchmarks.gpu_kernels", *fake], seconds)
        lines = output.strip().splitlines()
        return status, lines[-1:] if status == 0 else lines[-40:]

    with ThreadPoolExecutor() as threads:
        found = dict(zip(TOOLS, threads.map(run, TOOLS), strict=True))
    # They slow down a hundredfold: to run out of time is no error.
    passed = all(status in (0, -1) for status, _ in found.values())
    return {"passed": passed, **{kind: lines for kind, (_, lines) in found.items()}}


def run_collectives(ranks: int, seconds: float, fake: list[str]) -> list[dict[str, Any]]:
    """The rows of `gpu_collectives` on so many ranks, which share the GPUs that there are."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        return [{"what": f"{ranks} ranks", "error": "no mpiexec"}]
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", "-m", "benchmarks.gpu_collectives"]
    status, output = _run([*command, "--seconds", str(seconds * 0.8), *fake], seconds)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"what"')]
    if status:
        rows.append({"what": f"{ranks} ranks", "error": f"status {status}: {output.strip()[-1000:]}"})
    return rows


def problems(parts: dict[str, Any]) -> list[str]:
    """What went wrong; to be skipped, or out of time, is not wrong."""
    found = []
    for name, part in parts.items():
        for row in part if isinstance(part, list) else [part]:
            error = row.get("error") if row.get("error") not in ("no time left", "no kernel") else None
            if error or not row.get("passed", True) or not row.get("bits of the CPU", True):
                found.append(f"FAILED {name}: {row.get('what', '')} {error or 'see the file'}")
    return found


def show(result: dict[str, Any]) -> None:
    """Tables of what was measured."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(Console().width, 120))
    console.print(result["machine"])
    for title, rows in result["parts"].items():
        if not isinstance(rows, list):
            console.print(title, rows)
            continue
        keys = list(dict.fromkeys(key for row in rows for key in row if key != "what"))
        table = Table("", title=title)
        for key in keys:
            table.add_column(key, justify="right")
        for row in rows:
            cells = [row.get(key, "-") for key in keys]
            table.add_row(row["what"], *(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells))
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())

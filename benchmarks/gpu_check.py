"""Checks that need a GPU, in 200 seconds: ``make gpu-check``, or this file by itself.

It needs no pip and no network: on a machine with a GPU and CuPy, ``python3 benchmarks/gpu_check.py --out
FILE`` in a copy of the repository with what ``make carry`` has built, in ``carry/``.

The parts (`PARTS`) are in an order in which each is useful even if the later ones fail: imports, MPI without
a GPU, the device and its copies, loading, one launch of each codec's kernels with a check of its bytes, tests
of bytes, of torch's backend and of random programs, collectives of 2 ranks, some of them and DDP between the
lab's two hosts, the limit that driver and MPI set, torch's operations, training, WeightSync and checkpoints,
codecs timed with a check of their bytes, host time per chunk, arrays just below 4 GiB, and compute-sanitizer.
NCCL in the lab and calls of host memory on all cores run only if asked for (`MORE`). Each check is a process
with a time limit, so that a hang or a broken device costs one row. If a codec hangs on a type, that pair is
not tried again. If its bytes differ from the CPU's, it is run under memcheck.

A row is a line of JSON, printed and appended to ``benchmarks/results/<gpu>-<date>.jsonl`` at once. Its status
is ``ok``, ``refused`` (the codec cannot carry these values, on the CPU neither), ``skipped``, ``missing``
(something is not installed), ``failed`` or ``timeout``; ``gpu_shared`` means that its ranks shared a GPU. A
summary of at most 10,000 characters is printed last. The exit status is 2 without a GPU, else the sum of 1 if
something failed, 4 if something ran out of time and 8 if something is missing. Frames that differ from the
CPU's are beside the rows, in ``<name>-frames.zip``.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_rows import FAKE, STATUSES, Check, execute, find_tool, python  # noqa: E402
from benchmarks.offline_bundle import use  # noqa: E402

BUDGET, LIMIT, PRINTED = 200.0, 20.0, 10_000
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Tests on the GPU: of one process, and of the torch backend on several ranks.
BYTES = ("tests/serial/test_devices_bytes.py",)
TORCH = ("tests/torch/test_device.py", "tests/torch/test_device_streams.py", "-k", "device")
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
#: Pairs for part ``large``; the codecs whose thread blocks wait for each other come last.
LARGE = (("zfp:rate=8", "float32"), ("raw", "float32"), ("mpc", "float32"), ("szp:abs=1e-3", "float32"))
IMPORTS = {
    "numpy": "import numpy as it",
    "mpi4py": "import mpi4py as it; from mpi4py import MPI; more['mpi'] = MPI.Get_library_version()[:60]",
    "compcoll": "import compcoll as it, compcoll.core._cpu, compcoll.engine._engine",
    "cupy": "import cupy as it; more['gpus'] = it.cuda.runtime.getDeviceCount()",
    "torch": "import torch as it; more['cuda'], more['gpu'] = it.version.cuda, it.cuda.is_available()",
}
#: Parts that a summary shows before others, and fields that are only in the file.
FIRST = ("machine", "device", "times", "collectives", "limit", "lab", "training", "nccl")
LEFT_OUT = {"part", "at", "what", "status", "tail", "command", "file", "ranks", "gpu_shared", "accelerated"}
#: Packages without which no GPU check can run.
NEEDED = ("compcoll", "cupy")
#: Programs between the lab's hosts: the rate of the links in Gb/s, a variable, the program.
LAB: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (25, "", ("gpu_collectives", "--brief")),
    (10, "", ("gpu_collectives", "--brief")),
    (25, "", ("gpu_torch", "--part", "training")),
    (10, "UCX_TCP_PUT_ENABLE=n", ("gpu_collectives", "--only", "Alltoall lossless")),
    (10, "", ("gpu_limit", "--brief")),
    (25, "", ("gpu_limit", "--brief")),
)
NCCL = tuple((gbit, "", ("gpu_torch", "--part", "nccl")) for gbit in (25, 10))
#: Program of random calls; some ranks have their buffers on GPUs.
RANDOM = ROOT / "tests" / "mpi" / "random_programs.py"
#: A sample of the cores, rates and sizes of benchmarks/spare_cores.py.
CORES = "--cores 1,8 --gbit 10,25 --operations alltoall --sizes 64K,1M,16M --runs 3"
#: Settings to start MPI with; all but the first are for a machine without a network.
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
    print(json.dumps({**row, "gpu_shared": False}), flush=True)
"""


def run_imports(check: Check) -> None:
    """Import each package in its own process; build compcoll in place if it is not built."""

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
        run_program(check, "imports", "built in place", ["sh", "-c", build], check.seconds / 4)
        check.end += check.seconds / 4
        run("compcoll")


def run_mpi(check: Check) -> None:
    """Run 2 ranks on the host with the first of several settings that works; later jobs use it too."""
    for i, settings in enumerate(LOCAL):
        os.environ.update(settings)
        limit = max(check.left - 3, 2) / (2 if i < len(LOCAL) - 1 else 1)
        command = started(check, "mpi", 2, sys.executable, "-c", RANKS)
        if not command or check.run("mpi", f"{settings}"[1:-1] or "as it is", command, limit) == ["ok"]:
            return
        for name in settings:
            del os.environ[name]


def started(check: Check, part: str, ranks: int, *words: str) -> list[str]:
    """The command under mpiexec; empty if mpiexec is missing, which a row then reports."""
    if mpiexec := shutil.which("mpiexec"):
        return [mpiexec, "-n", str(ranks), *words]
    check.add(part, {"what": f"{part} of {ranks} ranks", "status": "missing", "why": "no mpiexec"})
    return []


def run_program(
    check: Check, part: str, what: str, command: Sequence[str], seconds: float = 0, needed: str = "", **more
) -> None:
    """Run a program that prints no rows; its output has to end with ``needed``."""
    if command:
        status, tail = execute(command, max(seconds or check.left - 3, 1))
        right = status == 0 and needed in tail[-200:]
        found = "timeout" if status is None else "ok" if right else "failed"
        check.add(part, {"what": what, "status": found, **more, "tail": tail})


def run_tests(check: Check, part: str, ranks: int, *files: str) -> None:
    """Run tests on the GPU. At least one has to pass, because without a GPU all are skipped."""
    command = python("pytest", *files, "--gpu", "-o", "addopts=", "-o", "timeout=20", "-W", "default", "-v")
    if ranks > 1:
        command = started(check, part, ranks, *command)
    elif execute([sys.executable, "-c", "import xdist"], 10)[0] == 0:
        command += ["-n", "4"]
    if check.path is not None and ranks == 1:
        command.append(f"--junitxml={check.path.with_name(f'{check.path.stem}-tests.xml')}")
    run_program(check, part, files[0], command, needed=" passed", ranks=ranks)


def run_random(check: Check) -> None:
    """Run random programs on an even and on an odd number of ranks; they print how many results differ."""
    for ranks, share in ((2, 0.6), (3, 1.0)):
        seconds = max((check.left - 3) * share, 1)
        many = ["--count", "1000000", "--minutes", str(seconds / 80)]
        more = ["--gpus", *(["--devices", "--count", "3"] if check.fake else many)]
        command = started(check, "random", ranks, sys.executable, "-m", "mpi4py", str(RANDOM), *more)
        run_program(check, "random", f"random programs of {ranks} ranks", command, seconds, ranks=ranks)


def run_ranks(
    check: Check, part: str, *words: str, share: float = 1.0, gbit: int = 0, variable: str = ""
) -> list[str]:
    """Run a program on 2 ranks that share the available GPUs; with ``gbit`` each on its own host of the lab.

    ``share``: part of the remaining time that it may take; ``variable``: NAME=VALUE for the environment.
    """
    seconds, (module, *more) = max((check.left - 3) * share, 1), words
    program = [*(["env", variable] if variable else []), sys.executable, "-m", "mpi4py"]
    program += ["-m", f"benchmarks.{module}", *more, "--seconds", str(seconds * 0.8), *check.fake]
    command = started(check, part, 2, *program)
    if not command:
        return ["missing"]
    if gbit:
        hosts = ["--hosts", "2", "--gbit", str(gbit), "--timeout", str(seconds)]
        command = [*python("benchmarks.netlab", *hosts), "--", *program]
    note = f", {gbit} Gb/s" * bool(gbit) + f", {variable}" * bool(variable)
    return check.run(part, f"{part} of 2 ranks", command, seconds + (2 if gbit else 0), note)


def run_lab(check: Check, part: str, programs: Sequence[tuple[int, str, tuple[str, ...]]]) -> None:
    """Run programs on two hosts of the lab, if this machine can have a lab."""
    for i, (gbit, variable, words) in enumerate(programs):
        share = 1 / (len(programs) - i)
        found = run_ranks(check, part, *words, share=share, gbit=gbit, variable=variable)
        if found == ["missing"] and not i:
            return


def run_kernels(check: Check, part: str, *more: str, limit: float | None = None) -> list[str]:
    """Run a part of `gpu_kernels`."""
    command = [*python("benchmarks.gpu_kernels", part, *more), *check.fake]
    return check.run(part, " ".join(more) or part, command, limit)


def run_pair(check: Check, part: str, spec: str, kind: str, limit: float | None = None) -> None:
    """Run a part of `gpu_kernels` on a codec and a type; under memcheck too if its bytes are wrong."""
    what = f"{spec} {kind}"
    if what in check.hung:
        check.add(part, {"what": what, "status": "skipped", "why": "it hung before"})
        return
    found = run_kernels(check, part, spec, kind, limit=limit)
    if "timeout" in found:
        check.hung.add(what)
    elif "failed" in found and (tool := find_tool("compute-sanitizer")):
        command = [*python("benchmarks.gpu_kernels", "launch", spec, kind), *check.fake]
        check.run("memcheck", what, [tool, "--error-exitcode", "9", *command], 40)


def run_pairs(check: Check, part: str, at_once: int) -> None:
    """Run a part on each codec and type, several at once."""
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(lambda pair: run_pair(check, part, *pair), check.pairs))


def run_large(check: Check) -> None:
    """Run the chosen pairs of `LARGE`, two at once."""
    with ThreadPoolExecutor(2) as threads:
        chosen = [pair for pair in LARGE if pair in check.pairs]
        list(threads.map(lambda pair: run_pair(check, "large", *pair, limit=60), chosen))


def run_sanitizer(check: Check) -> None:
    """Look for out-of-bounds accesses, races and uninitialized reads in a small run."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        check.add("sanitizer", {"what": "compute-sanitizer", "status": "missing", "why": "not installed"})
        return

    def run(kind: str) -> None:
        command = [tool, "--tool", kind, "--error-exitcode", "9", *python("benchmarks.gpu_kernels", "small")]
        check.run("sanitizer", kind, [*command, *check.fake], 60)

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, TOOLS))


#: Seconds that each part adds to the budget, and its function. Later parts may use the seconds that a part
#: leaves over.
PARTS: dict[str, tuple[int, Callable[[Check], Any]]] = {
    "imports": (9, run_imports),
    "mpi": (6, run_mpi),
    "device": (3, lambda check: run_kernels(check, "device", limit=60)),
    "load": (3, lambda check: run_kernels(check, "load", limit=60)),
    "launch": (10, lambda check: run_pairs(check, "launch", 6)),
    "tests": (8, lambda check: run_tests(check, "tests", 1, *BYTES)),
    "torch": (19, lambda check: run_tests(check, "torch", 2, *TORCH)),
    "random": (12, run_random),
    "collectives": (20, lambda check: run_ranks(check, "collectives", "gpu_collectives")),
    "lab": (46, lambda check: run_lab(check, "lab", LAB)),
    "limit": (6, lambda check: run_ranks(check, "limit", "gpu_limit")),
    "operations": (10, lambda check: run_ranks(check, "operations", "gpu_torch")),
    "training": (9, lambda check: run_ranks(check, "training", "gpu_torch", "--part", "training")),
    "weights": (8, lambda check: run_ranks(check, "weights", "gpu_torch", "--part", "weights")),
    "times": (11, lambda check: run_pairs(check, "times", 4)),  # one at a time has the GPU: `Machine.alone`
    "host": (3, lambda check: run_kernels(check, "host")),
    "large": (6, run_large),
    "sanitizer": (11, run_sanitizer),
}
#: Parts that run only if they are asked for.
MORE: dict[str, tuple[int, Callable[[Check], Any]]] = {
    "nccl": (100, lambda check: run_lab(check, "nccl", NCCL)),
    "cores": (80, lambda c: run_program(c, "cores", CORES, python("benchmarks.spare_cores", *CORES.split()))),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts; the exit status."""
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

    chosen, parts = options.parts.split(",") if options.parts else list(PARTS), {**PARTS, **MORE}
    check.add("machine", {"what": "host", "status": "ok", **about})
    allowed = sum(parts[part][0] for part in chosen)
    check.end = 0.0
    with tempfile.NamedTemporaryFile() as lock:
        os.environ["COMPCOLL_GPU_LOCK"] = lock.name
        for part in chosen:
            check.end += check.seconds * parts[part][0] / allowed
            parts[part][1](check)
            if part == "mpi" and not options.fake and (problem := without_gpu(check)):
                print(f"gpu-check needs an NVIDIA GPU and CuPy (pip install 'compcoll[cuda13]'): {problem}")
                return 2
    print(summary(check))
    return check.status


def without_gpu(check: Check) -> str:
    """The reason why no part that needs a GPU can run; empty if they can."""
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
    """Summary in at most `PRINTED` characters: failures first, then figures."""
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
    """A row in at most ``most`` characters."""
    more = {k: v for k, v in row.items() if k not in LEFT_OUT and v != ""}
    text = " ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items())
    tail = row.get("tail", "").strip().rpartition("\n")[2]
    return f"{row['part']} {row['what']}: {text} {tail}".strip()[:most]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("seconds", BUDGET), ("limit", LIMIT)):
        what = "all" if name == "seconds" else "a process"
        parser.add_argument(f"--{name}", type=float, default=default, help=f"time for {what} (%(default)s)")
    names = f"{', '.join(PARTS)}; and {', '.join(MORE)}"
    parser.add_argument("--parts", help=f"these alone, with commas between, in this order: {names}")
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

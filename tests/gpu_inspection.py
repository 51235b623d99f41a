"""Figures of the CUDA kernels, compiled without a GPU: ``make kernels``.

The figures are registers, bytes spilled, bytes of shared memory, and instructions of the main loop of each
kernel. The command fails if a kernel does not compile, spills registers, or takes too many instructions.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from rich.table import Table

from compcoll.cli.output import wide_console
from compcoll.devices.kernels import MODULES, all_kernels

sys.path.append(str(Path(__file__).parent / "serial"))

from kernel_compiler import CompileError, Unavailable, compile_kernels

__all__ = ["Figures", "find_disassembler", "inspect", "main", "problems"]

#: Encoder that stands for all others, and the most instructions that a block of it may take.
_MEASURED, _LIMIT = "zfp_encode_f32_32bit", 250

# Options that CuPy adds to every compilation, and verbose output.
_OPTIONS = ("-ftz=true", "--ptxas-options=-v")
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.(\w+)")
_LABEL = re.compile(r"^(\.L\w+):")
_WIDE = re.compile(r"\b(?:LD|ST)G?\.E\S*\.128\b(?!\.CONSTANT)")  # tables are constant
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);")


@dataclass
class Figures:
    """One kernel, compiled for one architecture.

    Attributes
    ----------
    registers : int
        Registers of a thread.
    spilled : int
        Bytes stored to and loaded from memory because registers did not suffice.
    shared : int
        Bytes of shared memory of a block of threads.
    instructions : int or None
        Instructions of the kernel; None without a disassembler.
    loop : int or None
        Instructions on the longest way through the main loop: the longest loop with loads or stores of 16
        bytes, or the longest of all if there are none. For zfp, this is a block with the largest possible
        number of planes.
    """

    kernel: str
    arch: str
    registers: int
    spilled: int
    shared: int
    instructions: int | None = None
    loop: int | None = None


def find_disassembler() -> str | None:
    """Path of ``nvdisasm``, from the search path, a CUDA toolkit or a Python package."""
    if found := shutil.which("nvdisasm"):
        return found
    folders = [Path("/usr/local/cuda/bin")]
    for package in ("nvidia", "triton"):
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            folders += [*sorted(Path(place).glob("cu*/bin")), Path(place) / "backends/nvidia/bin"]
    return next((str(f / "nvdisasm") for f in folders if (f / "nvdisasm").is_file()), None)


def inspect(module: str, arch: str) -> list[Figures]:
    """Compile a file of csrc/cuda, and return the figures of its kernels; raises like `compile_kernels`."""
    cubin, _, log = compile_kernels(module, arch, _OPTIONS)
    figures = {f.kernel: f for f in _read_log(log, arch)}
    if tool := find_disassembler():
        for name, (instructions, loop) in _disassemble(tool, cubin).items():
            if name in figures:
                figures[name].instructions, figures[name].loop = instructions, loop
    return sorted(figures.values(), key=lambda f: f.kernel)


def _read_log(log: str, arch: str) -> list[Figures]:
    result = []
    for part in re.split(r"(?=ptxas info\s*: Compiling entry)", log):
        entry, used, spills = _ENTRY.search(part), _USED.search(part), _SPILLS.search(part)
        if entry and used:
            spilled = sum(map(int, spills.groups())) if spills else 0
            result.append(Figures(entry[1], arch, int(used[1]), spilled, int(used[2] or 0)))
    return result


def _disassemble(tool: str, cubin: bytes) -> dict[str, tuple[int, int]]:
    """Number of instructions of each function, and of its longest loop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=False)
    result: dict[str, tuple[int, int]] = {}
    name = ""
    code: list[str] = []
    labels: dict[str, int] = {}
    pending: list[str] = []

    def close() -> None:
        if name and code:
            result[name] = sum(not text.startswith("NOP") for text in code), _longest_loop(code, labels)

    for line in done.stdout.splitlines():
        if match := _FUNCTION.match(line):
            close()
            name, code, labels, pending = match[1], [], {}, []
        elif match := _LABEL.match(line):
            pending.append(match[1])
        elif match := _INSTRUCTION.match(line):
            labels.update(dict.fromkeys(pending, len(code)))
            pending = []
            code.append(match[2].strip())
    close()
    return result


def _longest_loop(code: list[str], labels: dict[str, int]) -> int:
    """Number of instructions on the longest way through the main loop, with inner loops taken once."""
    loops = [(False, 0, 0, 0)]
    reached = _reached(code, labels)
    for last, text in enumerate(code):
        first = _target(text, labels)
        if first is not None and first < last and last in reached:  # a branch to itself pads the end
            wide = any(_WIDE.search(line) for line in code[first:last])
            loops.append((wide, last - first, first, last))
    _, _, first, last = max(loops)
    longest = [0] * (len(code) + 1)
    for i in range(last, first - 1, -1):
        target = _target(code[i], labels)
        ways = [longest[target]] if target is not None and i < target <= last else []
        if i < last and (target is None or _conditional(code[i])):
            ways.append(longest[i + 1])
        longest[i] = 1 + max(ways, default=0)
    return longest[first] if last > first else 0


def _reached(code: list[str], labels: dict[str, int]) -> set[int]:
    """Indices of the instructions that control reaches without calls."""
    reached: set[int] = set()
    starts = [0]
    while starts:
        i = starts.pop()
        while i < len(code) and i not in reached:
            reached.add(i)
            target = _target(code[i], labels)
            if target is not None:
                starts.append(target)
            if (target is not None or code[i].startswith("EXIT")) and not _conditional(code[i]):
                break
            i += 1
    return reached


def _conditional(text: str) -> bool:
    """True if a branch has a predicate, in front or among its operands."""
    return text.startswith("@") or bool(re.search(r"BRA\S*\s+!?U?P\d", text))


def _target(text: str, labels: dict[str, int]) -> int | None:
    if "BRA.DIV" in text:  # for diverged warps, which these kernels do not have
        return None
    match = re.search(r"\bBRA\b.*`\((\.L\w+)\)", text)
    return labels.get(match[1]) if match else None


def problems(found: list[Figures], archs: list[str]) -> list[str]:
    """Faults of kernels, a line for each."""
    expected = {kernel.name for kernel in all_kernels() if kernel.module in MODULES}
    told = []
    for arch in archs:
        missing = expected - {f.kernel for f in found if f.arch == arch}
        told += [f"{kernel} is missing for {arch}" for kernel in sorted(missing)]
    for f in found:
        if f.spilled:
            told.append(f"{f.kernel} for {f.arch} spills {f.spilled} bytes")
        if f.kernel == _MEASURED and (f.loop or 0) > _LIMIT:
            told.append(f"{f.kernel} for {f.arch} takes {f.loop} instructions a block, more than {_LIMIT}")
    return told


def _print(found: list[Figures], archs: list[str]) -> None:
    """Print a table of kernels by architectures."""
    table = Table("kernel", title="registers, bytes spilled, bytes shared, instructions of the main loop")
    for arch in archs:
        table.add_column(arch, justify="right", no_wrap=True)
    cells = {(f.kernel, f.arch): f"{f.registers} {f.spilled} {f.shared:5} {f.loop or '-':>5}" for f in found}
    for kernel in sorted({f.kernel for f in found}):
        table.add_row(kernel, *(cells.get((kernel, arch), "-") for arch in archs))
    wide_console().print(table)
    if find_disassembler() is None:
        print("Without nvdisasm no instructions are counted: pip install nvidia-cuda-nvdisasm")


def main(arguments: list[str] | None = None) -> int:
    """Compile all kernels, print their figures and faults, and return 1 if there are faults, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch", default="sm_75,sm_80,sm_90,sm_100", help="with commas between (default: %(default)s)"
    )
    archs = parser.parse_args(arguments).arch.split(",")
    jobs = list(product(MODULES, archs))
    found: list[Figures] = []
    try:
        with ThreadPoolExecutor(2) as threads:
            for done, part in enumerate(threads.map(inspect, *zip(*jobs, strict=True)), 1):
                found += part
                print(f"{done} of {len(jobs)}: {' for '.join(jobs[done - 1])}", file=sys.stderr)
    except (CompileError, Unavailable) as error:
        sys.exit(f"Error: {error}")
    _print(found, archs)
    faults = problems(found, archs)
    print(*faults, sep="\n", file=sys.stderr, end="\n" * bool(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

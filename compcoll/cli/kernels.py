"""``compcoll kernels``."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import click

#: The encoder whose speed the others are measured by, and the most instructions that a block may take.
_MEASURED, _LIMIT = "zfp_encode_f32_32bit", 250


@click.command()
@click.option(
    "--arch",
    default="sm_75,sm_80,sm_90,sm_100",
    show_default=True,
    help="Architectures, with commas between.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every kernel, not only the most demanding ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(arch: str, show_all: bool, as_json: bool) -> None:
    """Compile the CUDA kernels, without a GPU, and show what they need.

    Fails where a kernel does not compile, spills registers, or takes too many instructions.
    """
    from compcoll.devices.inspection import find_disassembler, inspect
    from compcoll.devices.kernels import SOURCES, all_kernels
    from compcoll.devices.nvrtc import CompileError, Unavailable

    archs = [word.strip() for word in arch.split(",") if word.strip()]
    jobs = [(module, name) for name in archs for module in SOURCES]
    with ThreadPoolExecutor(2) as threads:
        try:
            found = [f for part in threads.map(lambda job: inspect(*job), jobs) for f in part]
        except (CompileError, Unavailable) as error:
            raise click.ClickException(str(error)) from None
    problems = _problems(found, archs, {kernel.name for kernel in all_kernels()})
    if as_json:
        click.echo(json.dumps({"kernels": [f.as_dict() for f in found], "problems": problems}, indent=2))
    else:
        _print(found, archs, show_all, find_disassembler() is None)
        for problem in problems:
            click.echo(problem, err=True)
    if problems:
        sys.exit(1)


def _problems(found: list, archs: list[str], expected: set[str]) -> list[str]:
    """Faults of a kernel, a line each."""
    problems = []
    for arch in archs:
        missing = expected - {f.kernel for f in found if f.arch == arch}
        problems += [f"{kernel} is missing for {arch}" for kernel in sorted(missing)]
    for f in found:
        if f.spilled:
            problems.append(f"{f.kernel} for {f.arch} spills {f.spilled} bytes")
        if f.kernel == _MEASURED and (f.loop or 0) > _LIMIT:
            problems.append(
                f"{f.kernel} for {f.arch} takes {f.loop} instructions a block, more than {_LIMIT}"
            )
    return problems


def _print(found: list, archs: list[str], show_all: bool, without_disassembler: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    names = sorted({f.kernel for f in found})
    shown = [
        k for k in names if "_f32" in k or "_" not in k or any(f.spilled for f in found if f.kernel == k)
    ]
    if show_all:
        shown = names
    table = Table(
        title="per architecture: registers, bytes spilled, bytes shared, instructions of the main loop"
    )
    table.add_column("kernel", no_wrap=True)
    for arch in archs:
        table.add_column(arch, justify="right", no_wrap=True)
    figures = {(f.kernel, f.arch): f for f in found}
    for kernel in shown:
        cells = []
        for arch in archs:
            f = figures.get((kernel, arch))
            cells.append(
                "-" if f is None else f"{f.registers:3} {f.spilled:2} {f.shared:5} {f.loop or '-':>5}"
            )
        table.add_row(kernel, *cells)
    console = Console(width=max(Console().width, 120))
    console.print(table)
    if not show_all:
        console.print(f"--all shows the other {len(names) - len(shown)} of {len(names)} kernels.")
    if without_disassembler:
        console.print("Without nvdisasm no instructions are counted: pip install nvidia-cuda-nvdisasm")

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
    "--arch", default="sm_75,sm_80,sm_90,sm_100", show_default=True, help="Architectures, with commas between."
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
    problems = []
    expected = {kernel.name for kernel in all_kernels()}
    for name in archs:
        missing = expected - {f.kernel for f in found if f.arch == name}
        problems += [f"{kernel} is missing for {name}" for kernel in sorted(missing)]
    problems += [f"{f.kernel} for {f.arch} spills {f.spilled} bytes" for f in found if f.spilled]
    problems += [
        f"{f.kernel} for {f.arch} takes {f.loop} instructions a block, more than {_LIMIT}"
        for f in found
        if f.kernel == _MEASURED and f.loop is not None and f.loop > _LIMIT
    ]
    if as_json:
        click.echo(json.dumps({"kernels": [f.as_dict() for f in found], "problems": problems}, indent=2))
    else:
        _print(found, archs, show_all, find_disassembler() is None)
        for problem in problems:
            click.echo(problem, err=True)
    if problems:
        sys.exit(1)


def _print(found: list, archs: list[str], show_all: bool, without_disassembler: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{len({f.kernel for f in found})} kernels; loop: instructions of the longest loop")
    table.add_column("kernel")
    for name in archs:
        table.add_column(f"{name}\nregisters", justify="right")
        table.add_column("spilled", justify="right")
        table.add_column("shared", justify="right")
        table.add_column("loop", justify="right")
    rows: dict[str, dict[str, object]] = {}
    for f in found:
        rows.setdefault(f.kernel, {})[f.arch] = f
    shown = sorted(rows)
    if not show_all:
        shown = [k for k in shown if "_f32" in k or "_" not in k or any(f.spilled for f in rows[k].values())]
    for kernel in shown:
        cells = []
        for name in archs:
            f = rows[kernel].get(name)
            cells += ["-"] * 4 if f is None else map(str, (f.registers, f.spilled, f.shared, f.loop or "-"))
        table.add_row(kernel, *cells)
    console = Console(width=max(Console().width, 100))
    console.print(table)
    if not show_all:
        console.print(f"Those of float32, and of all what spills; --all shows the other {len(rows) - len(shown)}.")
    if without_disassembler:
        console.print("No nvdisasm was found, so that instructions are not counted: pip install nvidia-cuda-nvdisasm")

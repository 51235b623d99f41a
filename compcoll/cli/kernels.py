"""Figures of the CUDA kernels, compiled without a GPU, for ``compcoll info --kernels``."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import click

from compcoll.cli.output import wide_console
from compcoll.devices import inspection
from compcoll.devices.inspection import Figures
from compcoll.devices.kernels import MODULES, all_kernels
from compcoll.devices.nvrtc import CompileError, Unavailable

__all__ = ["show"]

#: The encoder whose speed the others are measured by, and the most instructions that a block may take.
_MEASURED, _LIMIT = "zfp_encode_f32_32bit", 250


def show(archs: list[str], as_json: bool) -> int:
    """Compile all kernels, and print what they need and faults; the exit status, 1 where there are faults."""
    jobs = [(module, arch) for arch in archs for module in MODULES]
    found: list[Figures] = []
    try:
        threads = ThreadPoolExecutor(2)
        parts = [threads.submit(inspection.inspect, *job) for job in jobs]
        for done, (job, part) in enumerate(zip(jobs, parts, strict=True), 1):
            while not wait([part], timeout=0.2).done:
                pass  # a signal just before a wait without a limit would not end it
            click.echo(f"{done} of {len(jobs)}: {' for '.join(job)}", err=True)
            found += part.result()
    except (CompileError, Unavailable) as error:
        threads.shutdown(cancel_futures=True)
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        # The compiler cannot be interrupted, and an ordinary exit would wait for its threads.
        click.echo("Aborted!", err=True)
        sys.stdout.flush()
        os._exit(128 + signal.SIGINT)
    problems = _problems(found, archs)
    if as_json:
        click.echo(json.dumps({"kernels": [f.as_dict() for f in found], "problems": problems}, indent=2))
    else:
        _print(found, archs)
        click.echo("".join(f"{problem}\n" for problem in problems), err=True, nl=False)
    return 1 if problems else 0


def _problems(found: list[Figures], archs: list[str]) -> list[str]:
    """Faults of a kernel, a line each."""
    problems = []
    for arch in archs:
        expected = {kernel.name for kernel in all_kernels() if kernel.module in MODULES}
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


def _print(found: list[Figures], archs: list[str]) -> None:
    """Print a table of kernels by architectures."""
    from rich.table import Table

    table = Table("kernel", title="registers, bytes spilled, bytes shared, instructions of the main loop")
    for arch in archs:
        table.add_column(arch, justify="right", no_wrap=True)
    cells = {(f.kernel, f.arch): f"{f.registers} {f.spilled} {f.shared:5} {f.loop or '-':>5}" for f in found}
    for kernel in sorted({f.kernel for f in found}):
        table.add_row(kernel, *(cells.get((kernel, arch), "-") for arch in archs))
    console = wide_console()
    console.print(table)
    if inspection.find_disassembler() is None:
        console.print("Without nvdisasm no instructions are counted: pip install nvidia-cuda-nvdisasm")

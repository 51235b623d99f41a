"""``compcoll demo``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from compcoll.cli.launch import benchmark, is_launched, need_mpi, on_all, relaunch
from compcoll.cli.output import check_writable
from compcoll.cli.spec import codec_option, ranks_option

#: Exit status of a lab that cannot be made here.
UNAVAILABLE = 69
_ANOTHER = "--out names another file"
#: Command by which an ordinary user gets a lab: root of namespaces of its own, with a folder for their names.
_OWN_NAMESPACES = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs tmpfs /run && exec "$@"',
    "sh",
]


@click.command()
@ranks_option(2, 4, "Ranks to start.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="taylor_green.png",
    show_default=True,
    help="File for the figure.",
)
@codec_option(
    "Codec to compare with plain MPI, such as bfp:bits=14, or none. Repeatable.",
    also=("auto", "none"),
    multiple=True,
)
@click.option("--points", type=click.IntRange(4), help="Points in each direction.")
@click.option("--steps", type=click.IntRange(1), help="Time steps.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Precision of the flow.")
@click.option(
    "--gbit",
    type=click.FloatRange(0, 400),
    default=1.0,
    show_default=True,
    help="Gb/s of the links between hosts, one for each rank, in a lab of network namespaces; 0: no lab.",
)
@click.option("--here", is_flag=True, help="Use the ranks that mpiexec started; never start others.")
@click.option("--where", default="", hidden=True)
@click.option("--record", type=click.Path(path_type=Path), hidden=True)
@click.option("--lab", is_flag=True, hidden=True)
@click.pass_context
def command(ctx, ranks, out, codec, points, steps, dtype, gbit, here, where, record, lab) -> None:
    """Simulate one flow with plain MPI and with several codecs.

    A pseudo-spectral solver for the Taylor-Green vortex, which knows nothing of compression, runs over
    plain MPI and over compcoll. Printed are bytes, times and what the codecs did to the flow; a figure
    shows it over time. Outside of mpiexec the command starts its ranks itself: on this machine, whose
    memory is between them, and, where it may make network namespaces, on hosts with slow links.
    """
    flow = {"n": points, "steps": steps, "dtype": dtype}
    flow = {key: value for key, value in flow.items() if value is not None}
    options = _options(codec, flow)
    if lab:
        ctx.exit(_in_lab(ranks, gbit, record, [*options, *_record(where, record)]))
    if here or is_launched():
        _simulate(codec, flow, out, where, record)
    else:
        check_writable(out, "the figure", _ANOTHER)
        ctx.exit(_compare(ranks, gbit, out, options))


def _simulate(codecs, flow: dict, out: Path, where: str, record: Path | None) -> None:
    """Run on the ranks that there are; draw the result, unless a record is asked for."""
    need_mpi()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    written = out if record is None and world.Get_rank() == 0 else None
    demo, figure, flow = on_all(world, lambda: _checked(world.Get_size(), flow, written))
    runs = demo.run(world, codecs or demo.CODECS, flow, where=where, record=record)
    if record is None and world.Get_rank() == 0:
        figure.draw(runs, out)
        click.echo(f"Figure: {out}")


def _checked(size: int, flow: dict, out: Path | None) -> tuple[Any, Any, Any]:
    """The modules and the flow; ClickException where something is missing or does not fit."""
    check_writable(out, "the figure", _ANOTHER)
    demo, figure = benchmark("demo"), benchmark("demo.figure")
    checked = replace(demo.Flow(), **flow)
    if size < 2:
        raise click.ClickException("one rank has nobody to talk to; start the demo with at least 2")
    if checked.n % size:
        raise click.BadParameter(f"{checked.n} cannot be cut into {size} equal slabs", param_hint="--points")
    return demo, figure, checked


def _compare(ranks: int, gbit: float, out: Path, options: list[str]) -> int:
    """Run on ranks of this machine, then in the lab; the exit status of the first."""
    timings: list[tuple[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="compcoll-demo-") as folder:
        record = Path(folder) / "here.json"
        where = "memory between the ranks"
        status = relaunch(ranks, ["demo", "--here", *options, *_record(where, record)])
        if status:
            return status
        demo = benchmark("demo")
        runs = demo.recorded(record)
        timings.append((where, runs))
        if gbit:
            where, record = f"{gbit:g} Gb/s between the ranks", Path(folder) / "lab.json"
            why = _start_lab(ranks, gbit, record, [*options, *_record(where, record)])
            timings.append((where, demo.recorded(record) if why is None else f"Not measured: {why}"))
            if why is not None:
                click.echo(f"No run with {where}: {why}")
        benchmark("demo.figure").draw(runs, out, timings)
    click.echo(f"Figure: {out}")
    return 0


def _start_lab(ranks: int, gbit: float, record: Path, options: list[str]) -> str | None:
    """Run in a lab; None, or in a line why there was none."""
    command = [sys.executable, "-m", "compcoll", "demo", "--lab", "--ranks", str(ranks), "--gbit", str(gbit)]
    if os.geteuid() != 0:
        if shutil.which("unshare") is None:
            return "network namespaces need root, or unshare"
        trial = subprocess.run([*_OWN_NAMESPACES, "true"], capture_output=True, text=True)
        if trial.returncode:
            return f"network namespaces need root here ({_last_line(trial.stderr)})"
        command = [*_OWN_NAMESPACES, *command]
    status = subprocess.run([*command, *options]).returncode
    if not status and record.exists():
        return None
    why = _reason(record)
    return why.read_text() if why.exists() else f"it ended with status {status}"


def _in_lab(hosts: int, gbit: float, record: Path, options: list[str]) -> int:
    """Run on the hosts of a lab; the exit status, and `_reason` where there is no lab."""
    netlab = benchmark("netlab")
    try:
        with netlab.Lab(hosts, gbit) as lab:
            program = [sys.executable, "-m", "mpi4py", "-m", "compcoll", "demo", "--here", *options]
            return lab.run(program, check=False).returncode
    except (netlab.LabError, OSError) as error:
        _reason(record).write_text(_last_line(str(error)))
        return UNAVAILABLE


def _reason(record: Path) -> Path:
    """The file that says why there is no record."""
    return record.with_suffix(".why")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def _record(where: str, record: Path) -> list[str]:
    return ["--where", where, "--record", str(record)]


def _options(codecs: tuple[str, ...], flow: dict) -> list[str]:
    names = {"n": "--points", "steps": "--steps", "dtype": "--dtype"}
    options = [("--codec", spec) for spec in codecs]
    options += [(names[key], value) for key, value in flow.items()]
    return [str(word) for option in options for word in option]

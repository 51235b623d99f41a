"""``python -m benchmarks.demo``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compcoll.cli.launch import is_launched, need_mpi, on_all, relaunch
from compcoll.cli.output import check_writable
from compcoll.cli.spec import codec_option, ranks_option

if TYPE_CHECKING:
    from benchmarks.demo import program

#: Exit status if this machine cannot have a lab.
UNAVAILABLE = 69
#: Command that lets an ordinary user make a lab: root in new namespaces, with a folder for their names.
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
_MODULE = "benchmarks.demo"
#: glibc's settings that keep the pages of freed arrays. Without them each transform returns its pages to the
#: kernel and faults them in again, also inside Alltoall, which takes a third of the time.
_KEEP_PAGES = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
#: Bytes of a link's token bucket per Gb/s: two packets. The lab's default bucket lets 72 KiB pass at once
#: after a pause, which is a whole compressed message here.
_BURST = 2 * (9000 + 14)


@click.command()
@ranks_option(2, 4, "Ranks to start on this machine.")
@click.option(
    "--hosts",
    type=click.IntRange(2),
    help="Hosts of the lab, one rank each. [default: as many as ranks, but at most one for each core]",
)
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
    help="Gb/s of the links between hosts in a lab of network namespaces; 0: no lab.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the lab's runs to a file.")
@click.option("--where", default="", hidden=True)
@click.option("--record", type=click.Path(path_type=Path), hidden=True)
@click.option("--lab", is_flag=True, hidden=True)
def main(
    ranks: int,
    hosts: int | None,
    out: Path,
    gbit: float,
    json_path: Path | None,
    where: str,
    record: Path | None,
    lab: bool,
    **options: Any,
) -> None:
    """Simulate one flow with plain MPI and with several codecs.

    A pseudo-spectral solver for the Taylor-Green vortex, which knows nothing of compression, runs over
    plain MPI and over compcoll. The command prints bytes, times and the effect of the codecs on the flow,
    and draws the effect over time. Without mpiexec the command starts its ranks itself: on this machine,
    where they share memory, and, if it may make network namespaces, on hosts with slow links.
    """
    if lab and record is not None:
        sys.exit(_run_in_lab(ranks, gbit, record, [*_words(options), *_recording(where, gbit, record)]))
    elif record is not None or is_launched():
        _simulate(options, out, where, 0.0 if record is None else gbit, record)
    else:
        check_writable(out, "the figure")
        check_writable(json_path, "the file of measurements")
        sys.exit(_compare(ranks, hosts or _hosts(ranks), gbit, out, json_path, _words(options)))


def _hosts(ranks: int) -> int:
    """Number of hosts: the largest divisor of ``ranks`` that gives each host a core, at least two."""
    cores = len(os.sched_getaffinity(0))
    divisors = [n for n in range(2, ranks + 1) if ranks % n == 0]
    return max((n for n in divisors if n <= cores), default=divisors[0])


def _simulate(options: dict[str, Any], out: Path, where: str, gbit: float, record: Path | None) -> None:
    """Run on the ranks of this job; draw the result, unless it goes to a record."""
    need_mpi()
    from mpi4py import MPI

    from benchmarks.demo import figure, program

    world = MPI.COMM_WORLD
    written = out if record is None and world.rank == 0 else None
    given = {"n": options["points"], "steps": options["steps"], "dtype": options["dtype"]}
    flow = replace(program.Flow(), **{key: value for key, value in given.items() if value is not None})

    def check() -> None:
        check_writable(written, "the figure")
        if world.size < 2:
            raise click.ClickException("one rank has no other to send to; the demo takes at least 2")
        if flow.n % world.size:
            raise click.BadParameter(
                f"{flow.n} cannot be cut into {world.size} equal slabs", param_hint="--points"
            )

    on_all(world, check)
    codecs = options["codec"] or program.CODECS
    runs = program.run(world, codecs, flow, where=where, gbit=gbit, record=record)
    if written is not None:
        figure.draw(runs, written)
        click.echo(f"Figure: {written}")


def _compare(
    ranks: int, hosts: int, gbit: float, out: Path, json_path: Path | None, options: list[str]
) -> int:
    """Run on ranks of this machine, then in the lab, draw both, and return the exit status."""
    os.environ.update({**_KEEP_PAGES, **os.environ})
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "here.json"
        where = f"{ranks} ranks, memory between them"
        status = relaunch(ranks, [*options, *_recording(where, 0, record)], _MODULE)
        if status:
            return status
        from benchmarks.demo import figure, program

        runs = program.recorded(record)
        timings: list[tuple[str, list[program.Run] | str]] = [(where, runs)]
        if gbit:
            record = Path(folder) / "lab.json"
            where = f"{hosts} hosts, {gbit:g} Gb/s between them"
            if hosts < ranks:
                click.echo(f"\n{hosts} hosts for {ranks} ranks, so that each has a core of this machine:")
            why = _start_lab(hosts, gbit, record, [*options, *_recording(where, gbit, record)])
            timings.append((where, program.recorded(record) if why is None else f"Not measured: {why}"))
            if why is not None:
                click.echo(f"No run on {where}: {why}")
        figure.draw(runs, out, timings)
    click.echo(f"Figure: {out}")
    return 0 if json_path is None else _write(timings[-1][1], hosts, gbit, json_path)


def _write(runs: list[program.Run] | str, hosts: int, gbit: float, path: Path) -> int:
    """Write the lab's runs to a file and return the exit status; there are none without a lab."""
    if isinstance(runs, str) or not gbit:
        return UNAVAILABLE
    from benchmarks.osu.output import as_json, environment

    about = {"operation": "solver", "hosts": hosts, "gbit": gbit, **environment()}
    path.write_text(as_json({**about, "rows": [asdict(run) for run in runs]}))
    return 0


def _start_lab(hosts: int, gbit: float, record: Path, options: list[str]) -> str | None:
    """Run in a lab; return None, or one line with the reason why there is none."""
    command = [sys.executable, "-m", _MODULE, "--lab", "--ranks", str(hosts)]
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


def _run_in_lab(hosts: int, gbit: float, record: Path, options: list[str]) -> int:
    """Run on the hosts of a lab and return the exit status; without a lab, write the file `_reason`."""
    from benchmarks import netlab

    try:
        with netlab.Lab(hosts, gbit, burst=int(_BURST * max(1.0, gbit))) as lab:
            return lab.run([sys.executable, "-m", "mpi4py", "-m", _MODULE, *options], check=False).returncode
    except (netlab.LabError, OSError) as error:
        _reason(record).write_text(_last_line(str(error)))
        return UNAVAILABLE


def _reason(record: Path) -> Path:
    """Path of the file with the reason why there is no record."""
    return record.with_suffix(".why")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def _recording(where: str, gbit: float, record: Path) -> list[str]:
    return ["--where", where, "--gbit", str(gbit), "--record", str(record)]


def _words(options: dict[str, Any]) -> list[str]:
    """Options of codecs and flow as command-line words for another process."""
    pairs = [("--codec", spec) for spec in options["codec"]]
    pairs += [(f"--{key}", options[key]) for key in ("points", "steps", "dtype") if options[key] is not None]
    return [str(word) for pair in pairs for word in pair]


if __name__ == "__main__":
    main(prog_name=f"python -m {_MODULE}")

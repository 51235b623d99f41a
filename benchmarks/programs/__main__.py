"""``python -m benchmarks.programs``: programs between two hosts, plain and under ``compcoll run``.

Each run's figures are written to a JSON file at once, so that a later start continues where the last one
stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from ..netlab import Lab, Unavailable
from ..osu.machine import commit, machine
from . import ENVIRONMENT, PLAIN, PROGRAMS, SUMMARY, Missing, Program
from .examples import EXAMPLES


class _Failed(Exception):
    """A program ended with an error or printed no result."""


def _about() -> dict:
    """Machine, MPI library and commit."""
    return {"machine": machine(), "versions": {"mpi": EXAMPLES["heat"].mpi()}, "commit": commit()}


def _run(lab: Lab, program: Program, codec: str, timeout: float) -> dict:
    """Run a program once and return its figures; `Missing` or `_Failed` if there are none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = program.prepare(folder)
        if codec != PLAIN:
            command = [sys.executable, "-m", "compcoll", "run", "--codec", codec, *command]
        before = os.getcwd()
        path = os.pathsep.join(filter(None, (before, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **ENVIRONMENT, **program.environment, "PYTHONPATH": path}
        os.chdir(folder)
        try:
            start = time.perf_counter()
            done = lab.run(
                command, env=environment, check=False, timeout=timeout, capture=True, open_mpi=True
            )
            seconds = time.perf_counter() - start
        finally:
            os.chdir(before)
        if done.returncode:
            raise _Failed(f"{program.name}, {codec}: status {done.returncode}\n{done.stderr[-2000:]}")
        results = program.found(folder, done.stdout)
    if len(results) < program.results:
        raise _Failed(f"{program.name}, {codec}: {len(results)} of {program.results} results")
    row: dict = {"seconds": round(seconds, 3), "results": results}
    if codec != PLAIN:
        summary = SUMMARY.search(done.stderr)
        if summary is None:
            raise _Failed(f"{program.name}, {codec}: no summary of compcoll\n{done.stderr[-2000:]}")
        row |= dict(zip(("calls", "accelerated", "bytes", "wire"), map(int, summary.groups()), strict=True))
    return row


@click.command(context_settings={"show_default": True})
@click.option("--only", default="", help="Names of programs, separated by commas; all by default.")
@click.option(
    "--codec", "codecs", multiple=True, default=("lossless", "bfp:bits=24"), help="May be repeated."
)
@click.option("--gbit", default=1.0, help="Gb/s of each link.")
@click.option("--runs", default=3, type=click.IntRange(1), help="Runs of each program and codec.")
@click.option("--timeout", default=300.0, help="Seconds after which a run is given up.")
@click.option("--json", "path", default="programs.json", type=click.Path(path_type=Path))
def main(only, codecs, gbit, runs, timeout, path) -> None:
    """Run programs of Debian and PyPI between two hosts, and keep their results and times."""
    names = [name.strip() for name in only.split(",") if name.strip()] or list(PROGRAMS)
    names = [name for name in names if name not in PROGRAMS or not PROGRAMS[name].one_host]
    if unknown := [name for name in names if name not in PROGRAMS]:
        raise click.UsageError(f"no program {unknown[0]!r}; known are {', '.join(PROGRAMS)}")
    known = json.loads(path.read_text()) if path.exists() else {"gbit": gbit, **_about(), "programs": {}}
    if known["gbit"] != gbit:
        raise click.UsageError(f"{path} has runs at {known['gbit']:g} Gb/s: name another file")
    failed = False
    with Lab(2, gbit) as lab:
        for turn in range(runs):
            for name in names:
                try:
                    number = PROGRAMS[name].version()
                    row = known["programs"].setdefault(name, {"version": number, "runs": {}})
                    if row["version"] != number:
                        raise click.UsageError(
                            f"{path} has {name} {row['version']}, and {number} is installed"
                        )
                    for codec in (PLAIN, *codecs):
                        of_codec = row["runs"].setdefault(codec, [])
                        if len(of_codec) <= turn:
                            of_codec.append(_run(lab, PROGRAMS[name], codec, timeout))
                            click.echo(f"{name}, {codec}: {of_codec[-1]['seconds']} s", err=True)
                            path.write_text(json.dumps(known, indent=1) + "\n")
                except Missing as problem:
                    if not turn:
                        click.echo(f"{name}: {problem}", err=True)
                except (_Failed, subprocess.TimeoutExpired) as problem:
                    failed = True
                    click.echo(str(problem), err=True)
    sys.exit(failed)


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        click.echo(f"no lab: {error}", err=True)
        sys.exit(69)

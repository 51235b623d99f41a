"""``python -m benchmarks.programs.examples``: a program of ``examples/`` between two hosts, unedited.

The ways alternate: plain MPI, then each codec under ``compcoll run``. The table of trials is empty before the
first run at each speed of the link, and is kept until the last one.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from ..netlab import Lab, Unavailable
from ..osu.machine import commit, machine
from . import ENVIRONMENT, PLAIN, SUMMARY

__all__ = ["EXAMPLES", "Example"]

FOLDER = Path(__file__).parents[2] / "examples"
_PRINTED = re.compile(
    r"energy +(\S+), error of rounding and codec +(\S+), of the scheme +(\S+)\nseconds +(\S+)"
)


@dataclass(frozen=True)
class Example:
    """A program, its compiler, and the arguments of a run that sends much and computes little.

    Attributes
    ----------
    file, compiler : str
    arguments : tuple of str
    open_mpi : bool
        True for a system's Open MPI, False for MPICH's wheel.
    """

    file: str
    compiler: str
    arguments: tuple[str, ...]
    open_mpi: bool

    def build(self, folder: Path) -> str | None:
        """Path of the compiled program in a folder; None if there is no such compiler."""
        own = Path(sys.executable).with_name(self.compiler)
        compiler = shutil.which(self.compiler) if self.open_mpi else own.exists() and str(own)
        if not compiler:
            return None
        program = folder / Path(self.file).stem
        subprocess.run([compiler, "-O3", str(FOLDER / self.file), "-o", str(program)], check=True)
        return str(program)

    def mpi(self) -> str:
        """Name and version of the MPI library."""
        if not self.open_mpi:
            return f"MPICH {importlib.metadata.version('mpich')}"
        text = subprocess.run(["mpiexec.openmpi", "--version"], capture_output=True, text=True).stdout
        return f"Open MPI {text.split()[2]}"


EXAMPLES = {
    "heat": Example("heat.f90", "mpif90.openmpi", ("500", "32", "500", "40"), True),
    "adi": Example("adi.cpp", "mpicxx", ("1000", "60"), False),
}


def printed(text: str) -> dict[str, str | float]:
    """Result as text, two errors, and seconds of a program's output."""
    found = _PRINTED.search(text)
    if found is None:
        raise ValueError(f"no result in {text!r}")
    energy, *numbers = found.groups()
    return {"energy": energy} | dict(zip(("error", "scheme", "seconds"), map(float, numbers), strict=True))


def _run(lab: Lab, example: Example, program: str, way: str, table: str) -> dict:
    """Figures of one run."""
    command = [program, *example.arguments]
    if way != PLAIN:
        command = [sys.executable, "-m", "compcoll", "run", "--codec", way, *command]
    environment = {**os.environ, **ENVIRONMENT, "COMPCOLL_TABLE": table}
    done = lab.run(command, env=environment, timeout=60, capture=True, open_mpi=example.open_mpi)
    row = printed(done.stdout)
    if way != PLAIN:
        calls, accelerated, raw, wire = map(int, SUMMARY.search(done.stderr).groups())  # type: ignore[union-attr]
        row |= {"calls": calls, "accelerated": accelerated, "bytes": raw, "wire": wire}
    return row


@click.command(context_settings={"show_default": True})
@click.argument("name", type=click.Choice(list(EXAMPLES)))
@click.option("--codec", "codecs", multiple=True, default=("auto", "lossless"), help="May be repeated.")
@click.option("--gbit", "links", multiple=True, type=float, default=(1.0, 10.0), help="May be repeated.")
@click.option("--runs", default=3, type=click.IntRange(1), help="Runs of each way.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the measurements to a file.")
def main(name, codecs, links, runs, path) -> None:
    """Run a program of examples/ between two hosts, plain and under compcoll run."""
    example = EXAMPLES[name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = example.build(Path(folder))
        if program is None:
            raise Unavailable(f"{example.compiler} is not there")
        for gbit in links:
            ways: dict[str, list[dict]] = {way: [] for way in (PLAIN, *codecs)}
            with Lab(2, gbit) as lab:
                for _ in range(runs):
                    for way, found in ways.items():
                        found.append(_run(lab, example, program, way, f"{folder}/{gbit:g}"))
                        click.echo(f"{gbit:g} Gb/s, {way}: {found[-1]['seconds']} s", err=True)
            rows += [{"gbit": gbit, "way": way, "runs": found} for way, found in ways.items()]
    if path:
        about = {"machine": machine(), "versions": {"mpi": example.mpi()}, "commit": commit()}
        path.write_text(json.dumps({"operation": name, **about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        click.echo(f"no lab: {error}", err=True)
        sys.exit(69)

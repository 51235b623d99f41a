"""Gains that `compcoll report` predicts from traces, beside those that were then measured, in the lab.

``python -m benchmarks.predictions --json FILE``

Each program runs under `compcoll run` with auto, plain MPI and each codec, in turns. Predictions are those of
the traces with auto.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from compcoll.tracing.prediction import predict
from compcoll.tracing.reader import read

from .netlab.lab import Lab, LabError
from .osu.output import as_json, environment
from .programs import ENVIRONMENT
from .programs.examples import EXAMPLES

__all__ = ["CODECS", "measure"]

CODECS = ("lossless", "bfp:bits=7")
UNAVAILABLE = 69
PYTHON = ("-m", "benchmarks.predictions", "--program")
#: Words and command of a program by its name; examples/adi.cpp is compiled first.
PROGRAMS = {
    "solver": ("solver in Python, Alltoall of complex64", (*PYTHON, "solver")),
    "averages": ("averages in Python, Allreduce of float32", (*PYTHON, "averages")),
    "adi": ("examples/adi.cpp, Alltoall of float64", ("2000", "40")),
}
LINKS = (1.0, 10.0)


def measure(command: tuple[str, ...], gbit: float, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of a job's seconds, predicted and measured, by codec."""
    predicted: dict[str, list[float]] = {codec: [] for codec in CODECS}
    taken: dict[str, list[float]] = {codec: [] for codec in ("auto", "none", *CODECS)}
    variables = {**os.environ, **ENVIRONMENT, "COMPCOLL_TABLE": "off"}
    with Lab(2, gbit) as lab, tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            for codec in taken:
                trace = Path(folder) / f"{i}-{codec}"
                words = ["compcoll", "run", "-q", "--codec", codec, "--trace", str(trace), *command]
                lab.run([sys.executable, "-m", *words], env=variables, capture=True, timeout=60)
                program = read(trace)
                taken[codec].append(program.seconds)
                if codec == "auto":
                    for one, seconds in predicted.items():
                        saved = sum(group.saved[one] for group in predict(program))
                        seconds.append(program.seconds - saved)
    return {
        kind: {codec: median(seconds) for codec, seconds in found.items()}
        for kind, found in (("predicted", predicted), ("measured", taken))
    }


def _run(program: str) -> None:
    """Run a program in Python on the ranks of COMM_WORLD."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if program == "solver":
        from .demo.taylor_green import TaylorGreen

        flow = TaylorGreen(comm, 96, 1 / 200, 1 / 24, "float32")
        for _ in range(10):
            flow.step()
        return
    n = 1 << 22
    noise = 1e-3 * np.random.default_rng(comm.rank).standard_normal(n)
    send = (np.sin(np.linspace(0, 30, n)) + noise).astype("f4")
    recv = np.empty_like(send)
    for _ in range(40):
        for _ in range(8):
            send *= np.float32(1.0000001)
        comm.Allreduce(send, recv)


def _rows(names: tuple[str, ...], links: tuple[float, ...], rounds: int) -> list[dict[str, Any]]:
    """Measure programs at speeds of the link, and print what was found."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            about, command = PROGRAMS[name]
            if name in EXAMPLES:
                built = EXAMPLES[name].build(Path(folder))
                if built is None:
                    click.echo(f"{name}: there is no compiler", err=True)
                    continue
                command = (built, *command)
            for gbit in links:
                found = measure(command, gbit, rounds)
                rows.append({"name": about, "gbit": gbit, **found})
                said = (
                    f"{codec} {found['predicted'][codec]:.2f} s predicted, {found['measured'][codec]:.2f} s"
                    for codec in CODECS
                )
                plain, auto = (found["measured"][way] for way in ("none", "auto"))
                said = "; ".join((f"plain {plain:.2f} s", f"auto {auto:.2f} s", *said))
                click.echo(f"{about}, {gbit:g} Gb/s: {said}", err=True)
    return rows


@click.command(context_settings={"show_default": True})
@click.option("--program", type=click.Choice(["solver", "averages"]), hidden=True)
@click.option("--of", "names", multiple=True, default=tuple(PROGRAMS), type=click.Choice(list(PROGRAMS)))
@click.option("--gbit", "links", multiple=True, type=float, default=LINKS, help="May be repeated.")
@click.option("--rounds", default=2, type=click.IntRange(1), help="Runs of each way.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the measurements to a file.")
def main(program, names, links, rounds, path) -> None:
    """Predict the gains of codecs from traces, and measure them."""
    if program is not None:
        _run(program)
        return
    try:
        rows = _rows(names, links, rounds)
    except LabError as error:
        click.echo(f"no lab: {error}", err=True)
        sys.exit(UNAVAILABLE)
    if path:
        path.write_text(as_json({**environment(), "rows": rows}))


if __name__ == "__main__":
    main()

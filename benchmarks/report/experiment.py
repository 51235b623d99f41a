"""An experiment of the report, and the commands that run programs in the lab."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..osu.operations import NONBLOCKING, OPERATIONS
from . import tables

__all__ = ["RESULTS", "ROOT", "SHARED", "Experiment", "lab"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
#: Folder of real data, which a clone lacks.
SHARED = Path(os.environ.get("COMPCOLL_SHARED", ROOT.parent / "shared"))
#: Words before a program that let it use a system's Open MPI.
OPEN_MPI = ("env", "MPI4PY_MPIABI=openmpi", "MPI4PY_LIBMPI=libmpi.so.40")


@dataclass(frozen=True)
class Experiment:
    """One section of the report.

    Attributes
    ----------
    name, title, text : str
        Name of its result file, its heading, and a description.
    commands : list of list of str
        Arguments of ``python -m``; ``--json FILE`` is appended.
    figure : callable
        Draws the runs into a file.
    rows : callable
        Returns the runs as lines of tables.
    minutes : float
        Time on two cores, about.
    quick : bool
        True if README or docs/benchmarks.md has a table of it.
    needs : tuple of str
        Modules, programs and files without which it is skipped.
    """

    name: str
    title: str
    text: str
    commands: list[list[str]]
    figure: Callable[[list[dict], Path], None] | None = None
    rows: Callable[[list[dict]], list[str]] = tables.speedups
    minutes: float = 1.0
    quick: bool = False
    needs: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of the files in benchmarks/results/, without ending."""
        return f"lab-{self.name}" if self.commands[0][0] == "benchmarks.netlab" else self.name

    def missing(self) -> list[str]:
        """The needs that this machine lacks."""
        return [
            need
            for need in self.needs
            if not (Path(need).exists() or shutil.which(need) or find_spec(need.partition(".")[0]))
        ]


def lab(
    hosts: int, gbit: float, program: str, options: str, ranks: int = 1, open_mpi: bool = False
) -> list[str]:
    """Arguments that run a program in the lab: hosts, link rate, ranks per host."""
    shape = ["benchmarks.netlab", "--hosts", str(hosts), "--gbit", f"{gbit:g}"]
    shape += ["--ppn", str(ranks)] if ranks > 1 else []
    shape += ["--open-mpi"] if open_mpi else []
    osu = program in OPERATIONS or program in NONBLOCKING
    module = ["benchmarks.osu", program] if osu else [f"benchmarks.{program}"]
    return [*shape, "--", *OPEN_MPI * open_mpi, "python", "-m", *module, *options.split()]

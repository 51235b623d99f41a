"""Ranks for the subcommands that need several."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from compcoll.core.library import check_mpi
from compcoll.launch import is_launched

__all__ = [
    "become_ranks",
    "end",
    "find_mpiexec",
    "is_launched",
    "need_mpi",
    "on_all",
    "relaunch",
    "same_ranks",
]


def find_mpiexec() -> str | None:
    """Path of ``mpiexec``: the one of this Python environment, else the first one on the PATH."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which("mpiexec", path=places)


def relaunch(ranks: int, arguments: list[str], module: str = "compcoll") -> int:
    """Run a module with these arguments on new ranks on this machine; its exit status."""
    # Through mpi4py.run, so that an error on one rank ends all of them.
    command, environment = _launch(ranks, ["-m", "mpi4py", "-m", module, *arguments])
    with subprocess.Popen(command, env=environment) as mpiexec:
        try:
            return mpiexec.wait()
        except KeyboardInterrupt:
            mpiexec.send_signal(signal.SIGINT)  # a terminal has sent it to both
            mpiexec.wait()
            return 128 + signal.SIGINT


def become_ranks(ranks: int, arguments: list[str], mpiexec: str | None = None) -> NoReturn:
    """Replace this process by mpiexec with ranks on this machine; signals and exit status are mpiexec's."""
    command, environment = _launch(ranks, ["-m", "compcoll", *arguments], mpiexec)
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def need_mpi(*, start: bool = True) -> None:
    """Raise ClickException without an MPI library; see `compcoll.core.library.check_mpi`."""
    try:
        check_mpi(start=start)
    except ImportError as error:
        raise click.ClickException(str(error)) from None


def _launch(ranks: int, program: list[str], mpiexec: str | None = None) -> tuple[list[str], dict[str, str]]:
    """A command that runs Python on new ranks on this machine, and its environment."""
    if mpiexec is None:
        mpiexec = find_mpiexec()
        need_mpi(start=False)
    if mpiexec is None:
        raise click.ClickException("mpiexec is not found; pip install mpich brings one")
    # Open MPI refuses more ranks than cores unless told otherwise: releases up to 4, and from 5.
    consent = {
        "OMPI_MCA_rmaps_base_oversubscribe": "true",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return [mpiexec, "-n", str(ranks), sys.executable, *program], {**os.environ, **consent}


def on_all(comm: Any, function: Callable[[], Any]) -> Any:
    """Call a function on all ranks; if it fails on any, one rank prints the reason and all exit."""
    result = problem = None
    try:
        result = function()
    except click.ClickException as error:
        problem = error
    failed = [rank for rank, one in enumerate(comm.allgather(problem is not None)) if one]
    if not failed:
        return result
    if problem is not None and comm.rank == failed[0]:
        problem.show()
    end(1)


def end(status: int) -> NoReturn:
    """Exit on all ranks, without the lines that MPI_Abort prints; collective over COMM_WORLD."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # the first rank that ends may end them all
    if is_launched():
        MPI.Finalize()  # mpi4py would call MPI_Abort otherwise
    raise SystemExit(status)


def same_ranks(ranks: int) -> None:
    """End all ranks if their number differs from ``-n``; collective over COMM_WORLD."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def compare() -> None:
        if world.rank == 0 and ranks != world.size:
            raise click.UsageError(f"-n {ranks}, but a launcher has started {world.size} ranks: leave -n out")

    on_all(world, compare)

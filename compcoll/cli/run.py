"""``compcoll run``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from compcoll.cli.executable import find_executable, mpiexec_of, run_executable, run_preloaded
from compcoll.cli.launch import become_ranks, is_launched, need_mpi
from compcoll.cli.output import check_folder
from compcoll.cli.spec import Size, ranks_option
from compcoll.core import environment
from compcoll.policy import make_policy
from compcoll.preload import is_preloaded

#: Compilers of MPI's by the suffixes of sources.
_COMPILERS = {
    "mpicc": (".c",),
    "mpicxx": (".cc", ".cpp", ".cxx", ".C"),
    "mpifort": (".f", ".F", ".f90", ".F90", ".f03", ".f08"),
}


@click.command(context_settings={"allow_interspersed_args": False})
@ranks_option(1, None, "Start so many ranks with mpiexec.")
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as for python -m.")
@click.option("-c", "--codec", metavar="SPEC", help="Codec, such as bfp:bits=14. [default: auto]")
@click.option(
    "--policy", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file of a policy."
)
@click.option(
    "--when",
    type=click.Choice(["always", "pays"]),
    help="Use a named codec always, or only if trials show that it saves time.",
)
@click.option("--min-nbytes", type=Size(), help="Smallest message that is compressed, such as 64K.")
@click.option(
    "--trace",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a line for each call into this folder, which must have no trace.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no summary on exit.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    ranks: int | None,
    as_module: bool,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
    **settings: Any,
) -> None:
    """Run an unchanged program with accelerated communicators.

    A preloaded library serves the calls of C and Fortran, and of all libraries of a Python program, on
    COMM_WORLD and COMM_SELF, and on all communicators made from them. In a Python program these are
    `compcoll.Comm`s. -n starts ranks on this machine; without it the program runs on the ranks that mpiexec,
    srun or flux have started. Without --codec, --when and --policy, calls are compressed losslessly if that
    saves time (auto). An uncaught exception ends all ranks. On exit, rank 0 prints a summary of all calls to
    stderr.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if "trace" in given:
        given["trace"] = given["trace"].resolve()
    try:
        make_policy(None, given.get("codec"), *(given.get(key) for key in ("when", "min_nbytes", "policy")))
    except (OSError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    _check_environment(ranks, given.get("trace"))
    executable = None if as_module else find_executable(program)
    if not (as_module or executable):
        _check_program(Path(program))
    words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    words = ["run", *words, *["-m"] * as_module, *["-q"] * quiet, program, *arguments]
    if ranks is not None and not is_launched():
        become_ranks(ranks, words, mpiexec_of(executable) if executable else None)
    if ranks is not None:
        given["ranks"] = ranks
    if quiet:
        given["summary"] = False
    if executable:
        run_executable(executable, list(arguments), given)
    if not is_preloaded():
        again = ["-m", "compcoll", *words[:1], *([] if ranks is None else ["-n", str(ranks)]), *words[1:]]
        run_preloaded(again, given)
    need_mpi()
    from compcoll.cli.program import run_as_main

    sys.argv[:] = [program, *arguments]
    from compcoll.preload.program import accelerate

    if not environment.disabled():
        accelerate(given)
    run_as_main(program, as_module)


def _check_program(path: Path) -> None:
    """Raise UsageError for a program that is missing, or that Python cannot run."""
    if not path.exists():
        raise click.UsageError(f"{path} does not exist; -m runs a module")
    if compiler := next((name for name, suffixes in _COMPILERS.items() if path.suffix in suffixes), None):
        what = f"{compiler} -o {path.stem} {path}"
        raise click.UsageError(f"{path} is a source file: compile it ({what}), and run ./{path.stem}")
    if path.is_file() and not os.access(path, os.X_OK):
        with path.open("rb") as file:
            line = file.readline(256)
        if line.startswith(b"\x7fELF") or (line.startswith(b"#!") and b"python" not in line):
            raise click.UsageError(f"{path} is not executable: chmod +x {path}")


def _check_environment(ranks: int | None, trace: Path | None) -> None:
    """Raise ClickException if an environment variable is wrong or the trace cannot be written."""
    try:
        environment.check_all()
        if ranks is not None:
            environment.nodes(ranks)
        folder = environment.trace() if trace is None else trace
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if folder is not None:
        check_folder(folder, "the trace of COMPCOLL_TRACE" if trace is None else "the trace")

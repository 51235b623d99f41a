"""``compcoll run``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from compcoll.cli.executable import find_executable, mpiexec_of, run_executable
from compcoll.cli.launch import become_ranks, is_launched, need_mpi, same_ranks
from compcoll.cli.output import check_folder
from compcoll.cli.spec import Size, ranks_option
from compcoll.policy import make_policy
from compcoll.preload import is_preloaded


@click.command(context_settings={"allow_interspersed_args": False})
@ranks_option(1, None, "Start so many ranks with mpiexec.")
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as for python -m.")
@click.option("-c", "--codec", metavar="SPEC", help="Codec, such as bfp:bits=14. [default: auto]")
@click.option(
    "--policy", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file of a policy."
)
@click.option(
    "--when", type=click.Choice(["always", "pays"]), help="Compress always, or where it saves time."
)
@click.option("--min-nbytes", type=Size(), help="Smallest message that is compressed, such as 64K.")
@click.option(
    "--trace", type=click.Path(file_okay=False, path_type=Path), help="Folder for a line of each call."
)
@click.option("--preload", is_flag=True, help="Of a Python program, take calls of extension modules, too.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing at the end.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    ranks: int | None,
    as_module: bool,
    trace: Path | None,
    preload: bool,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
    **settings: Any,
) -> None:
    """Run a program as it is, with MPI's communicators accelerated.

    In a Python program, COMM_WORLD and COMM_SELF, and whatever it makes of them, are compcoll's before it is
    imported. Of any other program the calls from C and Fortran are, by a library that is preloaded; with
    --preload those of a Python program, mpi4py's among them.
    -n starts ranks on this machine; without it the program runs on the ranks that mpiexec, srun or flux have
    started. Without --codec, --when and --policy calls are compressed losslessly where that saves time
    (auto). An exception that nobody catches ends all ranks. At the end rank 0 says what all calls together
    did, on the standard error output.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        make_policy(None, given.get("codec"), *(given.get(key) for key in ("when", "min_nbytes", "policy")))
    except (OSError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    executable = None if as_module else find_executable(program)
    if not (as_module or executable or Path(program).exists()):
        raise click.UsageError(f"{program} does not exist; -m runs a module")
    if trace is not None:
        check_folder(trace, "the trace")
        os.environ["COMPCOLL_TRACE"] = str(trace.resolve())
    if ranks is not None and not is_launched():
        options = [
            word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))
        ]
        flags = ["-m"] * as_module + ["--preload"] * preload + ["-q"] * quiet
        mpiexec = mpiexec_of(executable) if executable else None
        become_ranks(ranks, ["run", *options, *flags, program, *arguments], mpiexec)
    if executable:
        run_executable(executable, list(arguments), given, quiet)
    if preload and not is_preloaded():
        again = ["-m", "compcoll", "run", *["-m"] * as_module, "--preload", program, *arguments]
        run_executable(sys.executable, again, given, quiet)
    need_mpi()
    from compcoll.cli.program import run_as_main

    if ranks is not None:
        same_ranks(ranks)
    sys.argv[:] = [program, *arguments]
    if preload:
        from compcoll.preload.program import attach_world

        attach_world()
    else:
        from compcoll.mpi.comm import wrap_world

        wrap_world(False if quiet else None, **given)
    run_as_main(program, as_module)

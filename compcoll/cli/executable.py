"""A user's program that is no Python: run in place of this process, with compcoll's library preloaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from compcoll.preload import SETTINGS, environment

__all__ = ["find_executable", "mpiexec_of", "run_executable"]


def find_executable(program: str) -> str | None:
    """The path of a program, which may be on the PATH; None of what Python runs, or nobody."""
    path = program if Path(program).exists() else shutil.which(program)
    if path is None or Path(path).is_dir() or Path(path).suffix == ".py" or not os.access(path, os.X_OK):
        return None
    with open(path, "rb") as file:
        line = file.readline(256)
    is_script = line.startswith(b"#!") and b"python" not in line
    return os.path.abspath(path) if is_script or line.startswith(b"\x7fELF") else None


def run_executable(path: str, arguments: list[str], settings: dict[str, Any], quiet: bool) -> NoReturn:
    """Become the program."""
    try:
        more = environment()
    except OSError as error:
        raise click.ClickException(str(error)) from None
    given = {key: str(Path(v).resolve()) if isinstance(v, Path) else v for key, v in settings.items()}
    more[SETTINGS] = json.dumps(given)
    if quiet:
        more["COMPCOLL_SUMMARY"] = "0"
    sys.stdout.flush()
    try:
        os.execve(path, [path, *arguments], {**os.environ, **more})
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


def mpiexec_of(path: str) -> str | None:
    """The ``mpiexec`` of the MPI library that a program is linked with; None where that cannot be told."""
    traced = subprocess.run(
        [path],
        env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in traced.stdout.splitlines():
        name, _, found = line.strip().partition(" => ")
        if name.startswith(("libmpi.", "libmpich.", "libmpi_abi.")):
            beside = Path(found.split(" (")[0]).parent.parent / "bin" / "mpiexec"
            if beside.exists():
                return str(beside)
            return shutil.which("mpiexec.openmpi" if name == "libmpi.so.40" else "mpiexec.mpich")
    return None

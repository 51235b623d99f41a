"""Programs in C and Fortran, which replace this process with compcoll's library preloaded."""

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

__all__ = ["find_executable", "mpiexec_of", "run_executable", "run_preloaded"]


def find_executable(program: str) -> str | None:
    """Find a program in C or Fortran, here or on the PATH; None for programs that Python runs."""
    path = program if Path(program).exists() else shutil.which(program)
    if path is None or Path(path).is_dir() or Path(path).suffix == ".py" or not os.access(path, os.X_OK):
        return None
    with open(path, "rb") as file:
        line = file.readline(256)
    is_script = line.startswith(b"#!") and b"python" not in line
    return os.path.abspath(path) if is_script or line.startswith(b"\x7fELF") else None


def run_executable(path: str, arguments: list[str], settings: dict[str, Any]) -> NoReturn:
    """Replace this process by a program in C or Fortran, with the settings of ``compcoll run``."""
    _become(path, arguments, True, settings)


def run_preloaded(arguments: list[str], settings: dict[str, Any]) -> NoReturn:
    """Replace this process by the same Python with the library preloaded."""
    _become(sys.executable, arguments, False, settings)


def _become(path: str, arguments: list[str], embeds: bool, settings: dict[str, Any]) -> NoReturn:
    sys.stdout.flush()
    text = json.dumps(settings, default=lambda path: str(path.resolve()))
    try:
        os.execve(path, [path, *arguments], {**os.environ, **environment(embeds), SETTINGS: text})
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None


def mpiexec_of(path: str) -> str | None:
    """The ``mpiexec`` of the MPI library that a program is linked with; None if that is unknown."""
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

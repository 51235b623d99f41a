"""Programs that call MPI from C or Fortran: a library for ``LD_PRELOAD`` that serves their large calls.

program.py   the Python side of a program with the library
running.py   start of a Python program that a wrapper has started
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from pathlib import Path

__all__ = ["SETTINGS", "environment", "is_preloaded", "library_path"]

#: Environment variable with the settings of ``compcoll run``, as JSON, until MPI is initialised.
SETTINGS = "COMPCOLL_SETTINGS"


def library_path() -> Path:
    """Path of the library to preload.

    Raises
    ------
    OSError
        If it is missing.
    """
    path = Path(__file__).parents[1] / ("_names" + str(sysconfig.get_config_var("EXT_SUFFIX")))
    if not path.exists():
        raise OSError(f"{path} does not exist: compcoll was built without it")
    return path


def environment(embeds: bool = True) -> dict[str, str]:
    """Environment variables that accelerate a program, in addition to those of its policy.

    Parameters
    ----------
    embeds : bool
        True if the library may have to start an interpreter, as in a program that Python does not run.

    Raises
    ------
    OSError
        See `library_path`.
    """
    known = os.environ.get("LD_PRELOAD", "")
    library = str(library_path())
    found = {"LD_PRELOAD": known if library in known.split(":") else f"{library}:{known}".rstrip(":")}
    if embeds:
        found["COMPCOLL_PYTHON"] = sys.executable
        if libpython := _libpython():
            found["COMPCOLL_LIBPYTHON"] = str(libpython)
    return found


def is_preloaded() -> bool:
    """True if this process has the library."""
    return hasattr(ctypes.CDLL(None), "compcoll_is_preloaded")


def _libpython() -> Path | None:
    """This Python's shared library."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}{getattr(sys, 'abiflags', '')}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"):
        if folder and (found := Path(folder) / name).exists():
            return found
    multiarch = sysconfig.get_config_var("MULTIARCH")
    found = Path("/usr/lib") / str(multiarch) / name
    return found if found.exists() else None

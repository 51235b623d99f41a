"""The Python side of a program with the library preloaded; imported after MPI's initialisation."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import mpi4py

if "mpi4py.MPI" not in sys.modules:
    mpi4py.rc.errors = "default"  # otherwise its import would replace the program's error handlers
    os.environ.pop("MPI4PY_MPIABI", None)  # the program has loaded its MPI library, which mpi4py finds

from mpi4py import MPI

from compcoll.comm import mark_world, wrap_world
from compcoll.engine import _engine
from compcoll.engine.start import job_settings
from compcoll.tracing import recording

__all__ = ["accelerate", "begin"]


def begin() -> None:
    """Mark the program's communicators with the options of ``compcoll run``."""
    try:
        mark_world(**job_settings())
    except BaseException:
        recording.stop()
        raise


def accelerate(settings: dict[str, Any]) -> None:
    """Wrap the world of a program that Python runs; collective.

    If ranks disagree or one cannot start, one prints the reason and all exit. Other ranks may run a program
    in C or Fortran, which makes exactly the same MPI calls here.
    """
    try:
        wrap_world(**settings)
    except TimeoutError as error:  # on this rank alone
        recording.fail(error)
        sys.exit(f"Error: {error}")
    except (OSError, ValueError) as error:
        recording.stop()
        if MPI.COMM_WORLD.rank == 0:
            print(f"Error: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Barrier()  # the first rank that ends may end them all
        raise SystemExit(1) from None


def _check_library() -> None:
    """Raise ImportError if mpi4py would call another MPI library than the program."""

    def address(library: ctypes.CDLL) -> int | None:
        return ctypes.cast(library.PMPI_Init, ctypes.c_void_p).value

    theirs = ctypes.CDLL(None)
    if hasattr(theirs, "PMPI_Init") and address(theirs) != address(ctypes.CDLL(MPI.__file__)):
        raise ImportError(
            f"mpi4py's {os.path.basename(MPI.__file__)} is not for the MPI library of the program"
        )


_check_library()
_engine.set_begin(begin)

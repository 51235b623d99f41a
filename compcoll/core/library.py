"""Check that there is an MPI library."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["check_mpi"]


def check_mpi(*, start: bool = True) -> None:
    """ImportError, with a hint, where mpi4py finds no MPI library that it can load.

    With ``start`` MPI is imported, and so initialised; else mpi4py only looks for it.
    """
    try:
        if find_spec("mpi4py.MPI") is not None and start:
            from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"no MPI library was found ({reason}); pip install mpich brings one, "
            "and MPI4PY_LIBMPI names another"
        ) from None

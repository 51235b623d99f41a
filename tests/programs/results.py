"""Results that a program leaves for its test: the arrays of each rank, in a file for each."""

import os
from pathlib import Path

import numpy as np
from mpi4py import MPI

__all__ = ["SUMS", "Results"]

#: Prefix of the names of arrays that depend on the order in which ranks are added up.
SUMS = "sums: "


class Results:
    """Arrays by name, written at the end of the program's work.

    ``PROGRAM_RESULTS`` names the folder.
    """

    def __enter__(self) -> "Results":
        self._arrays: dict[str, np.ndarray] = {}
        return self

    def keep(self, name: str, array, sums: bool = False) -> None:
        """Keep a copy of an array's current values.

        ``sums`` is True if they depend on sums over ranks, whose order MPI leaves open.
        """
        name = SUMS + name if sums else name
        assert name not in self._arrays, f"{name} is there twice"
        self._arrays[name] = np.array(array)

    def __exit__(self, kind, problem, traceback) -> None:
        if kind is None:
            folder = Path(os.environ["PROGRAM_RESULTS"])
            np.savez(folder / f"{MPI.COMM_WORLD.rank}.npz", **self._arrays)

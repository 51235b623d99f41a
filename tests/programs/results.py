"""What a program leaves for its test: the arrays of each rank, in a file of its own."""

import os
from pathlib import Path

import numpy as np
from mpi4py import MPI

__all__ = ["SUMS", "Results"]

#: What the names of those arrays begin with that depend on the order in which ranks are added up.
SUMS = "sums: "


class Results:
    """Arrays by name, written when the program's work is done.

    ``PROGRAM_RESULTS`` names the folder.
    """

    def __enter__(self) -> "Results":
        self._arrays: dict[str, np.ndarray] = {}
        return self

    def keep(self, name: str, array, sums: bool = False) -> None:
        """Keep the values that an array has now.

        ``sums`` says that they depend on sums over ranks, of whose order MPI promises nothing.
        """
        name = SUMS + name if sums else name
        assert name not in self._arrays, f"{name} is there twice"
        self._arrays[name] = np.array(array)

    def __exit__(self, kind, problem, traceback) -> None:
        if kind is None:
            folder = Path(os.environ["PROGRAM_RESULTS"])
            np.savez(folder / f"{MPI.COMM_WORLD.rank}.npz", **self._arrays)

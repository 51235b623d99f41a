"""Whether all ranks have called the same operation: two numbers of each, reduced beside the operation itself.

MPI matches whatever comes next, and may give one rank's sum to another's broadcast; a mismatch would pass
for a result. Every operation begins a check, and ends where it fails.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import torch.distributed as dist
from mpi4py import MPI

from compcoll.core import environment, errors
from compcoll.engine import _engine

__all__ = ["Agreement", "MismatchError", "is_wanted"]


class MismatchError(dist.DistBackendError, errors.MismatchError):
    """Ranks of a group have called different operations."""


def is_wanted() -> bool:
    """``COMPCOLL_CHECK=0`` turns it off."""
    return environment.checks(default=True)


class Agreement(_engine.Request):
    """The check under way.

    Parameters
    ----------
    comm : MPI.Intracomm
        Whose collectives are agreements alone: those of other communicators begin in between.
    number : int
        Of the operation.
    said : tuple
        What all ranks should call: the operation, and what they know of it alike.
    """

    def __new__(cls, *args: Any) -> Agreement:
        return super().__new__(cls)

    def __init__(self, comm: MPI.Intracomm, number: int, said: tuple):
        code = crc32(repr((number, said)).encode())
        self.number, self.said = number, said
        self.extremes = np.array([code, -code], np.int64)
        super().__init__(comm.Iallreduce(MPI.IN_PLACE, self.extremes, MPI.MAX))

    def check(self) -> None:
        super().check()
        if self.extremes[0] != -self.extremes[1]:
            raise MismatchError(
                "the ranks of the group have called different operations, or with different sizes, types or "
                f"roots; this one's call {self.number}: {' '.join(map(str, self.said))}"
            )

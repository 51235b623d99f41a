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
from compcoll.torch.roll_call import RollCall

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
    words : str
        What all ranks should call: the operation, and what they know of it alike.
    roll : RollCall
    """

    def __new__(cls, *args: Any) -> Agreement:
        return super().__new__(cls)

    def __init__(self, comm: MPI.Intracomm, number: int, words: str, roll: RollCall):
        code = crc32(f"{number} {words}".encode())
        self.number, self.words, self.roll = number, words, roll
        self.extremes = np.array([code, -code], np.int64)
        super().__init__(comm.Iallreduce(MPI.IN_PLACE, self.extremes, MPI.MAX))

    def check(self) -> None:
        super().check()
        if self.extremes[0] != -self.extremes[1]:
            everyone = self.roll.everyone(self.number, self.words)
            raise MismatchError(
                "the ranks of the group have called different operations, or with different sizes, types or "
                f"roots, as call {self.number}: "
                + "; ".join(f"rank {rank}: {words}" for rank, words in enumerate(everyone))
            )

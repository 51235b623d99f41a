"""Objects between ranks, beside calls of mpi4py's that another thread may be in."""

from __future__ import annotations

import pickle
from typing import TypeVar

import numpy as np
from mpi4py import MPI

__all__ = ["bcast_object"]

_Object = TypeVar("_Object")


def bcast_object(comm: MPI.Intracomm, obj: _Object) -> _Object:
    """Rank 0's object on all ranks; collective.

    mpi4py's ``bcast`` waits for a lock of the communicator, which a thread has that waits in such a call for
    a decision.
    """
    data = bytearray(pickle.dumps(obj) if comm.Get_rank() == 0 else b"")
    length = np.array([len(data)], np.int64)
    comm.Bcast(length)
    if not data:
        data = bytearray(int(length[0]))
    comm.Bcast([data, MPI.BYTE])
    found: _Object = pickle.loads(data)
    return found

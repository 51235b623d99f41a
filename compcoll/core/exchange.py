"""Exchange of objects between ranks, safe beside mpi4py calls of another thread."""

from __future__ import annotations

import pickle
from typing import TypeVar

import numpy as np
from mpi4py import MPI

__all__ = ["bcast_object"]

_Object = TypeVar("_Object")


def bcast_object(comm: MPI.Intracomm, obj: _Object) -> _Object:
    """Rank 0's object on all ranks; collective.

    mpi4py's ``bcast`` waits for a lock of the communicator, which another thread may hold while it waits for
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

"""Alltoall: every rank sends a message to each rank."""

import numpy as np

from .main import main
from .osu import Case


def alltoall(comm, values, n):
    """Each message has n values."""
    send = values(comm.size * n)
    recv = np.empty_like(send)
    moved = (comm.size - 1) * n * send.itemsize
    return Case(lambda c: c.Alltoall(send, recv), recv, moved)


if __name__ == "__main__":
    main(alltoall)

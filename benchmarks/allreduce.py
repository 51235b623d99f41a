"""Allreduce: all ranks receive the sum of all messages."""

import numpy as np

from .main import main
from .osu import Case, rounding


def allreduce(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = np.empty_like(send)
    moved = 2 * (comm.size - 1) / comm.size * send.nbytes
    return Case(lambda c: c.Allreduce(send, recv), recv, moved, rounding=rounding(comm, send))


if __name__ == "__main__":
    main(allreduce)

"""Allgather: every rank receives every rank's message."""

import numpy as np

from .main import main
from .osu import Case


def allgather(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = np.empty(comm.size * n, send.dtype)
    return Case(lambda c: c.Allgather(send, recv), recv, (comm.size - 1) * send.nbytes)


if __name__ == "__main__":
    main(allgather)

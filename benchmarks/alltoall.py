"""Alltoall: every rank sends a message to each rank."""

from .main import main
from .operations import Case


def alltoall(comm, values, n):
    """Each message has n values."""
    send = values(comm.size * n)
    recv = values.empty(comm.size * n)
    moved = (comm.size - 1) * n * values.dtype.itemsize
    return Case(lambda c: c.Alltoall(send, recv), recv, moved)


if __name__ == "__main__":
    main(alltoall)

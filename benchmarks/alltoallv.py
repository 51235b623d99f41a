"""Alltoallv: every rank sends a message to each rank, from places that it names."""

from .main import main
from .operations import Case


def alltoallv(comm, values, n):
    """Each message has n values."""
    send = values(comm.size * n)
    recv = values.empty(comm.size * n)
    counts = [n] * comm.size
    moved = (comm.size - 1) * n * values.dtype.itemsize
    return Case(lambda c: c.Alltoallv((send, counts), (recv, counts)), recv, moved)


if __name__ == "__main__":
    main(alltoallv)

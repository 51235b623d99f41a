"""Allgather: every rank receives every rank's message."""

from .main import main
from .operations import Case


def allgather(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = values.empty(comm.size * n)
    return Case(lambda c: c.Allgather(send, recv), recv, (comm.size - 1) * send.nbytes)


if __name__ == "__main__":
    main(allgather)

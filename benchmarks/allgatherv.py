"""Allgatherv: every rank receives every rank's message, to places that it names."""

from .main import main
from .operations import Case


def allgatherv(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = values.empty(comm.size * n)
    counts = [n] * comm.size
    return Case(lambda c: c.Allgatherv(send, (recv, counts)), recv, (comm.size - 1) * send.nbytes)


if __name__ == "__main__":
    main(allgatherv)

"""Allreduce: all ranks receive the sum of all messages."""

from .main import main
from .operations import Case, rounding


def allreduce(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = values.empty(n)
    moved = 2 * (comm.size - 1) / comm.size * send.nbytes
    return Case(lambda c: c.Allreduce(send, recv), recv, moved, rounding=rounding(comm, values.host(send)))


if __name__ == "__main__":
    main(allreduce)

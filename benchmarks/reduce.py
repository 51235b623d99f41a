"""Reduce: rank 0 receives the sum of all messages."""

from .main import main
from .operations import Case, rounding


def reduce(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = values.empty(n if comm.rank == 0 else 0)
    target = recv if comm.rank == 0 else None
    moved = (comm.size - 1) / comm.size * send.nbytes
    limit = rounding(comm, values.host(send))
    return Case(lambda c: c.Reduce(send, target, root=0), recv, moved, rounding=limit)


if __name__ == "__main__":
    main(reduce)

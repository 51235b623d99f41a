"""Gather: rank 0 receives a message from every rank."""

from .main import main
from .operations import Case


def gather(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = values.empty(comm.size * n if comm.rank == 0 else 0)
    target = recv if comm.rank == 0 else None
    return Case(lambda c: c.Gather(send, target, root=0), recv, (comm.size - 1) * send.nbytes)


if __name__ == "__main__":
    main(gather)

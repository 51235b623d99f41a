"""Gatherv: rank 0 receives a message from every rank, to places that it names."""

from .main import main
from .operations import Case


def gatherv(comm, values, n):
    """Each message has n values."""
    send = values(n)
    recv = values.empty(comm.size * n if comm.rank == 0 else 0)
    target = (recv, [n] * comm.size) if comm.rank == 0 else None
    return Case(lambda c: c.Gatherv(send, target, root=0), recv, (comm.size - 1) * send.nbytes)


if __name__ == "__main__":
    main(gatherv)

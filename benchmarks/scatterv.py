"""Scatterv: rank 0 sends a message to every rank, from places that it names."""

from .main import main
from .operations import Case


def scatterv(comm, values, n):
    """Each message has n values."""
    send = (values(comm.size * n), [n] * comm.size) if comm.rank == 0 else None
    recv = values.empty(n)
    return Case(lambda c: c.Scatterv(send, recv, root=0), recv, (comm.size - 1) * recv.nbytes)


if __name__ == "__main__":
    main(scatterv)

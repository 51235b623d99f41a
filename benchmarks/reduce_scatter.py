"""Reduce_scatter_block: every rank receives its part of the sum. Sizes are those of one part."""

from .main import main
from .operations import Case, rounding


def reduce_scatter(comm, values, n):
    """Each part has n values."""
    send = values(comm.size * n)
    recv = values.empty(n)
    moved = (comm.size - 1) * recv.nbytes
    return Case(
        lambda c: c.Reduce_scatter_block(send, recv), recv, moved, rounding=rounding(comm, values.host(send))
    )


if __name__ == "__main__":
    main(reduce_scatter)

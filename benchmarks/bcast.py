"""Bcast: all ranks receive rank 0's message."""

from .main import main
from .operations import Case


def bcast(comm, values, n):
    """The message has n values."""
    original = values.host(values(n))
    buffer = values(n)

    def reset():
        # A lossy broadcast leaves the decoded values at its root as well.
        if comm.rank == 0:
            values.arrays.write(buffer, original)

    return Case(lambda c: c.Bcast(buffer, root=0), buffer, original.nbytes, reset)


if __name__ == "__main__":
    main(bcast)

"""Bcast: all ranks receive rank 0's message."""

from .main import main
from .osu import Case


def bcast(comm, values, n):
    """The message has n values."""
    original = values(n)
    buffer = original.copy()

    def reset():
        # A lossy broadcast leaves the decoded values at its root as well.
        if comm.rank == 0:
            buffer[:] = original

    return Case(lambda c: c.Bcast(buffer, root=0), buffer, buffer.nbytes, reset)


if __name__ == "__main__":
    main(bcast)

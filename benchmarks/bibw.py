"""A window of messages between ranks 0 and 1 in both directions at once; the time is one pair's.

They are all on their way at once, as OSU has it.
"""

from mpi4py import MPI

from .main import main
from .operations import WINDOW, Case, in_window, peer_of


def bibw(comm, values, n):
    """Each message has n values."""
    peer = peer_of(comm)
    send = values(n)
    recv = values.empty(n if peer is not None else 0)

    def call(c):
        if peer is None:
            return
        if in_window(c):
            arriving = [c.Irecv(recv, peer) for _ in range(WINDOW)]
            MPI.Request.Waitall(arriving + [c.Isend(send, peer) for _ in range(WINDOW)])
        else:
            for _ in range(WINDOW):
                c.Sendrecv(send, peer, recvbuf=recv, source=peer)

    return Case(call, recv, 2 * send.nbytes, repeats=WINDOW)


if __name__ == "__main__":
    main(bibw)

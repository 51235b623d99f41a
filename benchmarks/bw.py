"""A window of messages from rank 0 to rank 1, which answers when it has them all; the time is one's.

They are all on their way at once, as OSU has it.
"""

import numpy as np
from mpi4py import MPI

from .main import main
from .operations import WINDOW, Case, in_window, peer_of


def bw(comm, values, n):
    """Each message has n values."""
    peer = peer_of(comm)
    send = values(n)
    # The messages land in one place: OSU's do too, and a window of large ones may not fit in memory.
    recv = values.empty(n if comm.rank == 1 else 0)
    answer = np.zeros(1, np.uint8)

    def call(c):
        if comm.rank == 0:
            if in_window(c):
                MPI.Request.Waitall([c.Isend(send, peer) for _ in range(WINDOW)])
            else:
                for _ in range(WINDOW):
                    c.Send(send, peer)
            comm.Recv(answer, peer)
        elif comm.rank == 1:
            if in_window(c):
                MPI.Request.Waitall([c.Irecv(recv, peer) for _ in range(WINDOW)])
            else:
                for _ in range(WINDOW):
                    c.Recv(recv, peer)
            comm.Send(answer, peer)

    return Case(call, recv, send.nbytes, repeats=WINDOW)


if __name__ == "__main__":
    main(bw)

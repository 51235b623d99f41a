"""Windows of messages of many pairs at once, from the first half of the ranks to the second, which answers.

The time is that of one message of each pair, and GB/s are those of all pairs together; pairs over time are
the rate of messages. Messages are on their way together as in `bw`.
"""

import numpy as np
from mpi4py import MPI

from .main import main
from .operations import WINDOW, Case, in_window, partner_of


def mbw_mr(comm, values, n):
    """Each message has n values."""
    partner = partner_of(comm)
    sends = partner is not None and comm.rank < partner
    send = values(n)
    recv = values.empty(0 if sends or partner is None else n)
    answer = np.zeros(1, np.uint8)

    def call(c):
        if partner is None:
            return
        if in_window(c):
            begin = (lambda: c.Isend(send, partner)) if sends else (lambda: c.Irecv(recv, partner))
            MPI.Request.Waitall([begin() for _ in range(WINDOW)])
        else:
            for _ in range(WINDOW):
                c.Send(send, partner) if sends else c.Recv(recv, partner)
        comm.Recv(answer, partner) if sends else comm.Send(answer, partner)

    return Case(call, recv, comm.size // 2 * send.nbytes, repeats=WINDOW)


if __name__ == "__main__":
    main(mbw_mr)

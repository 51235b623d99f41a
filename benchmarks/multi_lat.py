"""Ping-pong of pairs of ranks, one of each half; the time is that of one message."""

from .main import main
from .operations import Case, partner_of


def multi_lat(comm, values, n):
    """The messages have n values."""
    partner = partner_of(comm)
    send = values(n)
    recv = values.empty(n if partner is not None else 0)

    def call(c):
        if partner is None:
            return
        if comm.rank < partner:
            c.Send(send, partner)
            c.Recv(recv, partner)
        else:
            c.Recv(recv, partner)
            c.Send(send, partner)

    return Case(call, recv, send.nbytes, repeats=2)


if __name__ == "__main__":
    main(multi_lat)

"""Ping-pong of ranks 0 and 1; the time is that of one message."""

from .main import main
from .operations import Case, peer_of


def latency(comm, values, n):
    """The message has n values."""
    peer = peer_of(comm)
    send = values(n)
    recv = values.empty(n if peer is not None else 0)

    def call(c):
        if comm.rank == 0:
            c.Send(send, peer)
            c.Recv(recv, peer)
        elif comm.rank == 1:
            c.Recv(recv, peer)
            c.Send(send, peer)

    return Case(call, recv, send.nbytes, repeats=2)


if __name__ == "__main__":
    main(latency)

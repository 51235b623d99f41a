"""Heat in a plate: a Cartesian communicator, and halos by Isend, Irecv and Sendrecv.

Each rank has a block of the plate and a halo of one point around it, which is filled with the neighbours'
values in each step. Rows are exchanged by Isend and Irecv; columns are copied, and exchanged by Sendrecv. The
blocks are wide, so that a row exceeds the 16 KiB from which messages are compressed.

mpiexec -n 4 python halo_exchange.py [CODEC]     # lossless by default
"""

import sys

import numpy as np
from mpi4py import MPI

import compcoll

ROWS, COLUMNS, STEPS = 64, 4096, 50


def exchange(cart, block):
    """Fill the halo around a block with the neighbours' values."""
    up, down = cart.Shift(0, 1)
    requests = [
        cart.Irecv(block[0], source=up, tag=0),
        cart.Irecv(block[-1], source=down, tag=1),
        cart.Isend(block[-2], dest=down, tag=0),
        cart.Isend(block[1], dest=up, tag=1),
    ]
    left, right = cart.Shift(1, 1)
    for inner, outer, dest, source in ((1, -1, left, right), (-2, 0, right, left)):
        received = block[:, outer].copy()  # unchanged if there is no neighbour
        cart.Sendrecv(block[:, inner].copy(), dest, recvbuf=received, source=source)
        block[:, outer] = received
    MPI.Request.Waitall(requests)


def main(codec="lossless"):
    comm = compcoll.Comm(MPI.COMM_WORLD, codec=codec)
    cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2))  # inherits the codec
    waves = [
        np.sin(np.linspace(0, np.pi, n * dim)[n * at : n * (at + 1)])
        for n, dim, at in zip((ROWS, COLUMNS), cart.dims, cart.coords, strict=True)
    ]
    block = np.zeros((ROWS + 2, COLUMNS + 2))  # the edges of the plate stay cold
    block[1:-1, 1:-1] = np.outer(*waves)
    for _ in range(STEPS):
        exchange(cart, block)
        neighbours = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
        block[1:-1, 1:-1] = neighbours / 4
    heat = comm.allreduce(block[1:-1, 1:-1].sum())
    if comm.rank == 0:
        print(f"heat after {STEPS} steps on {'x'.join(map(str, cart.dims))} ranks with {codec}: {heat:.12g}")
        print(f"accelerated calls of rank 0: {cart.calls_accelerated}; the last one: {cart.report}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Ranks that a program starts itself, by multiprocessing: no mpiexec.

python without_mpiexec.py [RANKS]
"""

import multiprocessing
import secrets
import socket
import sys

import numpy as np


def work(rank, size, address, secret):
    import compcoll

    compcoll.bootstrap(rank, size, address, secret=secret)  # before mpi4py.MPI is imported
    from mpi4py import MPI

    comm = compcoll.Comm(MPI.COMM_WORLD, codec="lossless")
    mine = np.linspace(rank, rank + 1, 1 << 18)
    everyone = np.empty((size, mine.size))
    comm.Allgather(mine, everyone)
    if rank == 0:
        print(comm.report)
        print(f"{size} ranks, exact: {(everyone[:, 0] == np.arange(size)).all()}")


def main(size=3):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    spawn = multiprocessing.get_context("spawn")  # a forked process would inherit its parent's MPI
    given = address, secrets.token_hex()
    ranks = [spawn.Process(target=work, args=(rank, size, *given)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

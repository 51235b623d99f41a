"""Checkpoints of a distributed field; a second run continues where the first one ended.

mpiexec -n 4 python checkpoints.py FOLDER
mpiexec -n 2 python checkpoints.py FOLDER     # any number of ranks
"""

import sys

import numpy as np
from mpi4py import MPI

from compcoll import checkpoint

SHAPE, STEPS = (256, 512), 20


def main(folder):
    comm = MPI.COMM_WORLD
    rows = [SHAPE[0] * rank // comm.size for rank in range(comm.size + 1)]
    first, last = rows[comm.rank], rows[comm.rank + 1]
    try:
        found = checkpoint.load(folder)
        u, start = found.arrays["u"], found.step  # this rank's rows, whoever saved them
        if comm.rank == 0:
            print(f"continues after step {start}, saved by {found.ranks} ranks")
    except FileNotFoundError:
        u, start = np.sin(np.arange(first, last)[:, None] + np.linspace(0, 3, SHAPE[1])), 0
    for step in range(start + 1, start + STEPS + 1):
        u += 1e-6 * np.sin(step) * u
        if step % 5 == 0:
            report = checkpoint.save(folder, {"u": checkpoint.Part(u, SHAPE, (first, 0))}, step)
            if comm.rank == 0:
                print(report)
    checkpoint.wait(folder)
    total = comm.allreduce(u.sum())
    if comm.rank == 0:
        print(f"step {start + STEPS}: sum {total:.10f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Weights that change little: a persistent Bcast whose codec sends the changes alone, losslessly.

mpiexec -n 2 python weights.py
"""

import numpy as np
from mpi4py import MPI

import compcoll

N, STEPS = 1_000_000, 4


def main():
    comm = compcoll.Comm(MPI.COMM_WORLD, codec="delta")
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, N).astype(np.float32) if comm.rank == 0 else np.zeros(N, np.float32)
    call = comm.Bcast_init(weights)  # both ends keep the values of the last one
    for step in range(STEPS):
        if comm.rank == 0:
            changed = rng.random(N) < 0.02
            weights[changed] *= 1 + 1e-6
        else:
            weights[:] = np.nan  # harmless: receivers keep a copy
        call.Start()
        call.Wait()
        report = comm.report
        same = comm.allreduce(weights.tobytes() == comm.bcast(weights, 0).tobytes(), MPI.LAND)
        if comm.rank == 0:
            print(
                f"step {step}: {report.ratio:.1f}x by {', '.join(report.codecs)}; equal on all ranks: {same}"
            )
    if comm.rank == 0:
        print(f"kept on this rank: {report.base_nbytes} bytes")
    call.Free()


if __name__ == "__main__":
    main()

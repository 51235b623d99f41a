"""A two-level Allreduce: bytes through the nodes' ports, and bytes inside nodes.

mpiexec -n 4 python nodes.py                              # on two nodes of a cluster
COMPCOLL_NODES=0,0,1,1 mpiexec -n 4 python nodes.py       # on one machine, as if on two nodes
"""

import numpy as np
from mpi4py import MPI

import compcoll

world = MPI.COMM_WORLD
comm = compcoll.Comm(world, codec="bfp:bits=7")
field = np.sin(np.linspace(0, 40, 1 << 20) + world.rank).astype("f4")
total = np.empty_like(field)
comm.Allreduce(field, total)

want = np.empty_like(field)
world.Allreduce(field, want)
through, inside = (world.reduce(n) for n in (comm.report.wire_nbytes, comm.report.inside_nbytes))
if world.rank == 0:
    print(comm.report)
    print(f"all ranks: {through} bytes through ports, {inside} bytes inside nodes")
    print(f"largest error {abs(total - want).max():.2g}, at most {comm.report.error_bound:.2g}")

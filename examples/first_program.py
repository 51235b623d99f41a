"""Alltoall through a compressing communicator, and its report.

mpiexec -n 4 python first_program.py
"""

import numpy as np
from mpi4py import MPI

import compcoll

comm = compcoll.Comm(MPI.COMM_WORLD, codec="bfp:bits=8")
send = np.sin(np.linspace(0, 20, comm.size << 18, dtype="f4") + comm.rank)
recv = np.empty_like(send)
comm.Alltoall(send, recv)
if comm.rank == 0:
    print(comm.report)

"""A program to trace: plain mpi4py, which does not import compcoll.

compcoll run -n 2 --trace trace traced.py
compcoll report trace                            # tables; trace/report.html and trace/perfetto.json
"""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Set_name("world")
rng = np.random.default_rng(comm.rank)
field = np.cumsum(rng.normal(size=1 << 18)).astype("f4")
everyone = np.empty((comm.size, field.size), "f4")
total = np.empty_like(field)

for _ in range(10):
    comm.Allgather(field, everyone)
    comm.Allreduce(field, total, op=MPI.SUM)
    largest = comm.allreduce(float(np.abs(total).max()), op=MPI.MAX)  # small: MPI's own
    field += total / (1 + largest)

request = comm.Ibcast(field, root=0)  # in flight while this rank computes
everyone.sort(axis=1)
request.Wait()

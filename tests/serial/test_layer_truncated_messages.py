"""A compressed message whose receiver has a small buffer: an error on both sides, not a hang."""

import os
import subprocess
import sys

import pytest
from mpi4py import MPI

from compcoll.cli import launch

PROGRAM = """
import numpy as np
from mpi4py import MPI
import compcoll
comm = compcoll.Comm(MPI.COMM_WORLD, codec="raw")
try:
    if comm.rank == 0:
        comm.Send(np.zeros(1 << 21), 1)
    else:
        comm.Irecv(np.zeros(1), 0).Wait()
except MPI.Exception as error:
    known = {MPI.ERR_TRUNCATE: "truncated", compcoll.errors.TIMEOUT: "time-out"}
    print(known.get(error.Get_error_class(), error))
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.skipif(MPI.get_vendor()[0] == "Open MPI", reason="Open MPI 4 itself crashes here")
def test_both_ends_raise():
    environment = {**os.environ, "COMPCOLL_TIMEOUT": "1"}
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    for said in ("truncated", "time-out"):
        assert said in done.stdout, done.stdout + done.stderr

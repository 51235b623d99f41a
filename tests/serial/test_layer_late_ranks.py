"""A rank that comes after COMPCOLL_TIMEOUT: an error where others wait, never a buffer half full."""

import os
import subprocess
import sys

import pytest

from compcoll.cli import launch

PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI
import compcoll

n = 200_000
comm = compcoll.Comm(MPI.COMM_WORLD, codec="lossless")
mine, got = np.random.default_rng(comm.rank).random(n) + comm.rank + 1, np.zeros(2 * n)
halves = [n // 2] * 2
persistent = {
    "Allgather_init": lambda: comm.Allgather_init(mine, got),
    "Alltoallv_init": lambda: comm.Alltoallv_init([mine, halves], [got[:n], halves]),
}
started = {
    "Iallgather": lambda: comm.Iallgather(mine, got),
    "Ialltoallv": lambda: comm.Ialltoallv([mine, halves], [got[:n], halves]),
    "Irecv": lambda: comm.Irecv(got[:n], 0) if comm.rank else comm.Isend(mine, 1),
    "Isendrecv": lambda: comm.Isendrecv(mine, 1 - comm.rank, 0, got[:n], 1 - comm.rank, 0),
}
name = sys.argv[1]
request = persistent[name]() if name in persistent else None
if comm.rank == 0:
    time.sleep(1.5)
try:
    if request is None:
        request = started[name]()
    else:
        request.Start()
    request.Wait()
    said = "complete"
except MPI.Exception as problem:
    said = f"an error: {problem}"
if comm.rank == 1:
    print(said, flush=True)
    time.sleep(1.5)  # the other rank, too, may wait for what never comes
    MPI.COMM_WORLD.Abort(0)
time.sleep(60)
"""
CALLS = ["Iallgather", "Ialltoallv", "Irecv", "Isendrecv", "Allgather_init", "Alltoallv_init"]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.exhaustive(but=1)
def test_a_request_that_waits_in_vain(name):
    environment = {**os.environ, "COMPCOLL_TIMEOUT": "0.5"}
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert "an error" in done.stdout, done.stdout + done.stderr
    assert "waited for messages for more than COMPCOLL_TIMEOUT = 0.5 s" in done.stdout + done.stderr

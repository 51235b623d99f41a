"""If a rank is later than COMPCOLL_TIMEOUT, the others' waits raise and none returns a partial buffer."""

import os
import re
import subprocess
import sys

from compcoll.cli import launch

PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI
import compcoll

n = 200_000
world = MPI.COMM_WORLD
rank, other = world.rank, 1 - world.rank
mine, halves = np.random.default_rng(rank).random(n) + rank + 1, [n // 2] * 2
calls = {
    "Iallgather": lambda comm, got: comm.Iallgather(mine, got),
    "Ialltoallv": lambda comm, got: comm.Ialltoallv([mine, halves], [got[:n], halves]),
    "Irecv": lambda comm, got: comm.Irecv(got[:n], 0) if rank else comm.Isend(mine, 1),
    "Isendrecv": lambda comm, got: comm.Isendrecv(mine, other, 0, got[:n], other, 0),
    "Allgather_init": lambda comm, got: comm.Allgather_init(mine, got),
    "Alltoallv_init": lambda comm, got: comm.Alltoallv_init([mine, halves], [got[:n], halves]),
}
made = {name: (compcoll.Comm(world.Dup(), codec="lossless"), np.zeros(2 * n)) for name in calls}
requests = {name: call(*made[name]) for name, call in calls.items() if name.endswith("_init")}
world.Barrier()
if rank == 0:
    time.sleep(1.5)
for name in calls:
    requests[name].Start() if name in requests else requests.update({name: calls[name](*made[name])})
for name, request in requests.items():
    try:
        request.Wait()
        said = "complete"
    except MPI.Exception as problem:
        said = f"an error: {problem}"
    if rank == 1:
        print(name, said, flush=True)
if rank == 1:
    time.sleep(1.5)  # the other rank, too, may wait for what never comes
    world.Abort(0)
time.sleep(60)
"""
CALLS = ["Iallgather", "Ialltoallv", "Irecv", "Isendrecv", "Allgather_init", "Alltoallv_init"]


def test_requests_that_wait_in_vain():
    environment = {**os.environ, "COMPCOLL_TIMEOUT": "0.5"}
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    why = "waited for messages for more than COMPCOLL_TIMEOUT = 0.5 s"
    for name in CALLS:
        assert re.search(f"^{name} an error: .*{why}", done.stdout, re.MULTILINE), done.stdout + done.stderr

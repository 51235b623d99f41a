"""A rank is late: the others say for whom they wait, or raise after COMPCOLL_TIMEOUT."""

import os
import re
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
ALLGATHER = "of 200000 float64"
#: Each call's text, and the rank that it names; none for a message, whose text has it.
CALLS = {
    "Iallgather": (f"Iallgather {ALLGATHER}", " for rank 0"),
    "Ialltoallv": ("Ialltoallv", " for rank 0"),
    "Irecv": ("Irecv of 1600000 bytes from rank 0 with any tag", ""),
    "Isendrecv": ("Isendrecv of .* from rank 0 with tag 0", ""),
    "Allgather_init": (f"Allgather_init {ALLGATHER}", " for rank 0"),
    "Alltoallv_init": ("Alltoallv_init", " for rank 0"),
}

#: Rank 1 makes a communicator and calls before rank 0 does.
LATE = """
import time
import numpy as np
from mpi4py import MPI
import compcoll

world = MPI.COMM_WORLD
rank, x, y = world.rank, np.arange(100_000.0), np.empty(100_000)
world.Barrier()
noted = compcoll.Comm(world, "lossless")

def late(call):
    world.Barrier()
    time.sleep(SECONDS if rank == 0 else 0)
    return call()

late(lambda: compcoll.Comm(world, "lossless", strict=True))
for _ in range(2):
    late(lambda: noted.Allreduce(x, y))
late(lambda: noted.Iallgather(x, np.empty(200_000)).Wait())
late(lambda: noted.Send(x, 1, 7) if rank == 0 else noted.Recv(y, MPI.ANY_SOURCE))
late(lambda: noted.Isend(x, 1, 7).Wait() if rank == 0 else noted.Irecv(y, 0, 7).Wait())
big = np.arange(4e6)
late(lambda: noted.Recv(big, 1) if rank == 0 else noted.Isend(big, 0, 7).Wait())
request = noted.Irecv(y, 1 - rank)
time.sleep(2 * SECONDS)  # nobody waits
noted.Send(x, 1 - rank)
request.Wait()
"""
NOTICES = [
    "making a Comm of MPI_COMM_WORLD has waited 0.3 s for other ranks",
    "Allreduce of 100000 float64 has waited 0.3 s for rank 0",
    "Iallgather of 100000 float64 has waited 0.3 s for rank 0",
    "Recv of 800000 bytes from any rank with any tag has waited 0.3 s",
    "Irecv of 800000 bytes from rank 0 with tag 7 has waited 0.3 s",
    "Isend of 32000000 bytes to rank 0 with tag 7 has waited 0.3 s",
]


def run(program, **variables):
    """Run a program on two ranks."""
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", program]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_a_call_that_waits_says_so_once():
    """Rank 1 says once for each operation what it waits for; calls that nobody waits for are not named."""
    done = run(LATE.replace("SECONDS", "1"), COMPCOLL_NOTICE="0.3")
    end = "; COMPCOLL_TIMEOUT=SECONDS makes it an error"
    expected = [f"compcoll: rank 1 of 2: {text}{end}" for text in NOTICES]
    said = [line for line in done.stderr.splitlines() if "rank 0 of 2" not in line]  # if rank 1 is slow
    assert (said, done.returncode) == (expected, 0), done.stderr


@pytest.mark.parametrize(("notice", "seconds"), [("60", "0"), ("0", "0.5")])
@pytest.mark.exhaustive(but=1)
def test_nothing_is_said(notice, seconds):
    """No notice if no call waits for so long, nor with COMPCOLL_NOTICE=0."""
    done = run(LATE.replace("SECONDS", seconds), COMPCOLL_NOTICE=notice)
    assert (done.stderr, done.returncode) == ("", 0)


def test_requests_that_wait_in_vain():
    """Each wait raises after COMPCOLL_TIMEOUT, and names the call and the late rank."""
    done = run(PROGRAM, COMPCOLL_TIMEOUT="0.5")
    for name, (call, rank) in CALLS.items():
        why = f"{call} has waited more than COMPCOLL_TIMEOUT = 0.5 s{rank};"
        assert re.search(f"^{name} an error: {why}", done.stdout, re.MULTILINE), done.stdout + done.stderr

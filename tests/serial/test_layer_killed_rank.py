"""A rank that is killed in the middle of a call ends the job, which leaves no shared memory behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from compcoll.cli.launch import find_mpiexec

PROGRAM = """
import os
import numpy as np
from mpi4py import MPI
import compcoll
comm = compcoll.Comm(MPI.COMM_WORLD, codec="zfp:rate=8")
field = np.ones(1 << 20, "f4")
total = np.empty_like(field)
comm.Allreduce(field, total)
assert comm._marked.neighbours is not None
pids = MPI.COMM_WORLD.gather(os.getpid())
if comm.rank == 0:
    print(*pids, flush=True)
while True:
    comm.Allreduce(field, total)
"""


def mapped(pid: int) -> bool:
    """True if a process maps this library's shared memory."""
    try:
        return "/memfd:compcoll" in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_rank():
    before = set(os.listdir("/dev/shm"))
    job = subprocess.Popen(
        [find_mpiexec(), "-n", "4", sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COMPCOLL_NODES": "0,0,1,1"},
    )
    try:
        pids = [int(pid) for pid in job.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(mapped, pids))
        os.kill(pids[2], signal.SIGKILL)
        assert job.wait(60) != 0
        assert not any(map(mapped, pids))
        assert not any("compcoll" in name for name in set(os.listdir("/dev/shm")) - before)
    finally:
        job.kill()
        job.stdout.close()

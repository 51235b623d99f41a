"""Without MPI_THREAD_MULTIPLE messages go to MPI, whose report says why."""

import subprocess
import sys

from compcoll.cli.launch import find_mpiexec

PROGRAM = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
import numpy as np
from mpi4py import MPI
import compcoll

ours = compcoll.Comm(MPI.COMM_WORLD, "lossless", min_nbytes=4096)
peer, got = 1 - ours.rank, np.zeros(1 << 16)
for n in (1 << 16, 10):
    ours.Sendrecv(np.full(n, ours.rank, "f8"), peer, 0, got[:n], peer, 0)
    assert (got[:n] == peer).all()
    if ours.rank == 0:
        print(ours.report.reason)
"""


def test_the_report_names_the_missing_thread_level():
    """A large message names the thread level that is missing, and a small one its size."""
    command = [find_mpiexec(), "-n", "2", sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "MPI.THREAD_MULTIPLE, or a thread, is missing on some ranks",
        "the messages are below min_nbytes = 4096",
    ]

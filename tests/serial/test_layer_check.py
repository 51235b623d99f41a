"""Under ``COMPCOLL_CHECK=1`` ranks that make different calls all end, and print why."""

import os
import re
import subprocess
import sys

import pytest

from compcoll.cli import launch

PROGRAM = """
import numpy as np, compcoll
from mpi4py import MPI
comm = compcoll.Comm(MPI.COMM_WORLD, "lossless")
odd, a = comm.rank == 1, np.zeros(100000, "f4")
comm.Bcast(a)
comm.Barrier()
"""
#: Rest of the program, and the expected message.
CASES = {
    "ends": ("if not odd: comm.Bcast(a)", "rank 1 has not come within 1.5 s, and rank"),
    "is elsewhere": (
        "other = comm.Dup()\nother.Barrier()\n(other if odd else comm).Barrier()",
        "rank 1 has not come within 1.5 s, and ranks 0, 2 called Barrier",
    ),
    "another call": (
        "comm.Barrier() if odd else comm.Allreduce(MPI.IN_PLACE, a)",
        "rank 1 called Barrier, the others called Allreduce of 100000 float32 with SUM",
    ),
    "nonblocking": (
        "(comm.Ibarrier() if odd else comm.Ibcast(a)).Wait()",
        "rank 1 called Ibarrier, the others called Ibcast of 100000 float32 from root 0",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.exhaustive(but=1)
def test_every_rank_ends_with_an_error(case):
    rest, said = CASES[case]
    # A launcher kills all ranks once one has failed, so errors are printed and not raised.
    tell = "print(type(error).__name__ + '(', error, ')')"
    program = PROGRAM + f"try:\n    exec({rest!r})\nexcept BaseException as error:\n    {tell}\n"
    environment = {**os.environ, "COMPCOLL_CHECK": "1", "COMPCOLL_TIMEOUT": "1.5"}
    command = [launch.find_mpiexec(), "-n", "3", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    # Lines are not compared, since the unbuffered output of ranks mixes.
    wrong = re.findall(r"(?:Error|Exception)\(", done.stdout)
    assert len(wrong) == (2 if case == "ends" else 3), done.stdout
    assert said in done.stdout + done.stderr


def test_all_ranks_check_or_none():
    program = "import os; os.environ['COMPCOLL_CHECK'] = os.environ['PMI_RANK']" + PROGRAM
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert "PolicyError" in done.stderr


def test_a_variable_that_says_neither():
    command = [sys.executable, "-c", "from mpi4py import MPI; import compcoll; compcoll.Comm(MPI.COMM_WORLD)"]
    environment = {**os.environ, "COMPCOLL_CHECK": "yes"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert "COMPCOLL_CHECK = 'yes': neither 0 nor 1" in done.stderr

"""Programs end silently in each way that MPI and Python allow, and may load compcoll before MPI_Init."""

import os
import subprocess
import sys

import pytest
from mpi4py import MPI

from compcoll.cli.launch import find_mpiexec

#: Calls of each kind, which start the library's threads.
CALLS = """
import numpy as np
from mpi4py import MPI
import compcoll

c = compcoll.Comm(MPI.COMM_WORLD, "lossless", min_nbytes=0)
right, left = (c.rank + 1) % c.size, (c.rank - 1) % c.size
array, token = np.ones(1 << 20, "f4"), np.zeros(1, "i4")
c.Ibcast(array).Wait()
request = c.Irecv(token, left)
c.Send(np.ones(1, "i4"), right)
request.Wait()
"""
FINALIZED = """
import time
MPI.Finalize()
time.sleep(0.2)  # for threads that would call MPI
print("end")
"""
#: Exit handler that waits for requests which MPI alone cannot complete.
AT_EXIT = """
import atexit
requests, got = [], []

@atexit.register
def wait():
    for request in requests:
        request.Wait()
    assert (got[0] == 1).all()
    print("end", flush=True)
"""
BEGUN = """
got.append(np.zeros_like(array))
requests += [c.Irecv(got[0], left), c.Isend(array, right), c.Ibcast(array.copy())]
"""
BEFORE_INIT = """
import mpi4py
mpi4py.rc.initialize = False
import compcoll
from compcoll import Comm
from mpi4py import MPI
MPI.Init_thread(MPI.THREAD_MULTIPLE)
"""
#: Children must not call MPI, so mpi4py must not finalize it in them.
NOT_BY_ITSELF = """
import mpi4py
mpi4py.rc.finalize = False
"""
#: Use of sessions by a library that does not know whether its program initialises MPI.
SESSION = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import numpy as np
import compcoll
session = MPI.Session.Init()
group = session.Create_group("mpi://WORLD")
comm = MPI.Intracomm.Create_from_group(group)
try:
    compcoll.Comm(comm, "lossless")
except RuntimeError as error:
    print(error)
MPI.Init_thread(MPI.THREAD_MULTIPLE)
ours, total = compcoll.Comm(comm, "lossless"), np.zeros(1 << 17)
ours.Allreduce(np.ones(1 << 17), total)
print(ours.report.accelerated, set(total.tolist()))
for one in ours, comm, group:
    one.Free()
session.Finalize()
MPI.Finalize()
"""
FORKED = """
import os, sys
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
MPI.Finalize()
print("end")
"""


def outputs(program: str, tmp_path, ranks: int, **environment: str) -> tuple[str, str]:
    """Run a program; return its stdout and its stderr."""
    path = tmp_path / "program.py"
    path.write_text(program)
    launch = [find_mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    command = [*launch, sys.executable, str(path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "COMPCOLL_THREADS": "2", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


#: Programs, and the value of COMPCOLL_CHECK.
PROGRAMS = {
    "Finalize": (CALLS + FINALIZED, "1"),
    "exit handler": (AT_EXIT + CALLS + BEGUN, "0"),
    "exit handler, compared": (AT_EXIT + CALLS + BEGUN, "1"),
    "before Init": (BEFORE_INIT + CALLS + FINALIZED, "0"),
}


@pytest.mark.parametrize(("program", "check"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.exhaustive(but=3)
def test_the_end_says_nothing(program, check, tmp_path):
    """Programs print nothing on stderr at the end, and each rank's trace is complete."""
    trace = tmp_path / "trace"
    printed, complaints = outputs(program, tmp_path, 2, COMPCOLL_CHECK=check, COMPCOLL_TRACE=str(trace))
    assert (printed.count("end"), complaints) == (2, "")
    assert all('{"end":' in (trace / f"rank0000{rank}.jsonl").read_text() for rank in range(2))


def test_a_child_that_exits_has_no_threads_to_wait_for(tmp_path):
    printed, _ = outputs(NOT_BY_ITSELF + CALLS + FORKED, tmp_path, 2)
    assert printed.count("end") == 2


def test_the_world_that_was_replaced_can_be_pickled(tmp_path):
    program = """
from compcoll.comm import wrap_world
wrap_world(False)
import pickle
from mpi4py import MPI
for name in "COMM_WORLD", "COMM_SELF":
    comm = MPI.Intracomm(getattr(MPI, name))
    again = pickle.loads(pickle.dumps(comm))
    assert type(again) is MPI.Intracomm and again == comm
print("end")
"""
    assert outputs(program, tmp_path, 1)[0] == "end\n"


@pytest.mark.skipif(MPI.Get_version() < (4, 0), reason="MPI has no sessions")
def test_a_communicator_of_a_session_needs_mpi_to_have_begun(tmp_path):
    printed, complaints = outputs(SESSION, tmp_path, 2)
    assert printed.count("compcoll.Comm of a communicator of an MPI session needs MPI.Init() before") == 2
    assert (printed.count("True {2.0}"), complaints) == (2, "")

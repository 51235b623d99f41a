"""Programs with calls in flight, live communicators, errors or interrupts end on all ranks."""

import os
import subprocess
import sys
from itertools import cycle

import pytest
from mpi4py import MPI

from compcoll.cli.launch import find_mpiexec

#: Seconds after which a rank counts as hanging and is killed, and the status of a rank that was.
PATIENCE, LATE = 40, 124

BEGIN = """
import gc, os, sys
import numpy as np
from mpi4py import MPI
import compcoll

c = compcoll.Comm(MPI.COMM_WORLD, "lossless", min_nbytes=0)
n = 1 << 17
array, whole = np.ones(n, "f4"), np.ones(n * c.size, "f4")
got, part = np.zeros_like(whole), np.zeros_like(array)

def say(word):
    os.write(1, f"{word}\\n".encode())
"""
#: Requests that some ranks never wait for; their messages arrive, as all ranks started the same calls.
PENDING = {
    "on both ranks": "requests = [c.Ibcast(array), c.Ialltoall(whole, got), c.Iallreduce(whole[:n], part)]",
    "on the root": "request = c.Ibcast(array)\nif c.rank == 1: request.Wait()",
    "on the other": "request = c.Ibcast(array)\nif c.rank == 0: request.Wait()",
    "of many": """
requests = [c.Ialltoall(whole, got.copy()) for _ in range(30)]
if c.rank == 0: requests[29].Wait()
""",
    "without objects": """
c.Ibcast(array), c.Ialltoall(whole, got), c.Iallreduce(whole[:n], part)
gc.collect()
""",
    "freed by the program": "requests = [c.Ialltoall(whole, got)]\nfor r in requests: r.Free()",
    "of a communicator that was freed": "d = c.Dup()\nrequest = d.Ialltoall(whole, got)\nd.Free()",
    "persistent": """
try:
    requests = [c.Alltoall_init(whole, got), c.Bcast_init(array), c.Allreduce_init(MPI.IN_PLACE, part)]
except NotImplementedError:
    requests = []
for request in requests[:2]:
    request.Start()
""",
    "and communicators": """
kept = [c.Dup(), c.Split(0, c.rank), c.using("raw"), compcoll.Comm(c, "zfp:rate=16"), c.Create_cart([c.size])]
requests = [new.Ibcast(array.copy()) for new in kept]
kept.append(kept)
""",
}
#: How a program ends, and its status.
ENDS = {
    "end": ("say('end')", 0),
    "Finalize": ("MPI.Finalize()\nsay('end')", 0),
    "objects after Finalize": (
        "MPI.Finalize()\nrequests = request = kept = d = c = None\ngc.collect()\nsay('end')",
        0,
    ),
    "sys.exit": ("say('end')\nsys.exit(3)", 3),
}
FORKED = (
    """
import mpi4py
mpi4py.rc.finalize = False  # which children would do as well
"""
    + BEGIN
    + """
import threading

def in_child():
    assert len(compcoll.codec("lossless").encode(array)) < array.nbytes
    global c, request
    c = request = None  # as a child ends, by the interpreter's will or not
    gc.collect()

request = c.Ialltoall(whole, got)
for end in (os._exit, sys.exit):
    child = os.fork()
    if child == 0:
        in_child()
        end(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
request.Wait()
c.Bcast(array)
assert (got == 1).all() and threading.active_count() >= 1
say("end")
MPI.Finalize()
"""
)
#: SIGINT to one rank or both, while ranks make a communicator and their first calls.
INTERRUPTED = """
import os, signal, sys
import numpy as np
from mpi4py import MPI
from compcoll import Comm  # NumPy drops what a handler raises in some of the types that an import makes

moment, both = float(sys.argv[1]), sys.argv[2] == "both"
world = MPI.COMM_WORLD
array, whole = np.ones(1 << 14), np.ones((world.size, 1 << 13))
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
world.Barrier()
if both or world.rank == 1:
    signal.setitimer(signal.ITIMER_REAL, moment)
c = Comm(world, "lossless", min_nbytes=0)
for k in range(1000):
    got = np.empty((world.size, (1 << 13) - k))
    c.Alltoall(np.ascontiguousarray(whole[:, k:]), got)
    c.Ibcast(array[k:]).Wait()
    c.Allreduce(MPI.IN_PLACE, array[k:] % 7)
    c.Allgather(array[k:], np.empty((world.size, array.size - k)))
os.write(1, b"not interrupted")
"""


def ended(tmp_path, text: str, *arguments, runs=()) -> subprocess.CompletedProcess:
    """Run a program on two ranks; return the finished process, which must not hang."""
    path = tmp_path / "program.py"
    path.write_text(text)
    rank = ["timeout", "-s", "KILL", PATIENCE, sys.executable, *runs, path, *arguments]
    done = subprocess.run(
        [str(word) for word in (find_mpiexec(), "-n", 2, *rank)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COMPCOLL_THREADS": "2"},
        check=False,
    )
    assert done.returncode not in (LATE, 128 + 9, -9), f"it did not end: {done.stderr[-1000:]}"
    return done


@pytest.mark.parametrize(("pending", "end"), list(zip(PENDING, cycle(ENDS), strict=False)))
@pytest.mark.exhaustive(but=3)
def test_a_program_ends_with_requests_pending(tmp_path, pending, end):
    words, status = ENDS[end]
    done = ended(tmp_path, "\n".join([BEGIN, PENDING[pending], words]))
    assert (done.stdout.count("end"), done.returncode) == (2, status), done.stderr


def test_children_end_while_a_call_is_under_way(tmp_path):
    done = ended(tmp_path, FORKED)
    assert (done.stdout.count("end"), done.returncode) == (2, 0), done.stderr


def test_an_error_ends_all_ranks(tmp_path):
    """Under ``python -m mpi4py``, an error on one rank ends the other, which waits in a call."""
    words = "if c.rank == 1:\n    raise ValueError('the reason')\nfor _ in range(2): c.Bcast(array, 1)"
    done = ended(tmp_path, "\n".join([BEGIN, PENDING["on both ranks"], words]), runs=["-m", "mpi4py"])
    assert done.returncode != 0
    assert "the reason" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "which"),
    list(zip([1e-4, 0.004, 0.008, 0.012, 0.02, 0.03, 0.04], cycle(["one", "both"]), strict=False)),
)
@pytest.mark.exhaustive(but=2)
def test_an_interrupt_at_any_moment_ends_all_ranks(tmp_path, seconds, which):
    """SIGINT on one rank or both ends all, while a communicator is made and in first calls."""
    done = ended(tmp_path, INTERRUPTED, seconds, which, runs=["-m", "mpi4py"])
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert "not interrupted" not in done.stdout


#: Compressed messages around a ring, received in all ways, on communicators that are freed or not.
RING = """
def ring(c, count):
    before, behind = (c.rank - 1) % c.size, (c.rank + 1) % c.size
    for k in range(count):
        receive = c.Irecv(part, before) if k % 3 == 0 else None
        sent = c.Isend(array, behind)
        if k % 3 == 0: receive.Wait()
        elif k % 3 == 1: c.Recv(part, before)
        else: c.Mprobe(before).Recv(part)
        sent.Wait()

ring(c, 45)
ring(c.Split(0), 7)
for _ in range(3):
    d = c.Dup()
    ring(d, 100)
    d.Free()
"""


@pytest.mark.skipif("ch4:ucx" not in MPI.Get_library_version(), reason="needs an MPI that tells")
def test_all_notices_are_received(tmp_path, monkeypatch):
    """Every message is received, or UCX would name it in MPI_Finalize."""
    monkeypatch.setenv("MPIR_CVAR_ODD_EVEN_CLIQUES", "1")  # ranks of a host use the network
    done = ended(tmp_path, BEGIN + RING)
    assert (done.returncode, done.stderr) == (0, "")

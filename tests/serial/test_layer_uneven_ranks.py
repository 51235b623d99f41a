"""If counts differ between ranks, by mistake or in v-calls, no rank hangs or accepts partial data."""

import os
import subprocess
import sys

import pytest

from compcoll.cli import launch

#: The last rank makes each call with another count than the others. Ranks that receive from it, and the last
#: rank if it receives, must get an error; after a Bcast, a rank without an error must hold the root's values.
WRONG_COUNTS = """
import numpy as np
from mpi4py import MPI
import compcoll
from compcoll import errors

world = MPI.COMM_WORLD
rank, size, last = world.rank, world.size, world.size - 1
few, many = 1 << 17, 1 << 18
OPS = ["Bcast", "Alltoall", "Alltoallv", "Allreduce"]  # in all forms, and those that follow when they block
MORE = ["Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter", "Scatterv"]
MORE += ["Reduce", "Reduce_scatter_block"]
ROOTED = ["Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Reduce"]
FORMS = ["blocking", "nonblocking", "persistent"]


def arguments(op, n, root):
    every, one, got = np.full(n * size, rank + 1.0), np.full(n, rank + 1.0), np.zeros(n * size)
    listed = [got, [n] * size]
    return {
        "Bcast": (one, root),
        "Allgather": (one, got),
        "Allgatherv": (one, listed),
        "Alltoall": (every, got),
        "Alltoallv": ([every, [n] * size], listed),
        "Allreduce": (one, got[:n]),
        "Reduce": (one, got[:n], MPI.SUM, root),
        "Reduce_scatter_block": (every, got[:n]),
        "Gather": (one, got, root),
        "Gatherv": (one, listed, root),
        "Scatter": (every, got[:n], root),
        "Scatterv": ([every, [n] * size], got[:n], root),
    }[op]


def call(comm, op, form, args):
    name = {"blocking": op, "nonblocking": f"I{op.lower()}", "persistent": f"{op}_init"}[form]
    request = getattr(comm, name)(*args)
    if form == "persistent":
        request.Start()
    if form != "blocking":
        request.Wait()


def receivers(op, root):
    if op in ("Bcast", "Scatter", "Scatterv"):
        return set(range(last)) if root == last else {last}
    return {root} if op in ("Gather", "Gatherv", "Reduce") else set(range(size))


for op in OPS + MORE:
    for form in FORMS if op in OPS else FORMS[:1]:
        for n in (few, many):
            for root in (0, last) if op in ROOTED else (0,):
                comm = compcoll.Comm(world, "lossless", min_nbytes=4096)
                n_here = few + many - n if rank == last else n
                args = arguments(op, n_here, root)
                failed = ""
                try:
                    call(comm, op, form, args)
                except MPI.Exception as problem:
                    names = {getattr(errors, name): name for name in errors.__all__}
                    names[MPI.ERR_TRUNCATE] = "ERR_TRUNCATE"
                    failed = names[problem.Get_error_class()]  # numbers of classes differ between ranks
                where = f"{op}, {form}, root {root}: {n} and on the last rank {few + many - n}"
                seen = set(world.allgather(failed))
                assert seen <= {"", "MISMATCH", "BROKEN", "ERR_TRUNCATE"}, (where, seen)
                assert seen & {"MISMATCH", "ERR_TRUNCATE"}, (where, seen)
                assert failed or rank not in receivers(op, root), where
                assert failed or op != "Bcast" or (args[0] == root + 1).all(), where
comm = compcoll.Comm(world, "lossless", min_nbytes=4096)
assert comm.allreduce(1) == size
got = np.zeros(few)
comm.Allreduce(np.full(few, rank + 1.0), got)
assert (got == size * (size + 1) // 2).all() and comm.report.codec == "lossless"
print("right", flush=True)
"""

#: One rank alone learns that its communicator, which stays in a node, never compresses.
ONE_LARGE_MESSAGE = """
import numpy as np
from mpi4py import MPI
import compcoll

world = MPI.COMM_WORLD
comm = compcoll.Comm(world)
node = comm.Split(comm.rank // 2, comm.rank)
counts = [1 << 17 if node.rank == peer == 0 else 4 for peer in range(node.size)]
sent, got = np.arange(sum(counts)) + world.rank + 0.5, np.zeros(sum(counts))


def check():
    starts = np.cumsum([0, *counts])
    for peer in range(node.size):
        assert (got[starts[peer] :][:4] == first[peer][node.rank]).all(), (peer, got[starts[peer] :][:4])
    got[:] = 0


starts = np.cumsum([0, *counts])
first = node.allgather([sent[start:][:4] for start in starts[:-1]])
node.Alltoallv([sent, counts], [got, counts])
check()
assert "inside a node" in node.report.reason or node.rank > 0, node.report.reason
for _ in range(3):
    request = node.Alltoallv_init([sent, counts], [got, counts])
    request.Start()
    request.Wait()
    check()
for _ in range(70):
    node.Ialltoallv([sent, counts], [got, counts]).Wait()
    check()
node.Alltoallv([sent, counts], [got, counts])
check()
print("right", flush=True)
"""


def run(program: str, ranks: int, nodes: str) -> None:
    """Run a program on ranks of its own, each of which must print that all is right."""
    environment = {**os.environ, "COMPCOLL_NODES": nodes, "COMPCOLL_TIMEOUT": "20"}
    command = [launch.find_mpiexec(), "-n", str(ranks), sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, ["right"] * ranks), done.stdout + done.stderr


@pytest.mark.parametrize("nodes", ["0,1,2", "0,0,1"])
@pytest.mark.exhaustive(but=1)
def test_counts_that_differ_are_errors_where_they_matter(nodes):
    """Receivers of another count raise, with a class that tells why; no rank hangs, and a new Comm works."""
    run(WRONG_COUNTS, 3, nodes)


def test_a_message_that_is_large_on_one_rank_alone():
    """Ranks draw the same tags although one alone has learned that its communicator never compresses."""
    run(ONE_LARGE_MESSAGE, 4, "0,0,1,1")

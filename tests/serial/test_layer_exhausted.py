"""If memory or threads run out on one rank, each rank has the right result or an error, and all end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compcoll.cli.launch import find_mpiexec

SOURCE = Path(__file__).parents[1] / "preload" / "exhausted.c"

BEGIN = """
import contextlib, ctypes, os, sys
import numpy as np
from mpi4py import MPI

shim = ctypes.CDLL(None)
NOTHING, MEMORY, LARGE, THREADS = range(4)
world = MPI.COMM_WORLD
rank, other = world.rank, 1 - world.rank
n = 1 << 16
mine = np.random.default_rng(rank).integers(0, 1 << 20, n).astype("f8")
theirs = np.random.default_rng(other).integers(0, 1 << 20, n).astype("f8")
root = mine if rank == 0 else theirs

def say(*words):
    os.write(1, (" ".join(map(str, (rank, *words))) + "\\n").encode())

kept = []

def zeros(n):
    '''Memory that is never freed, since a failed call on this rank may still write to it.'''
    kept.append(np.zeros(n))
    return kept[-1]
"""
THREADS = (
    BEGIN
    + """
if rank == 1:
    shim.exhaust(THREADS, int(sys.argv[1]), 1)
import compcoll
comm = compcoll.Comm(world, codec=sys.argv[2], min_nbytes=0)
got = np.zeros(n)
comm.Allreduce(mine, got)
assert (got == mine + theirs).all()
got = root.copy() if rank == 0 else np.zeros(n)
comm.Ibcast(got).Wait()
assert (got == root).all()
MPI.Request.Waitall([comm.Irecv(got, other), comm.Isend(mine, other)])
assert (got == theirs).all()
# A send that its rank does not wait for meanwhile, as MPI promises to progress it.
request = comm.Isend(mine, 0, 1) if rank else None
if rank == 0:
    comm.Recv(got, 1, 1)
    assert (got == theirs).all()
comm.Barrier()
if request:
    request.Wait()
comm.Alltoall(np.concatenate([mine, mine]), both := np.zeros(2 * n))
assert (both == np.concatenate([root, theirs if rank == 0 else mine])).all()
say("right", shim.exhaust(NOTHING, 0, 0))
"""
)
TORCH = (
    BEGIN
    + """
import compcoll.torch
import torch.distributed as dist

if rank == 1:
    shim.exhaust(THREADS, 1, 1)
try:
    dist.init_process_group("compcoll")
except RuntimeError as problem:
    say(problem)
"""
)
MEMORY = (
    BEGIN
    + """
import compcoll

strided = MPI.DOUBLE.Create_vector(n, 1, 2).Commit()

def allreduce(comm):
    comm.Allreduce(mine, got := zeros(n))
    return got, mine + theirs

def ialltoallv(comm):
    halves = [n // 2] * 2
    comm.Ialltoallv([mine, halves], [got := zeros(n), halves]).Wait()
    at = slice(rank * n // 2, (rank + 1) * n // 2)
    return got, np.concatenate([mine[at], theirs[at]] if rank == 0 else [theirs[at], mine[at]])

def message(comm, sender=0):
    if rank == sender:
        comm.Send(mine, other)
        return mine, mine
    comm.Recv(got := zeros(n), sender)
    return got, theirs

def answer(comm):
    return message(comm, sender=1)

def both_ways(comm):
    got = zeros(2 * n)
    kept.append(comm.Irecv([got, 1, strided], other))
    MPI.Request.Waitall([kept[-1], comm.Isend(mine, other)])
    return got[::2], theirs

def persistent(comm):
    got, request = prepared[-1]
    request.Start()
    request.Wait()
    return got, np.concatenate([root, theirs if rank == 0 else mine])

def prepare(comm):  # collective: others wait for a rank that has no memory here, as in MPI's own
    if call is persistent:
        got = zeros(2 * n)
        prepared.append((got, comm.Allgather_init(mine, got)))

prepared = []
call = globals()[sys.argv[1]]
codes = MPI.ERR_NO_MEM, *(getattr(compcoll.errors, name) for name in ("BROKEN", "TIMEOUT", "FRAME"))

def attempt(number, stays):
    world.Barrier()
    comm = compcoll.Comm(world.Dup(), codec="lossless", min_nbytes=0)
    prepare(comm)
    if sys.argv[2] == "known":
        with contextlib.suppress(MPI.Exception):  # on a busy machine it takes too long, and so does the next
            call(comm)
    world.Barrier()
    if rank == 1:
        shim.exhaust(MEMORY, number, stays)
    try:
        got, wanted = call(comm)
        assert (got == wanted).all()
        said = "right"
    except MPI.Exception as problem:
        found = [code for code in codes if code == problem.Get_error_class()]
        said = f"error {problem}" if found else f"WRONG {problem}"
    n_calls = shim.exhaust(NOTHING, 0, 0)
    say(number, stays, said)
    return world.bcast(n_calls, 1)

total = attempt(1 << 30, 0)
say("calls", total)
few, many = int(sys.argv[3]), int(sys.argv[4])
numbers = {*range(1, few + 1), *np.geomspace(few, max(total, few), many, dtype=int).tolist()}
for i, number in enumerate(sorted(numbers)):
    attempt(number, i % 2)
say("end")
world.Barrier()
os._exit(0)
"""
)
STRIDED = (
    BEGIN
    + """
import compcoll

comm = compcoll.Comm(world, codec="lossless", min_nbytes=0)
n = 1 << 20
random = np.random.default_rng(0)
x, y = random.normal(size=n), np.zeros(n)
starts = np.arange(0, n, 1 << 10) + np.arange(n >> 10) % 7
blocks = n >> 10
types = {
    "vector": MPI.DOUBLE.Create_vector(n // 4, 2, 4),
    "indexed": MPI.DOUBLE.Create_indexed_block(700, starts),
    "struct": MPI.Datatype.Create_struct([600] * blocks, starts * 8, [MPI.DOUBLE] * blocks),
    "nested": MPI.DOUBLE.Create_vector(240, 3, 4).Create_resized(0, 1 << 13).Create_contiguous(blocks),
}
send = comm.Send if sys.argv[1] == "compressed" else comm.Rsend  # carried by MPI
for name, type in types.items():
    type.Commit()
    y[:] = 0
    if rank:
        shim.exhaust(LARGE, 3 << 20, 0)
        request = comm.Irecv([y, 1, type], 0)
    world.Barrier()
    if rank == 0:
        send([x, 1, type], 1)
        continue
    request.Wait()
    failed = shim.exhaust(NOTHING, 0, 0)
    sent = type.Pack_size(1, world) // 8
    say(name, "failed", failed > 0, "right", int((y == x).sum()) == sent and int((y != 0).sum()) == sent)
if rank == 0:
    say(comm.report.reason)
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``run(program, *arguments)`` runs a program on two ranks with the shim; returns stdout and stderr."""
    shim = tmp_path_factory.mktemp("shim") / "exhausted.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-fexceptions",
        "-O1",
        SOURCE,
        "-o",
        shim,
        "-ldl",
        "-l:libstdc++.so.6",
    ]
    try:
        built = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    assert built.returncode == 0, built.stderr

    def ranks(program, *arguments, seconds="5", **more):
        environment = {**os.environ, "LD_PRELOAD": str(shim), "COMPCOLL_TIMEOUT": seconds, **more}
        words = [find_mpiexec(), "-n", "2", sys.executable, "-c", program, *map(str, arguments)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        return done.stdout, done.stderr

    return ranks


@pytest.mark.parametrize(("first", "codec"), [(1, "lossless"), (2, "auto"), (3, "lossless"), (5, "auto")])
@pytest.mark.exhaustive(but=2)
def test_threads_run_out(run, first, codec):
    said, errors = run(THREADS, first, codec, COMPCOLL_THREADS="2")
    assert said.count("right") == 2
    assert ("a thread cannot be started" in errors) == (first <= 4), errors


@pytest.mark.exhaustive
def test_threads_of_torch_run_out(run):
    pytest.importorskip("torch")
    said, _ = run(TORCH)
    assert said.count("no threads can be started on rank 1") == 2, said


CALLS = ["allreduce", "ialltoallv", "message", "answer", "both_ways", "persistent"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("known", ["new", "known"])
@pytest.mark.exhaustive(but=2)
def test_memory_runs_out(run, call, known):
    # In each failed attempt the other rank waits these seconds for a message that is never sent.
    said, errors = run(MEMORY, call, known, 10, 12, seconds="0.2")
    assert {"0 end", "1 end"} <= set(said.splitlines()), said[-2000:] + errors
    assert "WRONG" not in said, said[-5000:]
    assert "error" in said


@pytest.mark.parametrize("how", ["compressed", "plain"])
@pytest.mark.exhaustive(but=1)
def test_strided_receive_without_memory_for_its_bytes(run, how):
    said, errors = run(STRIDED, how)
    assert said.count("failed True right True") == 4, said + errors

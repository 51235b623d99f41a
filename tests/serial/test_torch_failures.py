"""What becomes of the others where a rank fails: each case is a program of its own."""

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
import compcoll.torch
from datetime import timedelta

dist.init_process_group("compcoll", timeout=timedelta(seconds={seconds}))
rank, n = dist.get_rank(), {n}
x = torch.ones(n)
dist.all_reduce(x)
start = time.monotonic()
try:
    if rank == 1:
        {what}
    {others}
except Exception as error:
    print(f"rank {{rank}} got {{type(error).__name__}}: {{error}}", flush=True)
    print(f"after {{time.monotonic() - start:.1f}} s", flush=True)
    raise
dist.barrier()
print("nobody noticed", flush=True)
"""


def run(what, n=10, seconds=3, others="dist.all_reduce(x)"):
    """What a program with two ranks says, and how it ends."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PMI", "MPI", "HYD", "RANK", "WORLD", "LOCAL"))
    }
    env.pop("MASTER_PORT", None)
    code = PROGRAM.format(what=what, n=n, seconds=seconds, others=others)
    start = time.monotonic()
    done = subprocess.run(
        ["mpiexec", "-n", "2", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=80,
    )
    return done.stdout + done.stderr, done.returncode, time.monotonic() - start


@pytest.mark.parametrize("n", [10, 100_000])
def test_a_rank_that_raises(n):
    said, code, _ = run("raise ValueError('no more')", n, seconds=60)
    assert code
    assert "rank 0 got DistBackendError: rank 1 has ended with ValueError: no more" in said


TRAIN = """net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(n, 1))
    for i in range(3 - rank):
        start = time.monotonic()
        net(x).sum().backward()
    if rank: sys.exit()"""


@pytest.mark.parametrize(
    ("what", "others", "words"),
    [
        ("sys.exit()", "dist.all_reduce(x)", "has ended, and does not come to call 2"),
        ("sys.exit()", "dist.recv(x, 1)", "has ended"),
        ("dist.destroy_process_group(); sys.exit()", "dist.all_reduce(x)", "has destroyed the group"),
        ("pass", TRAIN, "has ended, and does not come to call"),
    ],
    ids=["exit", "no message", "destroy", "a batch fewer"],
)
def test_a_rank_that_leaves(what, others, words):
    said, code, _ = run(what, 10, 60, others)
    assert code, said
    assert re.search(f"rank 0 got .*DistBackendError: rank 1 {words}", said), said
    assert float(re.search(r"after (.*) s", said)[1]) < 5, said


@pytest.mark.parametrize("n", [10, 100_000])
def test_a_rank_that_dies(n):
    said, code, _ = run("os._exit(3)", n)
    assert code
    assert "nobody noticed" not in said


@pytest.mark.parametrize("n", [10, 100_000])
@pytest.mark.parametrize(
    ("what", "called"),
    [
        ("dist.broadcast(x, 0)", "broadcast 0 torch.float32 {n}"),
        ("dist.all_gather([torch.empty(n)] * 2, x)", "allgather torch.float32 {n} {n}"),
        ("dist.barrier()", "barrier"),
    ],
    ids=["broadcast", "all_gather", "barrier"],
)
def test_a_rank_that_calls_something_else(what, called, n):
    said, code, _ = run(what, n, seconds=60)
    assert code, said
    assert "nobody noticed" not in said, said
    assert all(
        f"rank {rank} got MismatchError: the ranks of the group have called" in said for rank in (0, 1)
    )
    assert f"rank 1 called {called.format(n=n)}, rank 0 called allreduce SUM torch.float32 {n}" in said, said


def test_a_policy_that_one_rank_sets():
    said, code, _ = run("compcoll.torch.set_policy('int8')", seconds=60)
    assert code, said
    assert all(f"rank {rank} got MismatchError" in said for rank in (0, 1)), said
    assert "rank 1 called set_policy, rank 0 called allreduce SUM torch.float32 10" in said, said
    said, code, _ = run("compcoll.torch.set_policy('int8')", others="time.sleep(6)")
    assert code, said
    assert "rank 1 got DistBackendError: set_policy: Timed out after 3 s in call 2 of the" in said, said


def test_a_rank_that_does_not_come():
    said, code, _ = run("time.sleep(30)")
    assert code, said
    assert "rank 0 got DistBackendError: allreduce: Timed out after 3 s in call 2 of the process" in said
    assert "missing: rank 1\n" in said, said


@pytest.mark.parametrize("n", [10, 100_000])
@pytest.mark.parametrize("other", ["torch.ones(n // 2)", "torch.ones(n, dtype=torch.float64)"])
def test_a_rank_with_another_tensor(other, n):
    said, code, _ = run(f"dist.all_reduce({other})", n, seconds=60)
    assert code, said
    assert "got MismatchError" in said, said
    assert "nobody noticed" not in said, said

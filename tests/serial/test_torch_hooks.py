"""Programs of two ranks beside gloo: one that ends is an error on the other, and no exit is an abort."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

START = """
import atexit, os, sys, threading

def show_threads():  # registered first, so called last: threads in C++ code would be an abort from here on
    print("alive:", *(thread.name for thread in threading.enumerate() if thread.name.startswith("compcoll")))

atexit.register(show_threads)
from datetime import timedelta
import torch
import torch.distributed as dist
import compcoll.torch

torch.set_num_threads(1)
dist.init_process_group(sys.argv[3], timeout=timedelta(seconds=60), init_method="file://" + sys.argv[1],
                        rank=int(sys.argv[2]), world_size=2)
net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
"""
DDP = """
net = torch.nn.parallel.DistributedDataParallel(net)
compcoll.torch.compress_ddp(net, "int8")
"""
FSDP2 = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))
for module in (*net, net):
    fully_shard(module, mesh=mesh)
compcoll.torch.compress_fsdp(net, reduce_scatter="int8", all_gather="int8")
"""
HSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
for module in (*net, net):
    fully_shard(module, mesh=mesh["shard"])
compcoll.torch.compress_fsdp(net, all_reduce="int8", replicas=mesh.get_group("replicate"))
"""
STEP = """
net(torch.ones(1, 300)).sum().backward()
"""
CALLBACK = """
import time

def called(future):
    time.sleep(0.5)
    print("called", flush=True)
    return future.value()

time.sleep(dist.get_rank())  # rank 0 is at its end before the sum is there
dist.all_reduce(torch.ones(100_000), async_op=True).get_future().then(called)
"""
FAILS = """
if dist.get_rank():
    os._exit(3)
for attempt in range(2):
    try:
        net(torch.ones(1, 300)).sum().backward()
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0])
        break
"""


def run(program, tmp_path, backend="gloo"):
    """Exit status and output of both ranks."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "store"), str(rank), backend],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *text) for rank, text in zip(ranks, texts, strict=True)]


@pytest.mark.parametrize("wrapped", [DDP, FSDP2, HSDP], ids=["ddp", "fsdp2", "hsdp"])
def test_a_rank_that_ends(tmp_path, wrapped):
    (_, output, errors), (code, _, other) = run(START + wrapped + STEP + FAILS, tmp_path)
    assert code == 3, other
    assert output.startswith("error:"), output + errors


@pytest.mark.parametrize(
    ("backend", "program"),
    [
        ("gloo", DDP + STEP),
        ("gloo", FSDP2 + STEP),
        ("gloo", HSDP + STEP),
        ("compcoll", DDP + STEP + CALLBACK),
    ],
    ids=["ddp", "fsdp2", "hsdp", "backend"],
)
def test_exits_without_destroying_the_group(tmp_path, backend, program):
    """No thread of ours is left when Python ends, and callbacks have been called."""
    for attempt in range(3 if backend == "compcoll" else 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        for code, output, errors in run(START + program, folder, backend):
            if backend == "compcoll":
                assert (code, output.count("called")) == (0, 1), output + errors
            else:  # whose own threads may abort a process
                assert output.splitlines()[-1] == "alive:", output + errors

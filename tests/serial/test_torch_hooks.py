"""Two ranks beside gloo: a rank that ends is an error on the other, and no exit aborts."""

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
"""
#: Models under DDP, FSDP2 and HSDP, all of them after a step.
NETS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def made():
    return torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))

ddp, fsdp, hsdp = nets = [made() for _ in range(3)]
nets[0] = torch.nn.parallel.DistributedDataParallel(ddp)
compcoll.torch.compress_ddp(nets[0], "int8")
meshes = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
for net, mesh in ((fsdp, meshes[0]), (hsdp, meshes[1]["shard"])):
    for module in (*net, net):
        fully_shard(module, mesh=mesh)
compcoll.torch.compress_fsdp(fsdp, reduce_scatter="int8", all_gather="int8")
compcoll.torch.compress_fsdp(hsdp, all_reduce="int8", replicas=meshes[1].get_group("replicate"))

def step(net):
    net(torch.ones(1, 300)).sum().backward()

for net in nets:
    step(net)
"""
CALLBACK = """
import time

def called(future):
    time.sleep(0.5)
    print("called", flush=True)
    return future.value()

net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
net(torch.ones(1, 300)).sum().backward()
time.sleep(dist.get_rank())  # rank 0 is at its end before the sum is there
dist.all_reduce(torch.ones(100_000), async_op=True).get_future().then(called)
"""
#: Rank 1 exits without destroying the group; rank 0 does so after its errors.
ENDS = """
for net in nets if dist.get_rank() == 0 else ():
    for attempt in range(2):
        try:
            step(net)
        except RuntimeError as error:
            print("error:", str(error).splitlines()[0])
            break
"""


def run(program, tmp_path, backend="gloo"):
    """Run a program on two ranks; return their exit statuses and outputs."""
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


def test_a_rank_that_ends(tmp_path):
    """A rank's end raises on the other one for every model; no thread of compcoll is left, gloo's may be."""
    found = run(START + NETS + ENDS, tmp_path)
    for _, output, errors in found:
        assert output.splitlines()[-1] == "alive:", output + errors
    (_, output, errors), _ = found
    assert output.count("error:") == 3, output + errors


def test_a_report_without_the_backend(tmp_path):
    """Reports have the exchanges of all hooks, of all ranks together if they are asked for."""
    tells = "print(compcoll.torch.report(together=True))\ndist.destroy_process_group()"
    for code, output, errors in run(START + NETS + tells, tmp_path):
        assert code == 0, output + errors
        assert "2 ranks together" in output, output
        lines = [line for line in output.splitlines() if " int8 " in line and "% of the norm" in line]
        for name in (
            "ErrorFeedback gradients",
            "ErrorFeedback averages",
            "CompressedAllGather parameters",
            "CompressedReduceScatter gradients",
            "CompressedAllReduce averages",
        ):
            assert any(name in line for line in lines), output


def test_an_exit_of_the_backend_waits_for_callbacks(tmp_path):
    for code, output, errors in run(START + CALLBACK, tmp_path, "compcoll"):
        assert (code, output.count("called")) == (0, 1), output + errors

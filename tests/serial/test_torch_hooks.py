"""A rank that ends is an error on the others that wait for its gradients, not a hang."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
import compcoll.torch

dist.init_process_group("gloo", timeout=timedelta(seconds=60), init_method="file://" + sys.argv[1],
                        rank=int(sys.argv[2]), world_size=2)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
net.register_comm_hook(compcoll.torch.ErrorFeedback("int8"), compcoll.torch.compressed_hook)
net(torch.ones(1, 300)).sum().backward()
if dist.get_rank():
    os._exit(3)
for attempt in range(2):
    try:
        net(torch.ones(1, 300)).sum().backward()
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0])
        break
"""


def test_a_rank_that_ends(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        (output, errors), _ = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1].returncode == 3, errors
    assert output.startswith("error:"), output + errors

"""Compression beside another backend, here gloo: DDP, FSDP2 or HSDP, each with one line.

torchrun --standalone --nproc-per-node 4 hooks.py [ddp|fsdp2|hsdp] [CODEC]
COMPCOLL_NODES=0,0,1,1 torchrun ...                        # on one machine, as if on two nodes
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import compcoll.torch


def ddp(model, codec):
    model = DistributedDataParallel(model)
    return model, [compcoll.torch.compress_ddp(model, codec, exact=["1.*"])]  # the norm is exact


def fsdp2(model, codec):
    fully_shard(model)
    return model, compcoll.torch.compress_fsdp(model, reduce_scatter=codec)[""]


def hsdp(model, codec):
    """Shard inside a node and replicate between nodes, where gradients are compressed."""
    shape = 2, dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    replicas = mesh.get_group("replicate")
    return model, compcoll.torch.compress_fsdp(model, all_reduce=codec, replicas=replicas)[""]


def main(how="ddp", codec="bfp:bits=8", steps=20):
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # all replicas begin alike
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 64))
    model, states = {"ddp": ddp, "fsdp2": fsdp2, "hsdp": hsdp}[how](model, codec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    truth = torch.randn(64, 64) / 8
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(256, 64)
        loss = torch.nn.functional.mse_loss(model(x), x @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 in (0, 4):
            print(f"step {step}: loss {loss.item():.4f}")
    for state in states if dist.get_rank() == 0 else ():
        ratio = state.raw_nbytes / state.wire_nbytes
        print(f"levels: {state.levels}; sent {state.wire_nbytes} bytes, {ratio:.1f} times fewer than raw")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""FSDP2 with policies: gradients lossy, parameters exact, by the name of the mesh's dimension.

mpiexec -n 2 python fsdp2.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import compcoll.torch

POLICY = {
    "dp": [
        {"phase": "gradients", "codec": "bfp:bits=6"},  # reduce_scatter, all_reduce
        {"phase": "parameters", "codec": "lossless"},  # all_gather, broadcast
    ],
}


def main(steps=20):
    dist.init_process_group("compcoll")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    compcoll.torch.set_policy(POLICY, strict=True)  # an unknown name of a group raises
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
    report = compcoll.torch.report(together=True)
    if dist.get_rank() == 0:
        print(report)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

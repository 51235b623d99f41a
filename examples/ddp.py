"""DistributedDataParallel over the backend compcoll: gradients at 6.3 bits a value, all else exact.

torchrun --standalone --nproc-per-node 2 ddp.py [CODEC]    # bfp:bits=6 by default; lossless, int8, ...
mpiexec -n 2 python ddp.py [CODEC]
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import compcoll.torch


def main(codec="bfp:bits=6", steps=20):
    dist.init_process_group("compcoll")  # under torchrun or mpiexec
    # Rules by operation: the broadcasts of initial parameters and of buffers stay lossless.
    compcoll.torch.set_policy({"*": [{"op": "all_reduce", "codec": codec}, {"codec": "lossless"}]})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    truth = torch.randn(64, 64) / 8
    torch.manual_seed(1 + dist.get_rank())  # each rank has its own data
    for step in range(steps):
        x = torch.randn(256, 64)
        loss = torch.nn.functional.mse_loss(model(x), x @ truth)
        optimizer.zero_grad()
        loss.backward()  # buckets of gradients are reduced meanwhile
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 in (0, 4):
            print(f"step {step}: loss {loss.item():.4f}")

    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights)
    same = all(torch.equal(weights, other) for other in everyone)
    report = compcoll.torch.report(together=True)
    if dist.get_rank() == 0:
        print(f"replicas identical: {same}")
        print(report)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""DeepSpeed over gloo, without ZeRO: one line after the backward pass averages the gradients, compressed.

torchrun --standalone --nproc-per-node 2 with_deepspeed.py [CODEC]        # none: DeepSpeed's own average
"""

import sys

import deepspeed
import torch
import torch.distributed as dist

import compcoll.torch


def main(codec="bfp:bits=8"):
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiling it would take a minute
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))
    x = torch.randn(1024, 64)
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        training_data=torch.utils.data.TensorDataset(x, x.mean(1, keepdim=True)),
        config={"train_micro_batch_size_per_gpu": 32, "zero_allow_untested_optimizer": True},
    )
    if codec != "none":
        engine.enable_backward_allreduce = False
        average = compcoll.torch.CompressedAllReduce(codec)
    for _ in range(2):
        for number, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            if codec != "none":
                average([parameter.grad for parameter in engine.module.parameters()])
            engine.step()
            if number % 8 == 7 and dist.get_rank() == 0:
                print(f"loss {loss.item():.5f}")
    if codec != "none" and dist.get_rank() == 0:
        print(f"{average.raw_nbytes / average.wire_nbytes:.1f} times fewer bytes than raw")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

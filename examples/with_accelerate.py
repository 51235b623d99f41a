"""Accelerate over gloo: one line compresses the gradients of a model that `prepare` returned.

torchrun --standalone --nproc-per-node 2 with_accelerate.py [CODEC]        # none: gloo alone
"""

import sys

import torch
from accelerate import Accelerator

import compcoll.torch


def main(codec="bfp:bits=8"):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(1024, 64)
    data = torch.utils.data.TensorDataset(x, x.mean(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if codec != "none":
        state = compcoll.torch.compress_ddp(model, codec, min_numel=1000)  # biases are exact
        accelerator.register_for_checkpointing(state)  # rank 0's errors and the number of steps
    for _ in range(2):
        for number, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if number % 8 == 7:
                accelerator.print(f"loss {loss.item():.5f}")
    if codec != "none":
        accelerator.print(f"{state.raw_nbytes / state.wire_nbytes:.1f} times fewer bytes than raw")
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""PyTorch Lightning over gloo on two ranks: a callback compresses gradients.

python with_lightning.py [CODEC]        # none: gloo alone
"""

import sys

import torch
from pytorch_lightning import LightningModule, Trainer

from compcoll.torch.lightning import CompressGradients


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))

    def training_step(self, batch, number):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        if self.trainer.is_global_zero and number % 8 == 7:
            print(f"loss {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(codec="bfp:bits=8"):
    callbacks = [] if codec == "none" else [CompressGradients(codec, min_numel=1000)]  # biases are exact
    model = Regression()
    x = torch.randn(1024, 64)
    data = torch.utils.data.TensorDataset(x, x.mean(1, keepdim=True))
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32))
    for state in callbacks[0].compressions if callbacks and trainer.is_global_zero else ():
        print(f"{state.raw_nbytes / state.wire_nbytes:.1f} times fewer bytes than raw")


if __name__ == "__main__":
    main(*sys.argv[1:])

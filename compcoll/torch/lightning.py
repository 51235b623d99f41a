"""Compression of gradients in PyTorch Lightning, beside NCCL or gloo.

Trainer(strategy="ddp", callbacks=[compcoll.torch.lightning.CompressGradients("bfp:bits=8")])
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from compcoll.torch.compression import Compression
from compcoll.torch.fsdp import compress_fsdp
from compcoll.torch.hooks import compress_ddp

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

__all__ = ["CompressGradients"]


class CompressGradients(Callback):
    """Callback that compresses gradients of a model under `DDPStrategy` or `ModelParallelStrategy` (FSDP2).

    A checkpoint holds only the number of steps: rank 0 writes it, and errors differ from rank to rank.

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
        See `ErrorFeedback`.
    **options
        Those of `compress_ddp` or of `compress_fsdp`.

    Attributes
    ----------
    compressions : list of Compression
        With DDP one, with FSDP2 one or more of each module; empty before training starts.

    Raises
    ------
    ValueError
        When training starts, if the model is of neither kind, and as by `compress_ddp` and `compress_fsdp`.
    """

    def __init__(self, codec: Any, **options: Any):
        self.codec, self.options, self._step = codec, options, 0
        self.compressions: list[Compression] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Register DDP's hook, or set the objects of FSDP2's modules."""
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            self.compressions = [compress_ddp(model, self.codec, **self.options)]
        else:
            found = compress_fsdp(model, self.codec, **self.options)
            self.compressions = list(chain.from_iterable(found.values()))
        for compression in self.compressions:
            compression.step = self._step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.compressions[0].step if self.compressions else self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._step = int(state_dict["step"])

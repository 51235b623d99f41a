"""A GPT over bytes (Radford et al., 2019): pre-normalised blocks, learnt positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["GPT", "Block", "Shape", "cross_entropy"]

BYTES = 256


@dataclass(frozen=True)
class Shape:
    """Layers, width, heads, and bytes of context."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    length: int = 128

    @property
    def parameters(self) -> int:
        """Number of parameters, without norms and biases."""
        return 12 * self.layers * self.width**2 + (2 * BYTES + self.length) * self.width


class Attention(nn.Module):
    """Causal attention on the heads that its projections have: under tensor parallelism, a part of them."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.head = shape.width // shape.heads
        self.q, self.k, self.v, self.out = (nn.Linear(shape.width, shape.width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two-layer perceptron, four times as wide inside."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then ``mlp``."""

    def __init__(self, shape: Shape, mlp: Callable[[int], nn.Module] = MLP):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention, self.mlp = Attention(shape), mlp(shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Map bytes, int64 (batch, length), to logits of the next bytes; its parts can be pipeline stages."""

    def __init__(self, shape: Shape, mlp: Callable[[int], nn.Module] = MLP):
        super().__init__()
        self.bytes: nn.Module | None = nn.Embedding(BYTES, shape.width)
        self.places: nn.Module | None = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape, mlp) for _ in range(shape.layers))
        self.norm: nn.Module | None = nn.LayerNorm(shape.width)
        self.head: nn.Module | None = nn.Linear(shape.width, BYTES, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def keep(self, stage: int, stages: int) -> GPT:
        """Drop the parts that belong to other stages of a pipeline."""
        n = len(self.blocks)
        self.blocks = self.blocks[n * stage // stages : n * (stage + 1) // stages]
        if stage > 0:
            self.bytes = self.places = None
        if stage < stages - 1:
            self.norm = self.head = None
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bytes is not None and self.places is not None:
            x = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy in nats per byte."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

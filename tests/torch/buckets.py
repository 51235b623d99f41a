"""Buckets of DDP, values of each rank, and their exact mean, for the tests of hooks."""

from functools import cache

import torch
import torch.distributed as dist

from compcoll.torch import compressed_hook


@cache
def parameter(index, n):
    return torch.nn.Parameter(torch.zeros(n))


class Bucket:
    """A bucket of DDP with the gradient of one parameter."""

    def __init__(self, values, index=0):
        self.values, self.number = values, index

    def buffer(self):
        return self.values

    def parameters(self):
        return [parameter(self.number, self.values.numel())]

    def index(self):
        return self.number


def averaged(state, values, index=0):
    return compressed_hook(state, Bucket(values.clone(), index)).wait()


def of_rank(rank, n, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(100 + rank)).to(dtype)


def mean_by_gloo(gloo, values):
    wide = values.double()
    dist.all_reduce(wide, group=gloo)
    return wide / dist.get_world_size()


def is_same(gloo, values):
    """True if all ranks have the same bits."""
    first = values.contiguous().clone().view(torch.uint8)
    if first.numel():
        dist.broadcast(first, 0, group=gloo)
    return torch.equal(first, values.contiguous().view(torch.uint8))


class Scaled(torch.nn.Module):
    """Parameters by name, each with the gradient that is given, where a pass has it."""

    def __init__(self, gradients):
        super().__init__()
        self.gradients = gradients
        for name, values in gradients.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros_like(values)))

    def forward(self, *names):
        return sum((getattr(self, name) * self.gradients[name]).sum() for name in names)

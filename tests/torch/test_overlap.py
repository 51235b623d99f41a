"""Buckets of DDP are reduced during the backward pass: the order of events, without a clock."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

#: Seconds to wait for an event before the test counts it as missing.
PATIENCE = 30


@pytest.fixture(params=["world", "ours"])
def group(request):
    return request.getfixturevalue(request.param)


class Gate(torch.autograd.Function):
    """Identity whose backward pass waits until it is released."""

    @staticmethod
    def forward(ctx, x, wait):
        ctx.wait = wait
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.wait is not None:
            ctx.wait()
        return grad, None


class Gated(nn.Module):
    """Two layers with a gate between them: the gradients of the second exist before the gate opens."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.wait = None

    def forward(self, x):
        return self.second(Gate.apply(self.first(x), self.wait))


def whole_average(group, width):
    """Averaged gradient of the second layer for the loss below: each row is the layer's averaged input."""
    torch.manual_seed(0)
    first = nn.Linear(width, width)
    rows = [first(torch.full((1, width), 1.0 + rank))[0] for rank in range(dist.get_world_size(group))]
    return torch.stack(rows).mean(0).detach().expand(width, width)


@pytest.mark.parametrize("width", [40, 300], ids=["small", "large"])
def test_a_bucket_comes_back_during_the_backward_pass(group, agree, width):
    """A bucket's average arrives while this thread makes no call of the process group."""
    want, seen = whole_average(group, width), []

    def wait():
        until = time.monotonic() + PATIENCE
        while not (arrived := torch.allclose(net.module.second.weight.grad, want, rtol=1e-5, atol=1e-6)):
            if time.monotonic() > until:
                break
            time.sleep(1e-3)
        seen.append((arrived, net.module.first.weight.grad is None))

    net = DDP(Gated(width), process_group=group, bucket_cap_mb=1e-3, gradient_as_bucket_view=True)
    for net.module.wait in (None, wait, wait):  # DDP begins with one bucket and divides it after a pass
        net.zero_grad()
        net(torch.full((1, width), 1.0 + dist.get_rank(group))).sum().backward()
    assert agree(seen == [(True, True)] * 2), seen


@pytest.mark.parametrize("width", [40, 300], ids=["small", "large"])
def test_a_hook_hears_of_a_bucket_during_the_backward_pass(group, agree, width):
    ended, seen = threading.Event(), []

    def hook(_, bucket):
        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()

        def tell(done):
            ended.set()
            return done.value()[0]

        return future.then(tell)

    def wait():
        seen.append(ended.wait(PATIENCE))

    net = DDP(Gated(width), process_group=group, bucket_cap_mb=1e-3)
    net.register_comm_hook(None, hook)
    for net.module.wait in (None, wait, wait):
        ended.clear()
        net.zero_grad()
        net(torch.ones(1, width)).sum().backward()
    assert agree(seen == [True] * 2), seen

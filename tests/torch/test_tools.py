"""The backend under torch's tools: `torch.compile`."""

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

pytestmark = pytest.mark.filterwarnings("default")


def broadcast(x, rank, size):
    dist.broadcast(x, 0)
    return x


def barrier(x, rank, size):
    dist.barrier()
    return x


def all_reduce(x, rank, size):
    dist.all_reduce(x)
    return x


def all_reduce_later(x, rank, size):
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x


def all_reduce_future(x, rank, size):
    return dist.all_reduce(x, async_op=True).get_future().wait()[0]


def ring(x, rank, size):
    into = torch.zeros_like(x)
    sent, received = dist.isend(x, (rank + 1) % size), dist.irecv(into, (rank - 1) % size)
    sent.wait()
    received.wait()
    return into


def send_and_receive(x, rank, size):
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
    return x


def batch(x, rank, size):
    into = torch.zeros_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, into, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return into


@pytest.mark.parametrize(
    "communicate",
    [broadcast, barrier, all_reduce, all_reduce_later, all_reduce_future, ring, send_and_receive, batch],
    ids=lambda function: function.__name__,
)
def test_inside_a_compiled_function(world, agree, communicate):
    rank, size = dist.get_rank(), dist.get_world_size()

    def function(x):
        return communicate(x * 2, rank, size) + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    x = torch.arange(5.0) + rank
    expected = function(x)
    for _ in range(2):
        assert agree(torch.equal(compiled(x), expected))


def test_a_compiled_model(world, agree):
    def trained(compiles):
        torch.manual_seed(0)
        net = DDP(nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Linear(20, 1)))
        step = torch.compile(net, backend="eager") if compiles else net
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for i in range(3):
            optimizer.zero_grad()
            x = torch.rand(8, 20, generator=torch.Generator().manual_seed(10 * i + dist.get_rank()))
            step(x).square().sum().backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    torch._dynamo.reset()
    assert agree(torch.allclose(trained(True), trained(False)))

"""The backend under torch's tools: `torch.compile`, the profiler, modes that see operations."""

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from test_conformance import mesh_of
from torch._subclasses import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel as DDP

from compcoll.torch import compress_ddp, compress_fsdp
from compcoll.torch.operations import Operations

pytestmark = pytest.mark.filterwarnings("default")


def collectives(x, rank, size):
    dist.broadcast(x, 0)
    dist.barrier()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return dist.all_reduce(x, async_op=True).get_future().wait()[0]


def ring(x, rank, size):
    into = torch.zeros_like(x)
    sent, received = dist.isend(x, (rank + 1) % size), dist.irecv(into, (rank - 1) % size)
    sent.wait()
    received.wait()
    return into


def batch(x, rank, size):
    into = torch.zeros_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, into, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return into


def messages(x, rank, size):
    return batch(ring(x, rank, size), rank, size)


@pytest.mark.parametrize("communicate", [collectives, messages], ids=lambda function: function.__name__)
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


def compressed(way, gloo):
    """Small model under DDP or FSDP2 over gloo, and the objects that compress its communication."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 200), nn.GELU(), nn.Linear(200, 20))
    if way == "ddp":
        net = DDP(net, process_group=gloo)
        return net, [compress_ddp(net, "bfp:bits=8")]
    for module in (net[0], net[2], net):
        fully_shard(module, mesh=mesh_of(gloo))
    found = compress_fsdp(net, "bfp:bits=8", "bfp:bits=16")
    return net, [*found["0"], *found["2"]]


@pytest.mark.parametrize(("way", "whole"), [("ddp", False), ("ddp", True), ("fsdp2", False)])
def test_compression_beside_gloo_in_a_compiled_step(gloo, agree, way, whole):
    """Losses are those without a compiler; ``whole`` compiles the backward pass and the optimizer as well."""

    def losses(compiles):
        net, states = compressed(way, gloo)
        forward = torch.compile(net, backend="aot_eager") if compiles and not whole else net
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = (forward(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = torch.compile(step, backend="aot_eager") if compiles and whole else step
        found = []
        for i in range(3):
            x = torch.rand(8, 20, generator=torch.Generator().manual_seed(10 * i + dist.get_rank()))
            found.append(run(x).item())
        return found, [state.wire_nbytes for state in states]

    torch._dynamo.reset()
    (want, sent), (got, sent_compiled) = losses(False), losses(True)
    assert agree(got == pytest.approx(want, rel=1e-4) and len(set(got)) == 3)
    assert agree(sent == sent_compiled and min(sent) > 0)


@pytest.mark.parametrize(
    ("way", "names"),
    [("ddp", {"compressed_hook"}), ("fsdp2", {"compressed_all_gather", "compressed_reduce_scatter"})],
)
def test_entries_of_the_profiler_beside_gloo(gloo, agree, way, names):
    net, _ = compressed(way, gloo)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net(torch.ones(8, 20)).sum().backward()
    seen = {event.key for event in profile.key_averages()}
    assert agree({f"compcoll:{name}" for name in names} <= seen), seen


def every_operation(group, size, rank):
    """Call each operation once."""
    x, rows = torch.ones(size), [torch.ones(size) for _ in range(size)]
    gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    dist.all_reduce(x, group=group)
    dist.all_reduce_coalesced([x, x.clone()], group=group)
    dist.broadcast(x, 0, group=group)
    dist.reduce(x, 0, group=group)
    dist.all_gather(rows, x, group=group)
    gather_single(torch.ones(size * size), x, group=group)
    dist.reduce_scatter(x, rows, group=group)
    scatter_single(torch.ones(1), x, group=group)
    dist.gather(x, rows if rank == 0 else None, 0, group=group)
    dist.scatter(x, rows if rank == 0 else None, 0, group=group)
    dist.all_to_all_single(x.clone(), x, group=group)
    dist.barrier(group)


#: Names of the profiler's entries for these calls and for messages.
ENTRIES = """
    allreduce broadcast reduce allgather all_gather_single gather scatter
    reduce_scatter reduce_scatter_single all_to_all_single barrier send recv
"""


def test_a_mode_sees_every_operation(ours, gloo, agree):
    def counts(group):
        with CommDebugMode() as mode:
            every_operation(group, dist.get_world_size(), dist.get_rank())
        return dict(mode.get_comm_counts())

    mine = counts(ours)
    assert agree(mine == counts(gloo) and sum(mine.values()) == 11)  # it does not count barriers


def test_fake_tensors(ours, agree):
    """Operations on fake tensors send nothing: rank 0 calls them alone."""
    if dist.get_rank() == 0:
        with FakeTensorMode():
            work = dist.all_reduce(x := torch.ones(1000, 1000), group=ours, async_op=True)
            work.wait()
            dist.broadcast(x, 0, group=ours)
            dist.all_gather([torch.ones(3) for _ in range(dist.get_world_size())], torch.ones(3), group=ours)
            dist.send(x, 1, group=ours)
        assert x.shape == (1000, 1000)
    dist.all_reduce(x := torch.ones(10), group=ours)
    assert agree(bool((x == dist.get_world_size()).all()))


def test_entries_of_the_profiler(ours, agree):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        every_operation(ours, dist.get_world_size(), dist.get_rank())
        ring(torch.ones(3), dist.get_rank(), dist.get_world_size())
    seen = {event.key for event in profile.key_averages()}
    assert agree({f"compcoll:{name}" for name in ENTRIES.split()} <= seen), seen


def test_kinds_and_numbers_of_works(ours, gloo, agree):
    def kinds(group):
        x = torch.ones(4)
        works = [
            dist.all_reduce(x, group=group, async_op=True),
            dist.broadcast(x, 0, group=group, async_op=True),
            dist.barrier(group, async_op=True),
        ]
        for work in works:
            work.wait()
        return [work._get_op_type() for work in works]

    before, found = ours._get_sequence_number_for_group(), kinds(ours)
    # From 2.14 on, torch returns an object that forwards `wait` and `get_future` alone.
    assert agree(found == kinds(gloo) or not isinstance(ours, Operations))
    assert agree(ours._get_sequence_number_for_group() == before + 3)

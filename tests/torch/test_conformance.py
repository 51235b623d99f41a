"""Parts of torch that use a backend have gloo's losses, to rounding, unless a lossy codec is named.

FSDP and DTensor are in tests/torch_bases, other ways of DDP in torch's own tests (distributed_suite.py).
"""

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import compcoll.torch

STEPS = 4
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(params=["world", "ours"])
def group(request):
    return request.getfixturevalue(request.param)


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8))


def batch(step, rank=None):
    given = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    return torch.randn(12, 24, generator=given), torch.randn(12, 8, generator=given)


def train(net, optimizer=None, steps=STEPS, closure=None):
    """Losses of some steps on this rank's batches."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def close(got, want):
    return torch.allclose(got, want, rtol=1e-5, atol=1e-7)


def mesh_of(group, name="dp"):
    """Mesh of all ranks in one dimension, over the backend of a group."""
    backend = dist.get_backend(group)
    override = {name: backend if backend == "gloo" else ("compcoll", compcoll.torch.Options(min_nbytes=0))}
    return init_device_mesh(
        "cpu", (dist.get_world_size(),), mesh_dim_names=(name,), backend_override=override
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 0.001}],
    ids=str,
)
def test_ddp(group, gloo, agree, options):
    got = train(DDP(model(), process_group=group, **options))
    assert agree(close(got, train(DDP(model(), process_group=gloo, **options))))


def test_ddp_hooks(group, gloo, agree):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def run(group, hook):
        net = DDP(model(), process_group=group)
        if hook == "power":
            state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
            net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            net.register_comm_hook(group, hook)
        return train(net)

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, "power"):
        assert agree(torch.allclose(run(group, hook), run(gloo, hook), rtol=1e-3)), hook


def test_zero_redundancy_optimizer(group, gloo, agree):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(group):
        net = DDP(model(), process_group=group)
        return train(
            net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
        )

    assert agree(close(run(group), run(gloo)))


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline(group, gloo, agree, name):
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()

    def run(group):
        torch.manual_seed(1)
        layers = [nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(size)]
        stage = pipelining.PipelineStage(layers[rank], rank, size, torch.device("cpu"), group=group)
        schedule = getattr(pipelining, name)(stage, 4, loss_fn=nn.functional.mse_loss)
        x = torch.randn(16, 24, generator=torch.Generator().manual_seed(3))
        losses: list = []
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        grads = [p.grad.reshape(-1) for p in layers[rank].parameters()]
        return torch.cat([torch.stack(losses).detach() if losses else torch.zeros(0), *grads])

    assert agree(close(run(group), run(gloo)))


def test_checkpoint(world, agree, tmp_path_factory):
    """Checkpoints written synchronously and asynchronously load to equal parameters."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    def sharded(seed):
        return fully_shard(model(seed), mesh=mesh_of(world))

    where = [str(tmp_path_factory.mktemp("dcp"))]
    dist.broadcast_object_list(where, 0)
    net = sharded(1)
    want = [p.full_tensor().clone() for p in net.parameters()]
    dcp.save(get_model_state_dict(net), checkpoint_id=where[0])
    dcp.async_save(get_model_state_dict(net), checkpoint_id=f"{where[0]}/later").result(60)
    dist.barrier()
    for path in (where[0], f"{where[0]}/later"):
        other = sharded(2)
        state = get_model_state_dict(other)
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(other, state)
        got = [p.full_tensor() for p in other.parameters()]
        assert agree(all(map(torch.equal, got, want)))


def test_functional_and_compiled(group, gloo, agree):
    import torch.distributed._functional_collectives as funcol

    def step(x, group):
        y = funcol.all_reduce(x * 2, "sum", group)
        z = funcol.all_gather_tensor(y, 0, group)
        return funcol.reduce_scatter_tensor(z, "avg" if group is not gloo else "sum", 0, group) + y

    x = torch.arange(6.0) + dist.get_rank()
    size = dist.get_world_size()
    want = torch.arange(6.0) * 2 * size + size * (size - 1)
    eager = step(x, group)
    assert agree(torch.equal(eager, 2 * want))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(lambda x: step(x, group), backend="aot_eager")(x)
    assert agree(torch.equal(compiled, eager))


def test_mixture_of_experts(group, gloo, agree):
    """all_to_all_single with uneven splits, and its gradient, give gloo's values."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = [rank + j + 1 for j in range(size)]

    def run(group):
        x = torch.arange(float(sum(sizes)) * 3).reshape(-1, 3).requires_grad_()
        out = all_to_all_single_autograd(x, sizes, sizes, group)
        (out * out).sum().backward()
        return torch.cat([out.detach().reshape(-1), x.grad.reshape(-1)])

    assert agree(torch.equal(run(group), run(gloo)))

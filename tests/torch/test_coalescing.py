"""Several operations as one Work, by coalescing managers and coalesced operations, against gloo."""

import pytest
import torch
import torch.distributed as dist

ALL_GATHER_SINGLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER_SINGLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
SIZES = [3, 20_011, 1, 700]
CPU = torch.device("cpu")


@pytest.fixture(params=["world", "ours"])
def group(request):
    return request.getfixturevalue(request.param)


def mine(n, seed=0):
    return torch.arange(n, dtype=torch.float32) % 17 + dist.get_rank() + seed


def all_reduce(n, group):
    tensor = mine(n)
    dist.all_reduce(tensor, group=group)
    return tensor


def all_gather(n, group):
    out = torch.zeros(n * dist.get_world_size())
    ALL_GATHER_SINGLE(out, mine(n), group=group)
    return out


def reduce_scatter(n, group):
    out = torch.zeros(n)
    REDUCE_SCATTER_SINGLE(out, mine(n * dist.get_world_size()), group=group)
    return out


@pytest.mark.parametrize("device", [None, CPU], ids=str)
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("call", [all_reduce, all_gather, reduce_scatter])
def test_a_manager_is_one_work(group, gloo, agree, call, later, device):
    with dist._coalescing_manager(group, device, async_ops=later) as manager:
        got = [call(n, group) for n in SIZES]
    if later:
        manager.wait()
    assert agree(all(torch.equal(a, call(n, gloo)) for a, n in zip(got, SIZES, strict=True)))


def test_a_manager_of_different_operations(group, gloo, agree):
    size = dist.get_world_size()

    def run(group, later):
        a, b, c, d = (
            mine(9),
            mine(20_000 * size),
            torch.zeros(20_000 * size),
            [torch.zeros(5) for _ in range(size)],
        )
        pending = [
            dist.broadcast(a, 1, group=group, async_op=later),
            dist.all_to_all_single(c, b, group=group, async_op=later),
            dist.all_gather(d, mine(5), group=group, async_op=later),
            dist.barrier(group=group, async_op=later),
        ]
        return [a, c, *d], pending

    with dist._coalescing_manager(group, CPU, async_ops=True) as manager:
        got, pending = run(group, True)
    manager.wait()
    assert agree(all(work.wait() for work in pending))
    want, _ = run(gloo, False)
    assert agree(all(torch.equal(a, b) for a, b in zip(got, want, strict=True)))


def test_operations_that_need_each_other(group, gloo, agree):
    size = dist.get_world_size()

    def run(group, later):
        a, b = mine(20_000), torch.zeros(20_000 * size)
        dist.broadcast(a, 0, group=group, async_op=later)
        dist.reduce(a, 0, group=group, async_op=later)
        dist.broadcast(a[100:], 0, group=group, async_op=later)
        dist.all_gather(list(b.chunk(size)), a + 0 if not later else a, group=group, async_op=later)
        return b.view(size, -1)[:, 100:]

    with dist._coalescing_manager(group, CPU, async_ops=True) as manager:
        got = run(group, True)
    manager.wait()
    assert agree(torch.equal(got, run(gloo, False)))


@pytest.mark.parametrize("n", [4, 5_000])
def test_more_tensors_than_tags(group, agree, n):
    """More than 64 coalesced calls, after which tags are reused, give right sums."""
    tensors = [mine(n, seed) for seed in range(200)]
    size = dist.get_world_size()
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    base = torch.arange(n, dtype=torch.float32) % 17
    want = [size * (base + seed) + size * (size - 1) / 2 for seed in range(200)]
    assert agree(all(torch.equal(a, b) for a, b in zip(tensors, want, strict=True)))


@pytest.mark.parametrize("n", [6, 30_000])
def test_messages(group, agree, n):
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.zeros(n)
    with dist._coalescing_manager(group, CPU, async_ops=True) as manager:
        dist.isend(mine(n), (rank + 1) % size, group=group)
        dist.irecv(out, (rank - 1) % size, group=group)
    manager.wait()
    assert agree(torch.equal(out, torch.arange(n) % 17 + float((rank - 1) % size)))


def test_messages_beside_collectives(group, agree):
    rank, size = dist.get_rank(), dist.get_world_size()
    out, total = torch.zeros(30_000), mine(30_000)
    with dist._coalescing_manager(group, CPU, async_ops=True) as manager:
        dist.broadcast(total, 0, group=group, async_op=True)
        dist.irecv(out, (rank - 1) % size, group=group)
        dist.isend(mine(30_000), (rank + 1) % size, group=group)
    manager.wait()
    assert agree(torch.equal(out, torch.arange(30_000) % 17 + float((rank - 1) % size)))
    assert agree(torch.equal(total, torch.arange(30_000) % 17.0))


def test_who_waits_inside_has_it_begun(group, agree):
    tensor = mine(100)
    with dist._coalescing_manager(group, CPU, async_ops=True) as manager:
        dist.broadcast(tensor, 0, group=group)
        seen = tensor.clone()
        dist.broadcast(tensor, 1, group=group, async_op=True)
    manager.wait()
    assert agree(torch.equal(seen, torch.arange(100) % 17.0))


@pytest.mark.filterwarnings("default")  # torch has new names for some
def test_functional_coalesced(group, gloo, agree):
    import torch.distributed._functional_collectives as funcol

    def run(group):
        tensors = [mine(n) for n in SIZES]
        return [
            *funcol.all_reduce_coalesced(tensors, "sum", group),
            *funcol.all_gather_into_tensor_coalesced(tensors, group),
            *funcol.reduce_scatter_tensor_coalesced(
                [mine(n * dist.get_world_size()) for n in SIZES], "sum", [0] * len(SIZES), group
            ),
        ]

    assert agree(all(torch.equal(a, b) for a, b in zip(run(group), run(gloo), strict=True)))

"""Operations of a group without compression on GPU tensors: the engine sends large ones chunk by chunk."""

import pytest
import torch
import torch.distributed as dist
from test_collectives import ALL_GATHER_SINGLE, CASES, same
from test_device import copied, mine, noise, on_device, on_host

import compcoll.torch
from compcoll.policy import choices

CARRIED = "the engine carries its bytes"
N = 6000


@pytest.fixture
def plain(world, gpu, monkeypatch):
    """Group without compression, of ranks that have GPUs, with a lower limit for the engine."""
    monkeypatch.setattr("compcoll.devices.cuda.is_usable", lambda: True)
    monkeypatch.setattr(choices, "TORCH_PLAIN_NBYTES", 4096)
    group = dist.new_group(pg_options=compcoll.torch.Options("none"))
    yield group
    dist.destroy_process_group(group)


def reasons(group):
    """Reason in the report for each kind of call of a group, by MPI's names."""
    state = group._get_backend(torch.device("cpu")).state
    return {op: line.reason for (op, *_), line in state.stats.lines.items()}


@pytest.mark.parametrize("how", CASES, ids=lambda f: f.__name__)
def test_values_are_those_of_the_host(plain, gpu, agree, how):
    """Uncompressed operations on device tensors give the host's values, synchronously and asynchronously."""
    for dtype in (torch.float32, torch.bfloat16):
        want = on_host(how, N, dtype, noise, group=plain, later=False)
        for later in (False, True):
            got = on_device(gpu, how, N, dtype, noise, group=plain, later=later)
            assert agree(same(got, want))


def test_large_ones_are_the_engines(plain, gpu, agree):
    size = dist.get_world_size()
    given, whole = gpu.tensor(mine(N)), gpu.tensor(torch.zeros(N * size))
    ALL_GATHER_SINGLE(whole, given, group=plain)
    dist.broadcast(given, 0, group=plain)
    dist.all_to_all_single(gpu.tensor(torch.zeros(N * size)), whole, group=plain)
    dist.all_reduce(given, group=plain)
    assert agree(not gpu.launched)
    why = reasons(plain)
    assert agree(all(CARRIED in why[op] for op in ("Allgather", "Bcast", "Alltoall")))
    assert agree(CARRIED not in why["Allreduce"])


def test_small_ones_and_those_of_the_host_are_mpis(plain, gpu, agree):
    dist.broadcast(gpu.tensor(mine(1000)), 0, group=plain)
    dist.broadcast(mine(N), 0, group=plain)
    assert agree(CARRIED not in reasons(plain)["Bcast"])


def test_operations_under_way_together(plain, gpu, agree):
    """Broadcasts of host tensors and of small and large device tensors are right when pending together."""
    given = [mine(n, seed=n) for n in (N, 10, N, 2 * N, 700)]
    for one in given:
        dist.broadcast(one, 1, group=plain)
    ours = [
        gpu.tensor(mine(n, seed=n)) if i % 3 else mine(n, seed=n)
        for i, n in enumerate((N, 10, N, 2 * N, 700))
    ]
    works = [dist.broadcast(one, 1, group=plain, async_op=True) for one in ours]
    for work in works:
        work.wait()
    assert agree(same([copied(gpu, one) if i % 3 else one for i, one in enumerate(ours)], given))


def test_tensors_with_gaps(plain, gpu, agree):
    room = mine(3 * N).view(N, 3)
    both = room.clone(), gpu.tensor(room)
    for one in both:
        dist.broadcast(one[:, 1], 1, group=plain)
    assert agree(same([copied(gpu, both[1])], [both[0]]))


def test_lists_with_a_gap_between_tensors_on_one_rank(plain, gpu, agree):
    """all_gather is right if only one rank has gaps between its outputs and must copy what it receives."""
    size, rank = dist.get_world_size(), dist.get_rank()
    step = N + (8 if rank == 0 else 0)
    whole = gpu.tensor(torch.zeros(step * size))
    outs = [whole[step * i : step * i + N] for i in range(size)]
    dist.all_gather(outs, gpu.tensor(mine(N)), group=plain)
    assert agree(same([copied(gpu, one) for one in outs], [noise(N, torch.float32, i) for i in range(size)]))
    assert agree(CARRIED in reasons(plain)["Allgatherv"])

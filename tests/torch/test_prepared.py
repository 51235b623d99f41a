"""Operations like one before them begin as that one was prepared: with the same results, in few files."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import compcoll
from compcoll.torch import collectives, peers

ALL_GATHER_SINGLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER_SINGLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
SIZES = [5, 20_000]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.fixture(params=["world", "ours"])
def group(request):
    return request.getfixturevalue(request.param)


def core_of(group):
    return next(core for core in peers.cores() if core.name == group.group_name)


def given(n, dtype, seed):
    """Values that differ between ranks and calls; sums of a few are exact."""
    return ((torch.arange(n) * (seed + 3) + dist.get_rank()) % 7).to(dtype)


def all_reduce(one, group, **more):
    dist.all_reduce(one, group=group, **more)
    return one


def maximum(one, group):
    return all_reduce(one, group, op=dist.ReduceOp.MAX)


def broadcast(one, group):
    dist.broadcast(one, dist.get_world_size() - 1, group=group)
    return one


def reduce(one, group):
    dist.reduce(one, 0, group=group)
    return one if dist.get_rank() == 0 else one.new_zeros(())  # torch leaves the others open


def all_gather(one, group):
    out = one.new_zeros(one.numel() * dist.get_world_size())
    ALL_GATHER_SINGLE(out, one, group=group)
    return out


def all_gather_in_place(one, group):
    out, n = one.new_zeros(one.numel() * dist.get_world_size()), one.numel()
    mine = out[n * dist.get_rank() :][:n]
    mine.copy_(one)
    ALL_GATHER_SINGLE(out, mine, group=group)
    return out


def reduce_scatter(one, group):
    out = one.new_zeros(one.numel())
    REDUCE_SCATTER_SINGLE(out, one.repeat(dist.get_world_size()), group=group)
    return out


def all_to_all(one, group):
    out = one.new_zeros(one.numel() * dist.get_world_size())
    dist.all_to_all_single(out, one.repeat(dist.get_world_size()), group=group)
    return out


OPERATIONS = [
    all_reduce,
    maximum,
    broadcast,
    reduce,
    all_gather,
    all_gather_in_place,
    reduce_scatter,
    all_to_all,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", OPERATIONS, ids=lambda how: how.__name__)
def test_repeated_operations_are_those_of_gloo(group, gloo, agree, monkeypatch, how, dtype):
    if dtype == torch.complex64 and how is maximum:
        pytest.skip("complex numbers have no maximum")
    for n in SIZES:
        how(given(n, dtype, 0), group)
        with monkeypatch.context() as patch:
            if how is not maximum or dtype != torch.bfloat16:  # which goes by way of float32
                patch.setattr(collectives.Collective, "begin", None)  # nothing is prepared anew
            got = [how(given(n, dtype, seed), group) for seed in range(3)]
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        want = [how(given(n, wide, seed), gloo).to(dtype) for seed in range(3)]
        assert agree(all(map(torch.equal, got, want))), (n, got, want)


def test_averages(group, agree):
    for seed in range(3):
        got = all_reduce(given(1000, torch.float32, seed), group, op=dist.ReduceOp.AVG)
        want = all_reduce(given(1000, torch.float32, seed), group) / dist.get_world_size()
        assert agree(torch.equal(got, want))


def test_other_places_are_not_taken_for_prepared_ones(group, agree):
    size, rank = dist.get_world_size(), dist.get_rank()
    for one in (
        torch.full((600,), 1.0),
        torch.full((1200,), 1.0)[::2],
        torch.full((30, 20), 1.0).t().reshape(-1),
    ):
        assert agree((all_reduce(one, group) == size).all())
    for shift in (0, 7, 0):  # apart, then the input overlaps the result, and is not this rank's block
        whole = torch.zeros(600 * size + 7)
        mine = whole[600 * rank + shift :][:600] if shift else torch.empty(600)
        mine.fill_(rank + 1.0)
        ALL_GATHER_SINGLE(whole[: 600 * size], mine, group=group)
        assert agree(torch.equal(whole[: 600 * size], torch.arange(1.0, size + 1).repeat_interleave(600)))


def test_factors_are_not_kept(group, agree):
    size = dist.get_world_size()
    for factor in (2.0, 3.0):
        one = all_reduce(torch.ones(64), group, op=dist._make_nccl_premul_sum(factor))
        assert agree((one == factor * size).all())


def test_a_policy_is_for_later_operations_as_well(agree):
    group = dist.new_group()
    core = core_of(group)
    for _ in range(2):
        all_reduce(torch.ones(4000), group)
    assert agree(len(core.prepared) == 1)
    compcoll.torch.set_policy("raw", min_nbytes=0)
    try:
        assert agree(not core.prepared)
        all_reduce(torch.ones(4000), group)
        assert agree([line.codec for line in core.stats.lines.values()][-1] == "raw")
    finally:
        compcoll.torch.set_policy(None)


def test_errors_of_arguments_stay(group, agree):
    size = dist.get_world_size()
    for _ in range(2):
        all_gather(torch.ones(50), group)
    with pytest.raises((ValueError, RuntimeError)):
        ALL_GATHER_SINGLE(torch.ones(50 * size), torch.ones(49), group=group)
    assert agree((all_gather(torch.ones(50), group) == 1).all())


@pytest.mark.parametrize("n", SIZES)
def test_a_repeated_operation_passes_four_files(group, agree, n):
    root, entered = str(Path(compcoll.__file__).parent), set()

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            entered.add(frame.f_code.co_filename)

    one = torch.ones(n)
    dist.all_reduce(one, group=group)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        dist.all_reduce(one, group=group)
    finally:
        sys.setprofile(before)
    assert agree(0 < len(entered) <= 4 + hasattr(group, "core")), entered  # a wrapper of torch 2.13's group

"""Feedback of quantization errors by hooks: by parameter, after skipped steps, and in state_dicts."""

import copy

import pytest
import torch
import torch.distributed as dist
from buckets import Scaled, averaged, mean_by_gloo, of_rank
from test_conformance import batch, model
from torch.nn.parallel import DistributedDataParallel as DDP

from compcoll.torch import (
    CompressedAllReduce,
    CompressedReduceScatter,
    ErrorFeedback,
    compress_ddp,
    compressed_hook,
)

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def small_buckets(monkeypatch):
    """Options of DDP for several buckets from the second step on."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1)
    return {"bucket_cap_mb": 0.001}


@pytest.mark.parametrize("named", [True, False])
def test_a_resumed_training_equals_the_uninterrupted_one(gloo, agree, place, named, small_buckets):
    """A resumed training has the same bits, although DDP rebuilds its buckets after the first step."""
    codec = {0: "int8", 9: "bfp:bits=4"}  # by the number of the step

    def made():
        net = DDP(model(), process_group=gloo, **small_buckets)
        if named:
            state = compress_ddp(net, codec, nodes=place[0])
        else:
            state = ErrorFeedback(codec, gloo, nodes=place[0])
            net.register_comm_hook(state, compressed_hook)
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), state

    def run(net, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            x, y = batch(step)
            torch.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()

    net, optimizer, _ = made()
    run(net, optimizer, range(12))
    first, second = made(), made()
    run(*first[:2], range(6))
    for new, old in zip(second, first, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    run(*second[:2], range(6, 12))
    assert agree(all(map(torch.equal, second[0].parameters(), net.parameters())))


def test_errors_stay_with_their_parameters(gloo, agree, place):
    """Errors follow their parameters when these change places in the bucket after the first step."""
    truth = {"large": 1e4 * of_rank(7, 500), "small": of_rank(8, 500)}
    ddp = DDP(Scaled(truth), process_group=gloo)
    compress_ddp(ddp, "bfp:bits=8", nodes=place[0])
    for _ in range(4):
        ddp.zero_grad()
        ddp(*truth).backward()  # the last one's gradient is ready first
        for name, values in truth.items():
            grad = getattr(ddp.module, name).grad
            assert agree((grad - values).abs().max() < 0.05 * values.abs().max()), name


def test_errors_of_another_rank_are_left_out(gloo, agree):
    first = ErrorFeedback("int8", gloo)
    averaged(first, of_rank(dist.get_rank(), 700))
    kept = [None] * dist.get_world_size()
    dist.all_gather_object(kept, first.state_dict(), group=gloo)
    second = ErrorFeedback("int8", gloo)
    second.load_state_dict(kept[0])
    assert agree(second.step == 1 and bool(second.state_dict()["errors"]) == (dist.get_rank() == 0))


LOSSY = ["bfp:bits=8", "int8", "bfp:bits=4", "fp8", "zfp:rate=8", "szp:rel=1e-3"]


def mean_by(kind, codec, gloo, nodes, feeds_back=True):
    """A function that averages values over all ranks, and its state; a reduce-scatter returns one part."""
    options = {"feeds_back": feeds_back, "nodes": nodes}
    if kind == "ddp":
        state = ErrorFeedback(codec, gloo, **options)
        return lambda mine: averaged(state, mine), state
    if kind == "all-reduce":
        state = CompressedAllReduce(codec, gloo, **options)
    else:
        state = CompressedReduceScatter(codec, **options)

    def mean(mine):
        if kind == "all-reduce":
            state(got := mine.clone())
            return got
        got = torch.empty(mine.numel() // dist.get_world_size())
        state(got, mine, gloo, dist.ReduceOp.SUM)
        return got / dist.get_world_size()

    return mean, state


def part_of(values, kind):
    """This rank's part of the values in a reduce-scatter, otherwise all values."""
    return values.chunk(dist.get_world_size())[dist.get_rank()] if kind == "reduce-scatter" else values


KINDS = [("ddp", codec) for codec in LOSSY]
KINDS += [(kind, f"bfp:bits={bits}") for kind in ("reduce-scatter", "all-reduce") for bits in (8, 4)]


@pytest.mark.parametrize("bad", [1e7, float("inf"), float("nan")])
@pytest.mark.parametrize(("kind", "codec"), KINDS)
def test_a_step_that_is_not_taken(gloo, agree, place, kind, codec, bad):
    """Errors of a skipped step do not enter later steps, whose norms are those of plain sums."""
    mean, state = mean_by(kind, codec, gloo, place[0])
    rank, size = dist.get_rank(), dist.get_world_size()
    n, most = 2500 * size, 0.08 if kind == "ddp" else 0.06
    for step in range(6):
        mine = of_rank(rank + size * step, n)
        if step == 2 and rank == size - 1:
            mine[: n // 2 if bad == 1e7 else 1] *= bad
        got, want = mean(mine), part_of(mean_by_gloo(gloo, mine), kind)
        assert agree(step == 2 or abs(got.norm() / want.norm() - 1) < most), step
        if step == 2 and bad != 1e7 and kind == "ddp":
            assert agree(not state.state_dict()["errors"])  # on any rank


@pytest.mark.parametrize("kind", ["ddp", "reduce-scatter"])
def test_errors_of_zeros_wait(gloo, agree, place, kind):
    """Errors of a block whose gradients are zero are kept until it has gradients again."""
    truth = of_rank(5, 1500 * dist.get_world_size())
    kept = truth.clone()

    def error(feeds_back):
        mean, total = mean_by(kind, "int4", gloo, place[0], feeds_back)[0], 0
        for _ in range(20):
            total += mean(truth)
            assert agree(not mean(torch.zeros_like(truth)).any())
        return float((total / 20 - part_of(truth, kind)).abs().max())

    assert agree(error(True) < 0.25 * error(False))
    assert agree(torch.equal(truth, kept))


def test_forget(gloo, agree, place):
    state, mine = ErrorFeedback("int4", gloo, nodes=place[0]), of_rank(dist.get_rank(), 700)
    first, second = averaged(state, mine), averaged(state, mine)
    state.forget()
    assert agree(not state.state_dict()["errors"] and not torch.equal(first, second))
    assert agree(torch.equal(averaged(state, mine), first) and state.step == 3)


def test_errors_do_not_outlive_a_lossless_codec(gloo, agree):
    state = ErrorFeedback({0: "int4", 1: "lossless", 2: "int4"}, gloo)
    mine = of_rank(dist.get_rank(), 700)
    first, exact, again = (averaged(state, mine) for _ in range(3))
    assert agree(torch.equal(first, again) and not torch.equal(first, exact))

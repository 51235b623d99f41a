"""Compression for those who keep another backend, here gloo."""

import pytest
import torch
import torch.distributed as dist
from test_conformance import batch, close, mesh_of, model, train
from torch.nn.parallel import DistributedDataParallel as DDP

from compcoll.torch import CompressedAllGather, CompressedReduceScatter, ErrorFeedback, compressed_hook

pytestmark = pytest.mark.filterwarnings("default")


def hooked(gloo, codec, **options):
    net, state = DDP(model(), process_group=gloo), ErrorFeedback(codec, gloo, **options)
    net.register_comm_hook(state, compressed_hook)
    return net, state


def test_lossless_hook_is_like_none(gloo, agree):
    net, state = hooked(gloo, "lossless")
    assert agree(close(train(net), train(DDP(model(), process_group=gloo))))
    assert state.raw_nbytes > 0


def test_replicas_stay_the_same_under_a_lossy_hook(gloo, agree):
    net, state = hooked(gloo, "int8")
    train(net)
    mine = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    dist.broadcast(theirs := mine.clone(), 0, group=gloo)
    assert agree(torch.equal(mine, theirs))
    assert state.raw_nbytes > 2 * state.wire_nbytes


def test_feedback_makes_up_for_what_is_left_out(gloo, agree):
    """The mean of many steps' gradients is closer to the truth than one step's."""
    given = torch.Generator().manual_seed(5)
    truth = torch.randn(1000, generator=given)

    class Bucket:
        def __init__(self):
            self.values = truth.clone()

        def buffer(self):
            return self.values

        def index(self):
            return 0

    def error(feeds_back):
        state, total = ErrorFeedback("int4", gloo, feeds_back=feeds_back), torch.zeros_like(truth)
        for _ in range(20):
            total += compressed_hook(state, Bucket()).wait()
        return float((total / 20 - truth).abs().max())

    assert agree(error(True) < 0.25 * error(False))


def test_an_overflow_is_not_fed_back(gloo, agree):
    net, _ = hooked(gloo, "zfp:rate=8")
    x, y = batch(0)
    (torch.nn.functional.mse_loss(net(x), y) * float("inf")).backward()
    assert agree(not all(p.grad.isfinite().all() for p in net.parameters()))
    net.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    assert agree(all(bool(p.grad.isfinite().all()) for p in net.parameters()))


@pytest.mark.parametrize(
    "codecs", [("lossless", "lossless"), ("lossless", "zfp:rate=24"), ("zfp:rate=24", "int8")]
)
def test_fsdp2_objects(gloo, agree, codecs):
    from torch.distributed.fsdp import fully_shard

    def run(codecs):
        net, mesh = model(), mesh_of(gloo)
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        if codecs is not None:
            for module in (net, net[0], net[2]):
                module.set_custom_all_gather(CompressedAllGather(codecs[0]))
                module.set_custom_reduce_scatter(CompressedReduceScatter(codecs[1]))
        return train(net)

    got, want = run(codecs), run(None)
    assert agree(close(got, want) if codecs[1] == "lossless" else torch.allclose(got, want, rtol=2e-2))

"""Compression for those who keep another backend, here gloo."""

import threading

import pytest
import torch
import torch.distributed as dist
from test_conformance import batch, close, mesh_of, model, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from compcoll.torch import (
    CompressedAllGather,
    CompressedAllReduce,
    CompressedReduceScatter,
    ErrorFeedback,
    compress_ddp,
    compress_fsdp,
    compressed_hook,
    frames,
    inside,
)

pytestmark = pytest.mark.filterwarnings("default")
#: Nodes of ranks by number of ranks, and the levels that they give.
PLACES = {2: [([0, 1], 1)], 3: [([0, 0, 1], 1)], 4: [([0, 0, 1, 1], 2), ([0, 1, 0, 1], 2), ([0, 0, 0, 1], 1)]}
INT8 = 0.5 / 127


@pytest.fixture(params=range(4), ids=["flat", "first", "second", "third"])
def place(request, world):
    """Nodes of all ranks, and the number of levels."""
    places = [([0] * dist.get_world_size(), 1), *PLACES[dist.get_world_size()]]
    if request.param >= len(places):
        pytest.skip("fewer places for so many ranks")
    return places[request.param]


class Bucket:
    """One tensor as a bucket of DDP's."""

    def __init__(self, values, index=0):
        self.values, self.number = values, index

    def buffer(self):
        return self.values

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
    """Whether all ranks have these bits."""
    first = values.contiguous().clone().view(torch.uint8)
    if first.numel():
        dist.broadcast(first, 0, group=gloo)
    return torch.equal(first, values.contiguous().view(torch.uint8))


def hooked(gloo, codec, net=None, **options):
    net, state = DDP(net or model(), process_group=gloo), ErrorFeedback(codec, gloo, **options)
    net.register_comm_hook(state, compressed_hook)
    return net, state


def test_lossless_hook_is_like_none(gloo, agree, place):
    net, state = hooked(gloo, "lossless", nodes=place[0])
    assert agree(close(train(net), train(DDP(model(), process_group=gloo))))
    assert agree(state.levels == place[1] and state.raw_nbytes > 0)
    assert agree(bool(state.reason) == (state.levels == 1))


def test_replicas_stay_the_same_under_a_lossy_hook(gloo, agree):
    net, state = hooked(gloo, "int8")
    train(net)
    mine = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    assert agree(is_same(gloo, mine))
    assert agree(state.raw_nbytes > 2 * state.wire_nbytes)


@pytest.mark.parametrize(
    "options",
    [{"bucket_cap_mb": 0.001}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}],
    ids=str,
)
def test_many_buckets(gloo, agree, options):
    net = DDP(model(), process_group=gloo, **options)
    net.register_comm_hook(ErrorFeedback("bfp:bits=16", gloo), compressed_hook)
    got, want = train(net), train(DDP(model(), process_group=gloo, **options))
    assert agree(torch.allclose(got, want, rtol=1e-3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [0, 1, 3, 5, 1000, 4097])
def test_error_is_within_the_codecs(gloo, agree, place, n, dtype):
    mine = of_rank(dist.get_rank(), n, dtype)
    state = ErrorFeedback("int8", gloo, nodes=place[0])
    got, want = averaged(state, mine), mean_by_gloo(gloo, mine)
    assert agree(got.dtype == dtype and is_same(gloo, got))
    if n:
        most = torch.tensor([mine.abs().max().double()])
        dist.all_reduce(most, group=gloo)  # the sum over ranks of the largest values
        most = most.item() / dist.get_world_size()
        rounding = 4 * torch.finfo(dtype).eps * most
        assert agree((got - want).abs().max() <= (2 * INT8 + INT8**2) * most + rounding)


@pytest.mark.parametrize("codec", ["bfp:bits=8", "bfp:rel=1e-3", "fp8", "int4", "zfp:rate=8", "szp:abs=1e-3"])
def test_values_that_fit_no_slot_are_exact(gloo, agree, place, codec):
    """Those of one rank, in one part, that its codec refuses; later buckets are none the worse."""
    state = ErrorFeedback(codec, gloo, nodes=place[0])
    mine = of_rank(dist.get_rank(), 999)
    if dist.get_rank() == dist.get_world_size() - 1:
        mine[1] = float("inf")
    got = averaged(state, mine)
    want = mean_by_gloo(gloo, mine)
    fine = want.isfinite()
    assert agree(is_same(gloo, got) and not got[1].isfinite())
    assert agree((got[fine] - want[fine]).abs().max() < 1.0)
    again = of_rank(dist.get_rank(), 999)
    assert agree((averaged(state, again) - mean_by_gloo(gloo, again)).abs().max() < 1.0)


def test_large_values_are_exact(gloo, agree, place):
    mine = torch.full((301,), 1.5 * 2.0**127)
    got = averaged(ErrorFeedback("bfp:bits=4", gloo, nodes=place[0]), mine)
    assert agree(torch.equal(got, mine))


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_between_nodes(gloo, agree, place, bits, monkeypatch):
    """Each byte crosses a port once: what a node sends is at most 1.05 times codes and scales."""
    nodes, levels = place
    nodes = nodes if levels == 2 else list(range(len(nodes)))
    counted, n = [0], 200_000
    exchange, gather = dist.all_to_all_single, frames.all_gather_single

    def others(group):
        ranks = dist.get_process_group_ranks(group)
        return sum(nodes[rank] != nodes[dist.get_rank()] for rank in ranks), len(ranks)

    def counting_exchange(out, given, *args, group=None, **options):
        far, size = others(group)
        counted[0] += given.nbytes * far // size
        return exchange(out, given, *args, group=group, **options)

    def counting_gather(out, given, group=None, **options):
        counted[0] += given.nbytes * others(group)[0]
        return gather(out, given, group=group, **options)

    monkeypatch.setattr(dist, "all_to_all_single", counting_exchange)
    monkeypatch.setattr(frames, "all_gather_single", counting_gather)
    state = ErrorFeedback(f"bfp:bits={bits}", gloo, nodes=nodes)
    averaged(state, of_rank(dist.get_rank(), n))
    total = torch.tensor(counted)
    dist.all_reduce(total, group=gloo)
    theory = 2 * (len(set(nodes)) - 1) * (n * bits / 8 + n / 64)
    assert agree(state.levels == levels and state.wire_nbytes == counted[0])
    assert agree(theory <= total.item() <= 1.05 * theory), (total, theory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shares", [True, False])
def test_sums_and_blocks_inside_a_node(gloo, agree, dtype, shares, monkeypatch):
    """Through shared memory, and where one rank has none by the group; larger ones after smaller ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if not shares and rank == size - 1:
        monkeypatch.setattr(inside, "_FOLDER", "/nowhere")
    node = inside.Inside(gloo)
    for n in (5, 0, 3000, 7):
        rows = of_rank(rank, 2 * size * n, dtype).view(2 * size, n)
        everything = [of_rank(peer, 2 * size * n, dtype).view(2 * size, n) for peer in range(size)]
        want = torch.stack(everything).double().sum(0)[2 * rank : 2 * rank + 2]
        got = node.reduce_scatter(rows)
        tolerance = 2 * size * torch.finfo(dtype).eps
        assert agree(got.dtype == dtype and torch.allclose(got.double(), want, rtol=0, atol=5 * tolerance))
        assert agree(torch.equal(node.all_gather(rows), torch.cat(everything)))
    assert agree(bool(node._blocks) == shares)


def test_a_file_of_another_container_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        inside._mapped(str(tmp_path / "theirs"), 4096)
    assert not (tmp_path / "theirs").exists()


def test_settings_that_differ_are_an_error_on_all_ranks(gloo, agree):
    for one, options in (("int8", {}), ("int4", {}), ("int8", {"levels": 2}), ("int8", {"min_numel": 9})):
        mine = (one, options) if dist.get_rank() else ("int8", {})
        problem = ""
        try:
            averaged(ErrorFeedback(mine[0], gloo, **mine[1]), torch.ones(9))
        except ValueError as error:
            problem = str(error)
        assert agree(("ranks differ in settings" in problem) == ((one, options) != ("int8", {})))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"nodes": [0]}, "nodes has 1 entries for"), ({"levels": 3}, "levels = 3 is not 1")],
)
def test_a_rank_with_bad_settings_is_an_error_on_all(gloo, agree, options, message):
    with pytest.raises(ValueError, match=message):
        averaged(ErrorFeedback("int8", gloo, **(options if dist.get_rank() else {})), torch.ones(9))
    assert agree(True)


def test_levels_that_cannot_be_two_say_why(gloo, agree):
    nodes = [0] * (dist.get_world_size() - 1) + [1]
    state = ErrorFeedback("int8", gloo, nodes=nodes, levels=2)
    averaged(state, torch.ones(9))
    why = "every node has one rank" if len(nodes) == 2 else f"nodes have 1 to {len(nodes) - 1} ranks"
    assert agree(state.levels == 1 and why in state.reason)


def test_nodes_by_a_mesh(gloo, agree):
    size = dist.get_world_size()
    shape = (2, size // 2) if size % 2 == 0 else (size, 1)
    state = ErrorFeedback("int8", gloo, nodes=init_device_mesh("cpu", shape))
    averaged(state, torch.ones(9))
    assert agree(state.levels == (2 if shape[1] > 1 else 1))


def test_nodes_by_the_environment(gloo, agree, place, monkeypatch):
    monkeypatch.setenv("COMPCOLL_NODES", ",".join(map(str, place[0])))
    state = ErrorFeedback("int8", gloo)
    averaged(state, torch.ones(9))
    assert agree(state.levels == place[1])


def test_schedules(gloo, agree):
    state, errors = ErrorFeedback({0: "bfp:bits=8", 2: "bfp:bits=4"}, gloo, feeds_back=False), []
    for _ in range(4):
        for index in range(2):
            mine = of_rank(dist.get_rank(), 5000)
            errors.append((averaged(state, mine, index) - mean_by_gloo(gloo, mine)).abs().max().item())
    assert agree(state.step == 4 and 4 * max(errors[:4]) < min(errors[4:]))


@pytest.mark.parametrize("schedule", [{1: "int8"}, {0: "int8", -1: "int4"}, {0: "int8", 0.5: "int4"}])
def test_bad_schedules(schedule):
    with pytest.raises(ValueError, match="not whole numbers from 0 on"):
        ErrorFeedback(schedule)


def test_a_state_goes_on_from_its_state_dict(gloo, agree, place):
    def run(state, steps):
        return [averaged(state, of_rank(dist.get_rank(), 700)) for _ in range(steps)]

    first = ErrorFeedback({0: "int8", 3: "int4"}, gloo, nodes=place[0])
    run(first, 2)
    kept = first.state_dict()
    second = ErrorFeedback({0: "int8", 3: "int4"}, gloo, nodes=place[0])
    second.load_state_dict(kept)
    assert agree(all(map(torch.equal, run(first, 3), run(second, 3))))


def test_errors_of_another_rank_are_left_out(gloo, agree):
    first = ErrorFeedback("int8", gloo)
    averaged(first, of_rank(dist.get_rank(), 700))
    kept = [None] * dist.get_world_size()
    dist.all_gather_object(kept, first.state_dict(), group=gloo)
    second = ErrorFeedback("int8", gloo)
    second.load_state_dict(kept[0])
    assert agree(second.step == 1 and bool(second.state_dict()["errors"]) == (dist.get_rank() == 0))


def test_one_line_for_ddp(gloo, agree):
    net = DDP(model(), process_group=gloo)
    state = compress_ddp(torch.compile(net, backend="eager"), "int8", exact=["4.*"])
    train(net)
    assert agree(state.group is gloo and state.raw_nbytes > 2 * state.wire_nbytes > 0)
    with pytest.raises(ValueError, match="Sequential is not a DistributedDataParallel"):
        compress_ddp(model(), "int8")


def test_exact_parameters(gloo, agree):
    net = model()
    ddp, _ = hooked(gloo, "int4", net, exact=["4.*"], min_numel=100, module=net)
    plain = DDP(model(), process_group=gloo)
    x, y = batch(0)
    for one in (ddp, plain):
        torch.nn.functional.mse_loss(one(x), y).backward()
    for (name, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
        exact = name.startswith("4.") or p.numel() < 100
        assert agree(torch.allclose(p.grad, q.grad, rtol=1e-5, atol=1e-9) == exact), name
    with pytest.raises(ValueError, match="none of the 6 parameters of module is 'norm"):
        ErrorFeedback("int4", exact="norm*", module=net)


def test_feedback_makes_up_for_what_is_left_out(gloo, agree, place):
    """The mean of many steps' gradients is closer to the truth than one step's."""
    truth = torch.randn(1000, generator=torch.Generator().manual_seed(5))

    def error(feeds_back):
        state = ErrorFeedback("int4", gloo, feeds_back=feeds_back, nodes=place[0])
        total = sum(averaged(state, truth) for _ in range(20))
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


def sharded(gloo, mesh=None):
    net, mesh = model(), mesh or mesh_of(gloo)
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


@pytest.mark.parametrize(
    "codecs",
    [("lossless", "lossless"), ("raw", "raw"), ("lossless", "zfp:rate=24"), ("zfp:rate=24", "int8")],
)
def test_fsdp2_objects(gloo, agree, codecs, place):
    net = sharded(gloo)
    found = compress_fsdp(net, codecs[1], codecs[0], nodes=place[0])
    got, want = train(net), train(sharded(gloo))
    assert agree(
        close(got, want) if codecs[1] in ("lossless", "raw") else torch.allclose(got, want, rtol=2e-2)
    )
    kinds = [type(one) for one in found["0"]]
    assert agree(set(found) == {"", "0", "2"} and kinds == [CompressedAllGather, CompressedReduceScatter])
    assert agree(all(one.levels == place[1] and one.wire_nbytes > 0 for one in found["0"]))


def test_fsdp2_unshards_in_the_background(gloo, agree, place):
    net = sharded(gloo)
    compress_fsdp(net, all_gather="bfp:bits=16", nodes=place[0])
    handle = net[0].unshard(async_op=True)
    handle.wait()
    got, want = net[0].weight.detach(), model()[0].weight.detach()
    assert agree((got - want).abs().max() < 1e-4 and is_same(gloo, got))


def held_until(monkeypatch, kind, method, holds):
    """Have calls of a method wait for an event; returns it, and whether it was set in time for each call."""
    goes_on, seen, original = threading.Event(), [], getattr(kind, method)

    def held(self, *args):
        if holds(self):
            seen.append(goes_on.wait(30))
        return original(self, *args)

    monkeypatch.setattr(kind, method, held)
    return goes_on, seen


@pytest.mark.parametrize("codec", ["bfp:bits=16", "lossless"])
def test_fsdp2_gathers_during_other_modules(gloo, agree, place, codec, monkeypatch):
    """A module's parameters travel only when the one before is past its forward or its backward pass."""
    net, x = sharded(gloo), batch(dist.get_rank())[0]
    found = compress_fsdp(net, all_gather=codec, nodes=place[0])
    net(x).sum().backward()  # in which the order is found
    net.zero_grad()
    last = net[2]
    goes_on, seen = held_until(
        monkeypatch, CompressedAllGather, "_start_gather", lambda one: one.module is last
    )
    net[1].register_forward_pre_hook(lambda *_: goes_on.set())
    net[1].register_full_backward_pre_hook(lambda *_: goes_on.set())
    loss = net(x).sum()
    last = net[0]
    goes_on.clear()
    loss.backward()
    assert agree(seen == [True, True])
    assert agree(all(one.levels == place[1] for (one,) in found.values()))
    want = sharded(gloo)
    want(x).sum().backward()
    for p, q in zip(net.parameters(), want.parameters(), strict=True):
        assert agree(torch.allclose(p.grad.full_tensor(), q.grad.full_tensor(), rtol=1e-3, atol=1e-4))


def test_own_prefetching_stays(gloo, agree):
    net, x = sharded(gloo), batch(dist.get_rank())[0]
    compress_fsdp(net, all_gather="lossless")
    net.set_modules_to_forward_prefetch([net[0], net[2]])
    want = sharded(gloo)(x)
    assert agree(all(torch.equal(net(x), want) for _ in range(2)))
    assert agree(len(net._get_fsdp_state()._states_to_forward_prefetch) == 2)


def test_fsdp2_infers(gloo, agree):
    net, x = sharded(gloo), batch(dist.get_rank())[0]
    compress_fsdp(net, all_gather="lossless")
    with torch.inference_mode():  # torch itself cannot train such a model afterwards
        assert agree(all(torch.equal(net(x), model()(x)) for _ in range(2)))


def gradients(net, passes=1):
    x, y = batch(dist.get_rank())
    for _ in range(passes):
        torch.nn.functional.mse_loss(net(x), y).backward()
    return torch.cat([p.grad.full_tensor().flatten() for p in net.parameters()])


def test_fsdp2_reduces_during_the_backward_pass(gloo, agree, place, monkeypatch):
    """The last layer's gradients travel only when the layer before is at its backward pass."""
    net = sharded(gloo)
    compress_fsdp(net, "bfp:bits=16", nodes=place[0])
    goes_on, seen = held_until(monkeypatch, CompressedReduceScatter, "_sum_inside", lambda _: True)
    net[1].register_full_backward_pre_hook(lambda *_: goes_on.set())
    got, want = gradients(net), gradients(sharded(gloo))
    assert agree(len(seen) == 3 and all(seen))
    assert agree(torch.allclose(got, want, rtol=0, atol=1e-3 * want.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fsdp2_gradients_that_something_reads(gloo, agree, dtype):
    """Those that are added to others, and those that change their type."""
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)

    def net():
        one, mesh = model(), mesh_of(gloo)
        fully_shard(one[2], mesh=mesh, mp_policy=policy)
        return fully_shard(one, mesh=mesh, mp_policy=policy)

    ours, theirs = net(), net()
    compress_fsdp(ours, "bfp:bits=16")
    got, want = gradients(ours, 3), gradients(theirs, 3)
    assert agree(torch.allclose(got, want, rtol=0, atol=1e-2 * want.abs().max()))


def test_reduce_scatter_feeds_back(gloo, agree, place):
    size, rank = dist.get_world_size(), dist.get_rank()
    given = of_rank(7, 300 * size)

    def error(feeds_back):
        reduce = CompressedReduceScatter("int4", feeds_back=feeds_back, nodes=place[0])
        out, total = torch.empty(300), torch.zeros(300)
        for _ in range(20):
            reduce(out, given, gloo, dist.ReduceOp.SUM)
            total += out / size
        return float((total / 20 - given[300 * rank : 300 * (rank + 1)]).abs().max())

    kept = given.clone()
    assert agree(error(True) < 0.5 * error(False))
    assert agree(torch.equal(given, kept))


@pytest.fixture
def replicated(world):
    """Two replicas, each sharded over half of the ranks."""
    size = dist.get_world_size()
    if size % 2:
        pytest.skip("an even number of ranks")
    return init_device_mesh(
        "cpu",
        (2, size // 2),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": "gloo", "shard": "gloo"},
    )


@pytest.mark.parametrize("shards", [None, "bfp:bits=16"])
def test_hsdp(gloo, agree, replicated, shards):
    """The replicate dimension alone is compressed, or both: few bits there, and shards that are exact."""
    net = sharded(gloo, replicated["shard"])
    found = compress_fsdp(net, shards, all_reduce="bfp:bits=16", replicas=replicated.get_group("replicate"))
    assert agree(torch.allclose(train(net), train(sharded(gloo, replicated)), rtol=1e-3))
    for made in found.values():
        assert agree(type(made[-1]) is CompressedAllReduce and made[-1].wire_nbytes > 0)
    theirs = torch.cat([p.to_local().flatten() for p in net.parameters()])
    both = [torch.empty_like(theirs) for _ in range(2)]
    dist.all_gather(both, theirs, group=replicated.get_group("replicate"))
    assert agree(torch.equal(*both))


@pytest.mark.parametrize("shards", [None, "bfp:bits=16"])
def test_hsdp_averages_during_the_backward_pass(gloo, agree, replicated, shards, monkeypatch):
    """The last layer's gradients travel only when the layer before is at its backward pass."""
    net, replicas = sharded(gloo, replicated["shard"]), replicated.get_group("replicate")
    compress_fsdp(net, shards, all_reduce="bfp:bits=16", replicas=replicas)
    goes_on, seen = held_until(monkeypatch, CompressedAllReduce, "_sum_inside", lambda _: True)
    net[1].register_full_backward_pre_hook(lambda *_: goes_on.set())
    got, want = gradients(net, 2), gradients(sharded(gloo, replicated), 2)
    assert agree(len(seen) == 6 and all(seen))
    assert agree(torch.allclose(got, want, rtol=0, atol=1e-3 * want.abs().max()))


def test_a_hook_of_the_programs_own_reads_sums(gloo, agree, replicated):
    """One that `compress_fsdp` has not set comes after the reduce-scatter."""
    net, replicas = sharded(gloo, replicated["shard"]), replicated.get_group("replicate")
    compress_fsdp(net, "bfp:bits=16")
    for module in (net[0], net[2], net):
        module.set_all_reduce_hook(CompressedAllReduce("bfp:bits=16", replicas))
    got, want = gradients(net), gradients(sharded(gloo, replicated))
    assert agree(torch.allclose(got, want, rtol=0, atol=1e-3 * want.abs().max()))


@pytest.mark.parametrize("kind", ["sharded", "replicated"])
def test_fsdp2_goes_on_from_state_dicts(gloo, agree, replicated, kind):
    """Of all modules' objects, with errors that are fed back: the same gradients bit for bit."""

    def made():
        if kind == "sharded":
            net, options = sharded(gloo), {"reduce_scatter": "int4", "feeds_back": True}
        else:
            replicas = replicated.get_group("replicate")
            net, options = sharded(gloo, replicated["shard"]), {"all_reduce": "int4", "replicas": replicas}
        return net, compress_fsdp(net, **options)

    first, states = made()
    gradients(first)
    kept = {name: one.state_dict() for name, (one,) in states.items()}
    second, theirs = made()
    for name, (one,) in theirs.items():
        one.load_state_dict(kept[name])
    first.zero_grad()
    got, want = gradients(second), gradients(first)
    fresh, _ = made()
    assert agree(all(state["errors"] for state in kept.values()))
    assert agree(torch.equal(got, want) and not torch.equal(gradients(fresh), want))


def test_modules_to_compress(gloo, agree):
    net = sharded(gloo)
    assert agree(set(compress_fsdp(net, "int8", exact=["", "2"])) == {"0"})
    with pytest.raises(ValueError, match="no module of FSDP2"):
        compress_fsdp(model(), "int8")
    with pytest.raises(ValueError, match="need each other"):
        compress_fsdp(net, all_reduce="int8")

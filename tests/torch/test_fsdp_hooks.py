"""Compression of FSDP2 and HSDP beside another backend, here gloo."""

import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from buckets import Scaled, is_same, mean_by_gloo, of_rank
from test_conformance import batch, close, mesh_of, model, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from compcoll.torch import (
    CompressedAllGather,
    CompressedAllReduce,
    CompressedReduceScatter,
    compress_fsdp,
    hooks,
)

pytestmark = pytest.mark.filterwarnings("default")


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


def held_until(monkeypatch, module, phase, holds):
    """Make a phase wait for an event; returns it and a list that says if it was set in time."""
    goes_on, seen, original = threading.Event(), [], getattr(module, phase)

    def held(state, *args):
        if holds(state):
            seen.append(goes_on.wait(30))
        return original(state, *args)

    monkeypatch.setattr(module, phase, held)
    return goes_on, seen


@pytest.mark.parametrize("codec", ["bfp:bits=16", "lossless"])
def test_fsdp2_gathers_during_other_modules(gloo, agree, place, codec, monkeypatch):
    """A pass goes on with the modules before while a module's all_gather is held, forward and backward."""
    net, x = sharded(gloo), batch(dist.get_rank())[0]
    found = compress_fsdp(net, all_gather=codec, nodes=place[0])
    net(x).sum().backward()  # finds the order
    net.zero_grad()
    last = net[2]
    goes_on, seen = held_until(monkeypatch, hooks, "all_gather", lambda one: one.module is last)
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


class Exits(torch.nn.Module):
    """Layers, the last of which a forward pass may leave out, and one of two heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        self.heads = torch.nn.ModuleList(torch.nn.Linear(16, 4) for _ in range(2))

    def forward(self, x, until=3, head=0, fails=False):
        for layer in self.layers[:until]:
            x = torch.tanh(layer(x))
        if fails:
            raise ArithmeticError("as it was asked to")
        return self.heads[head](x) if until == 3 else x


def made_of_exits(gloo, root):
    net, mesh = Exits(), mesh_of(gloo)
    for layer in (*net.layers, *net.heads):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh) if root else net


def failed(net, x):
    with pytest.raises(ArithmeticError):
        net(x, until=2, fails=True)
    if hasattr(net, "reset_iter_state"):  # of torch's own passes
        net.reset_iter_state()


LEFT_OUT = {
    "an early exit": lambda net, x: net(x, until=2),
    "another head": lambda net, x: net(x, head=1),
    "two passes": lambda net, x: (net(x, until=1), net(x, until=2)),
    "an exception": failed,
    "a part alone": lambda net, x: net.layers[1](x),
}


@pytest.mark.parametrize("root", [True, False], ids=["with a root", "without a root"])
@pytest.mark.parametrize("changes", ["optimizer", "load_state_dict"])
@pytest.mark.parametrize("what", LEFT_OUT)
def test_weights_that_change_after_a_pass_that_leaves_modules_out(gloo, agree, what, changes, root):
    """Each pass computes with the current weights, whatever the pass before it has prefetched."""
    x = batch(dist.get_rank())[0].new_ones(4, 16) * (1 + dist.get_rank())

    def outputs(all_gather):
        net = made_of_exits(gloo, root)
        if all_gather:
            compress_fsdp(net, all_gather=all_gather)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        net(x).square().mean().backward()
        with torch.no_grad():
            LEFT_OUT[what](net, x)
        if changes == "optimizer":
            optimizer.step()
        else:
            net.load_state_dict({name: value * 1.5 for name, value in net.state_dict().items()})
        net.zero_grad()
        with torch.no_grad():
            first = net(x)
        net(x, until=2).square().mean().backward()  # a pass with gradients that leaves a module out
        optimizer.step()
        return torch.cat([first.flatten(), net(x).detach().flatten()])

    assert agree(torch.equal(outputs("raw"), outputs(None)))


def test_gathered_parameters_are_not_kept(gloo, agree, monkeypatch):
    """No memory that a pass has gathered parameters into is kept after it."""
    net, x, made = made_of_exits(gloo, True), torch.ones(4, 16), []
    allocate = CompressedAllGather.allocate

    def noting(self, *size, **options):
        tensor = allocate(self, *size, **options)
        made.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    monkeypatch.setattr(CompressedAllGather, "allocate", noting)
    compress_fsdp(net, all_gather="raw")
    with torch.no_grad():
        net(x), net(x, until=2)
    until = time.monotonic() + 20
    while any(one() is not None for one in made) and time.monotonic() < until:
        time.sleep(0.01)  # until threads have released the last one
    assert agree(len(made) >= 6 and not any(one() is not None for one in made))


def test_own_prefetching_stays_and_inference(gloo, agree):
    net, x = sharded(gloo), batch(dist.get_rank())[0]
    compress_fsdp(net, all_gather="lossless")
    net.set_modules_to_forward_prefetch([net[0], net[2]])
    want = model()(x)
    assert agree(all(torch.equal(net(x), want) for _ in range(2)))
    assert agree(len(net._get_fsdp_state()._states_to_forward_prefetch) == 2)
    with torch.inference_mode():  # torch itself cannot train such a model afterwards
        assert agree(all(torch.equal(net(x), want) for _ in range(2)))


def gradients(net, passes=1):
    x, y = batch(dist.get_rank())
    for _ in range(passes):
        torch.nn.functional.mse_loss(net(x), y).backward()
    return torch.cat([p.grad.full_tensor().flatten() for p in net.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fsdp2_gradients_that_something_reads(gloo, agree, dtype):
    """Gradients that are accumulated, or that change their type, are those of FSDP2 to the codec's error."""
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)

    def net():
        one, mesh = model(), mesh_of(gloo)
        fully_shard(one[2], mesh=mesh, mp_policy=policy)
        return fully_shard(one, mesh=mesh, mp_policy=policy)

    ours, theirs = net(), net()
    compress_fsdp(ours, "bfp:bits=16")
    got, want = gradients(ours, 3), gradients(theirs, 3)
    assert agree(torch.allclose(got, want, rtol=0, atol=1e-2 * want.abs().max()))


@pytest.fixture
def replicated(world):
    """Mesh of two replicas, each sharded over half of the ranks."""
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
    """HSDP trains as without compression to a tolerance, and replicas stay equal.

    The replicate dimension is compressed with few bits, alone or with the shards.
    """
    net = sharded(gloo, replicated["shard"])
    found = compress_fsdp(net, shards, all_reduce="bfp:bits=16", replicas=replicated.get_group("replicate"))
    assert agree(torch.allclose(train(net), train(sharded(gloo, replicated)), rtol=1e-3))
    for made in found.values():
        assert agree(type(made[-1]) is CompressedAllReduce and made[-1].wire_nbytes > 0)
    theirs = torch.cat([p.to_local().flatten() for p in net.parameters()])
    both = [torch.empty_like(theirs) for _ in range(2)]
    dist.all_gather(both, theirs, group=replicated.get_group("replicate"))
    assert agree(torch.equal(*both))


@pytest.mark.parametrize("kind", ["sharded", "replicated"])
def test_errors_stay_with_their_parameters(gloo, agree, replicated, kind):
    """Errors that are fed back belong to one parameter.

    Steps use one or the other of two parameters of one shape, and FSDP2 reduces only gradients that exist.
    """
    truth = {"large": 1e4 * of_rank(7, 640), "small": of_rank(8, 640)}
    if kind == "sharded":
        net, options = Scaled(truth), {"reduce_scatter": "bfp:bits=8", "feeds_back": True}
        fully_shard(net, mesh=mesh_of(gloo))
    else:
        net, options = (
            Scaled(truth),
            {"all_reduce": "bfp:bits=8", "replicas": replicated.get_group("replicate")},
        )
        fully_shard(net, mesh=replicated["shard"])
    (state,), *_ = compress_fsdp(net, **options).values()
    for name in ("small", "large") * 3:
        net.zero_grad()
        net(name).backward()
        grad = getattr(net, name).grad.full_tensor()
        assert agree((grad - truth[name]).abs().max() < 0.05 * truth[name].abs().max()), name
    assert agree({name.partition("/")[0] for name in state.state_dict()["errors"]} == set(truth))


@pytest.mark.parametrize("kind", ["sharded", "replicated"])
def test_fsdp2_goes_on_from_state_dicts(gloo, agree, replicated, kind):
    """After state dicts of all modules' objects are loaded, fed-back errors give the same gradient bits."""

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


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
def test_complex_parameters(gloo, agree, place, kind):
    """Complex gradients and parameters are compressed as pairs of real numbers."""

    def trained(**codecs):
        torch.manual_seed(0)
        net = fully_shard(torch.nn.Linear(64, 30, dtype=torch.complex64), mesh=mesh_of(gloo))
        states = compress_fsdp(net, **codecs, nodes=place[0])[""] if codecs else []
        net(of_rank(dist.get_rank(), 256).view(4, 64).to(torch.complex64)).abs().sum().backward()
        return net.weight.grad.full_tensor(), states

    (got, (state,)), (want, _) = trained(**{kind: "bfp:bits=12"}), trained()
    assert agree((got - want).abs().max() < 1e-2 * want.abs().max() and not torch.equal(got, want))
    assert agree(state.raw_nbytes > 2 * state.wire_nbytes > 0)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32(gloo, agree):
    state, mine = CompressedAllReduce("bfp:bits=10", gloo), of_rank(dist.get_rank(), 1000).half()
    got = torch.view_as_complex(mine.clone().view(500, 2))
    state(got)
    want = mean_by_gloo(gloo, mine)
    assert agree(got.dtype == torch.complex32 and state.raw_nbytes > state.wire_nbytes > 0)
    assert agree((torch.view_as_real(got).flatten() - want).abs().max() < 0.01 * want.abs().max())


def test_modules_with_several_groups_of_parameters(gloo, agree):
    """An error names all modules that FSDP2 does not let compress, and leaves every module as it was."""
    api = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_common")
    if not hasattr(api, "ShardPlacementResult"):
        pytest.skip("this torch has one group of parameters for a module")
    mesh = mesh_of(gloo)
    other = api.FSDPMeshInfo(mesh_of(dist.new_group(backend="gloo"), "other"), shard_mesh_dim=0)

    def net():
        made = model()
        fully_shard(made[0], mesh=mesh)
        by_shape = lambda p: api.ShardPlacementResult(None, other) if p.dim() == 1 else None  # noqa: E731
        fully_shard(made[2], mesh=mesh, shard_placement_fn=by_shape)
        return fully_shard(made, mesh=mesh)

    ours = net()
    with pytest.raises(
        ValueError, match=r"\['2'\] have several groups .* exact=\['2'\]; no module was changed"
    ):
        compress_fsdp(ours, "int8", "raw")
    assert agree(
        ours[0]._get_fsdp_state()._fsdp_param_group._reduce_scatter_comm.__module__.startswith("torch.")
    )
    assert agree(set(compress_fsdp(ours, "lossless", "raw", exact=["2"])) == {"", "0"})
    assert agree(close(train(ours), train(net())))


def test_a_wrong_codec_changes_no_module(gloo, agree):
    net = sharded(gloo)
    with pytest.raises(ValueError, match="nonsense"):
        compress_fsdp(net, "nonsense", "raw")
    for module in (net, net[0], net[2]):
        group = module._get_fsdp_state()._fsdp_param_group
        assert agree(group is None or group._all_gather_comm.__module__.startswith("torch."))
    assert agree(len(net._forward_hooks) == len(sharded(gloo)._forward_hooks))


def test_modules_to_compress(gloo, agree):
    net = sharded(gloo)
    assert agree(set(compress_fsdp(net, "int8", exact=["", "2"])) == {"0"})
    with pytest.raises(ValueError, match="no module of FSDP2"):
        compress_fsdp(model(), "int8")
    with pytest.raises(ValueError, match="need each other"):
        compress_fsdp(net, all_reduce="int8")

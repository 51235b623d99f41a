"""DDP's hook beside another backend, here gloo: values, bytes, schedules, exact parameters, copies."""

import copy
import io
import re
from contextlib import nullcontext
from itertools import chain

import numpy as np
import pytest
import torch
import torch.distributed as dist
from buckets import averaged, is_same, mean_by_gloo, of_rank
from test_conformance import batch, close, model, train
from torch.nn.parallel import DistributedDataParallel as DDP

from compcoll.codecs import codec, decode
from compcoll.torch import ErrorFeedback, compress_ddp, compressed_hook, hooks, report

pytestmark = pytest.mark.filterwarnings("default")
INT8 = 0.5 / 127


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("lossless", {}),
        ("bfp:bits=16", {"bucket_cap_mb": 0.001}),
        ("bfp:bits=16", {"find_unused_parameters": True}),
        ("bfp:bits=16", {"gradient_as_bucket_view": True}),
    ],
    ids=str,
)
def test_losses_like_those_without_a_hook(gloo, agree, place, codec, options):
    net = DDP(model(), process_group=gloo, **options)
    state = ErrorFeedback(codec, gloo, nodes=place[0])
    net.register_comm_hook(state, compressed_hook)
    got, want = train(net), train(DDP(model(), process_group=gloo, **options))
    assert agree(close(got, want) if codec == "lossless" else torch.allclose(got, want, rtol=1e-3))
    assert agree(state.levels == place[1] and state.raw_nbytes > 0)
    assert agree(bool(state.reason) == (state.levels == 1))


@pytest.mark.parametrize("codec", ["lossless", "bfp:bits=16"])
def test_accumulated_scaled_and_clipped_gradients(gloo, agree, place, codec):
    """GradScaler skips the step with an overflow on one rank, with the hook as without it."""
    nets = [DDP(model(), process_group=gloo) for _ in range(2)]
    state = ErrorFeedback(codec, gloo, nodes=place[0])
    nets[1].register_comm_hook(state, compressed_hook)
    results = [(_looped(net, overflows=2), [p.detach().clone() for p in net.parameters()]) for net in nets]
    (scales, want), (ours, got) = results
    assert agree(ours == scales and scales[2] == scales[1] / 2)
    assert agree(all(torch.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in zip(got, want, strict=True)))
    assert agree(all(is_same(gloo, p) for p in got) and state.raw_nbytes > 0)


def _looped(net, overflows):
    """Scales after each of four steps, of which one overflows on rank 0; each has two batches."""
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scales = []
    for step in range(4):
        for i in range(2):
            x, y = batch(2 * step + i)
            with nullcontext() if i else net.no_sync(), torch.autocast("cpu", torch.bfloat16):
                loss = torch.nn.functional.mse_loss(net(x).float(), y)
                if step == overflows and dist.get_rank() == 0:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales


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
    """A bucket that one rank's codec refuses has one mean on all ranks, and later buckets are unaffected."""
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
    large = torch.full((301,), 1.5 * 2.0**127)
    assert agree("zfp" in codec or "szp" in codec or torch.equal(averaged(state, large), large))


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_between_nodes(gloo, agree, place, bits, monkeypatch):
    """Each byte crosses a port once: what a node sends is at most 1.05 times codes and scales."""
    nodes, levels = place
    nodes = nodes if levels == 2 else list(range(len(nodes)))
    counted, n = [0], 200_000
    exchange, gather = dist.all_to_all_single, hooks.all_gather_single

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
    monkeypatch.setattr(hooks, "all_gather_single", counting_gather)
    state = ErrorFeedback(f"bfp:bits={bits}", gloo, nodes=nodes)
    averaged(state, of_rank(dist.get_rank(), n))
    total = torch.tensor(counted)
    dist.all_reduce(total, group=gloo)
    theory = 2 * (len(set(nodes)) - 1) * (n * bits / 8 + n / 64)
    assert agree(state.levels == levels and state.wire_nbytes == counted[0])
    assert agree(theory <= total.item() <= 1.05 * theory), (total, theory)


def lines_of_hooks(together):
    found = chain.from_iterable(report(together=together).lines.values())
    return {line.op: line for line in found if line.op.startswith("ErrorFeedback") and line.codec == "int8"}


def test_print_and_report_tell_ratio_and_error(gloo, agree, place):
    directions = "ErrorFeedback gradients", "ErrorFeedback averages"
    state, mine = ErrorFeedback("int8", gloo, nodes=place[0]), of_rank(dist.get_rank(), 50_000)
    assert agree(repr(state) == "<ErrorFeedback int8: 0 exchanges>")
    averaged(state, mine)
    before = {together: lines_of_hooks(together) for together in (False, True)}
    for _ in range(3):
        averaged(state, mine)
    for together, ranks in ((False, 1), (True, dist.get_world_size())):
        after = lines_of_hooks(together)
        calls = [after[name].calls - before[together][name].calls for name in directions]
        assert agree(calls == [3 * ranks] * 2)
        assert agree(all(after[name].wire_nbytes > before[together][name].wire_nbytes for name in directions))
    given = mine.numpy()
    error = np.linalg.norm(decode(codec("int8").encode(given)) - given) / np.linalg.norm(given)
    for line in state.lines.values():
        assert agree(0.5 * error < line.relative < 2 * error and line.calls == 4), (error, line)
    text = repr(state)
    assert agree(
        re.search(r"8 exchanges, \d+ -> \d+ bytes \(3\.\d\dx\), \d+\.\d+ s, error 0\.\d+ % of", text)
    ), text
    assert agree("% of the norm" in str(report()))


def test_values_that_are_not_finite_have_no_error_to_report(gloo, agree):
    state = ErrorFeedback("int8", gloo)
    averaged(state, torch.full((999,), float("inf")))
    assert agree("error unknown" in repr(state))


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


def test_one_line_for_ddp(gloo, agree):
    net = DDP(model(), process_group=gloo)
    state = compress_ddp(torch.compile(net, backend="eager"), "int8", exact=["4.*"])
    train(net)
    assert agree(state.group is gloo and state.raw_nbytes > 2 * state.wire_nbytes > 0)
    with pytest.raises(ValueError, match="Sequential is not a DistributedDataParallel"):
        compress_ddp(model(), "int8")


def test_exact_parameters(gloo, agree):
    net = model()
    ddp = DDP(net, process_group=gloo)
    state = ErrorFeedback("int4", gloo, exact=["4.*"], min_numel=100, module=net)
    ddp.register_comm_hook(state, compressed_hook)
    plain = DDP(model(), process_group=gloo)
    x, y = batch(0)
    for one in (ddp, plain):
        torch.nn.functional.mse_loss(one(x), y).backward()
    for (name, p), q in zip(net.named_parameters(), plain.parameters(), strict=True):
        exact = name.startswith("4.") or p.numel() < 100
        assert agree(torch.allclose(p.grad, q.grad, rtol=1e-5, atol=1e-9) == exact), name
    with pytest.raises(ValueError, match="none of the 6 parameters of module is 'norm"):
        ErrorFeedback("int4", exact="norm*", module=net)


class Tied(torch.nn.Module):
    """An embedding whose weight is that of the last layer, too."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_exact_parameters_by_any_name(gloo, agree, name):
    net = DDP(Tied(), process_group=gloo)
    state = compress_ddp(net, "int4", exact=[name])
    net(torch.arange(9)).square().mean().backward()
    assert agree(not state.state_dict()["errors"])
    with pytest.raises(ValueError, match="none of the 1 parameters of module is 'tail"):
        ErrorFeedback("int4", exact="tail.weight", module=Tied())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_gradients(gloo, agree, place, dtype):
    """Gradients of complex parameters are compressed as pairs of real numbers."""

    def gradient(codec):
        torch.manual_seed(0)
        net = DDP(torch.nn.Linear(64, 30, dtype=dtype), process_group=gloo)
        state = None if codec is None else compress_ddp(net, codec, nodes=place[0])
        values = torch.view_as_complex(of_rank(dist.get_rank(), 512, dtype.to_real()).view(4, 64, 2))
        net(values).abs().square().mean().backward()
        return net.module.weight.grad, state

    (got, state), (want, _) = gradient("bfp:bits=12"), gradient(None)
    assert agree(is_same(gloo, torch.view_as_real(got)) and state.raw_nbytes > 2 * state.wire_nbytes > 0)
    assert agree((got - want).abs().max() < 2e-3 * want.abs().max())


def test_sparse_gradients(gloo, agree):
    """Sparse gradients of an embedding equal those without a hook, beside compressed dense ones."""

    def gradients(hooks):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(50, 24, sparse=True), model())
        ddp = DDP(net, process_group=gloo)
        if hooks:
            compress_ddp(ddp, "lossless")
        ddp(torch.arange(9) + 3 * dist.get_rank()).square().mean().backward()
        return [p.grad.to_dense() for p in net.parameters()]

    assert agree(all(torch.allclose(*both) for both in zip(gradients(True), gradients(False), strict=True)))


def test_copies_of_a_model(world, agree):
    """Copies that torch makes of a model have no hook, and `compress_ddp` gives them one."""
    net = DDP(model())
    state = compress_ddp(net, "int8")
    train(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for one in (copy.deepcopy(net), torch.optim.swa_utils.AveragedModel(net).module, loaded):
        assert agree(all(map(torch.equal, one.parameters(), net.parameters())))
        again = compress_ddp(one, "int8")
        train(one)
        assert agree(again.wire_nbytes == state.wire_nbytes)
    kept, theirs = copy.deepcopy(state).state_dict(), state.state_dict()
    assert agree(kept["errors"].keys() == theirs["errors"].keys() and kept["step"] == theirs["step"] > 0)


def test_the_hook_of_another_group_is_not_copied(gloo, agree):
    state = ErrorFeedback("int8", gloo)
    with pytest.raises(ValueError, match="of another group than the default one"):
        copy.deepcopy(state)

"""The codec of a group, and its report."""

import sys
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import compcoll
import compcoll.torch
from compcoll.torch import Options, set_policy


@pytest.fixture(autouse=True)
def as_before(world):
    yield
    set_policy(None)


def new(name, options=None):
    return dist.new_group(group_desc=name, pg_options=options)


def state_of(group):
    """State of a group, or of its backend from torch 2.14 on."""
    return getattr(group, "state", None) or group._get_backend(torch.device("cpu")).state


def used(group, op):
    """Codec of a group's last kind of call of an operation."""
    return next(
        (line.codec for line in reversed(state_of(group).stats.lines.values()) if line.op == op), None
    )


def reduced(group, n=100_000, dtype=torch.float32):
    x = torch.linspace(0, 1, n, dtype=torch.float64).to(dtype)
    dist.all_reduce(x, group=group)
    return x


def test_the_default_leaves_a_node_to_mpi(world, monkeypatch):
    monkeypatch.delenv("COMPCOLL_CODEC")
    group = new("plain")
    reduced(group, 1_000_000)
    assert used(group, "Allreduce") == "-"
    assert state_of(group).policy.codec == "auto"


def test_by_name_operation_type_and_size(world):
    group = new("grads")
    set_policy(
        {
            "grads": [
                {"op": "all_reduce", "dtype": "float32", "at_least": "256K", "codec": "zfp:rate=8"},
                {"op": "all_reduce", "codec": "raw"},
            ]
        }
    )
    reduced(group, 1_000_000)
    assert used(group, "Allreduce") == "zfp:rate=8"
    reduced(group, 200_000, torch.float64)
    assert used(group, "Allreduce") == "raw"
    dist.broadcast(torch.rand(100_000), 0, group=group)
    assert used(group, "Bcast") == "lossless"
    reduced(group, 10)
    assert used(group, "Allreduce") == "-" or state_of(group).stats.lines["Allreduce", "-", "mpi"].calls == 1


def test_options_go_first(world):
    group = new("grads", Options("zfp:rate=16"))
    set_policy({"grads": "zfp:rate=8"})
    reduced(group)
    assert used(group, "Allreduce") == "zfp:rate=16"


def test_mesh_dimensions_by_name(world):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    set_policy({"dp": "zfp:rate=10"}, strict=True)
    reduced(mesh.get_group("dp"))
    assert used(mesh.get_group("dp"), "Allreduce") == "zfp:rate=10"


def test_backend_override(world):
    override = {"tp": ("compcoll", Options("int8"))}
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size(),), mesh_dim_names=("tp",), backend_override=override
    )
    reduced(mesh.get_group("tp"))
    assert used(mesh.get_group("tp"), "Allreduce") == "int8"


def test_names_that_no_group_has(world):
    with pytest.warns(UserWarning, match="no process group is called 'nobody'"):
        set_policy({"nobody": "lossless"})
    with pytest.raises(ValueError, match="no process group is called 'nobody'"):
        set_policy({"nobody": "lossless"}, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_policy({"default_pg": "lossless", "*": "lossless"})


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        ({"default_pg": "no-such"}, ValueError, "no-such"),
        ({"default_pg": {"phase": "future"}}, ValueError, "future"),
        ({"*": {"op": "allreduce", "codec": "raw"}}, ValueError, "op 'allreduce' is not one of .*all_reduce"),
        ([{"codec": "raw"}], TypeError, "not a mapping of groups' names"),
        ("zfp:speed=8", ValueError, "speed"),
        ("no/such/file.toml", OSError, "no/such/file.toml"),
    ],
    ids=str,
)
def test_what_there_is_not(world, policy, error, words):
    with pytest.raises(error, match=words):
        set_policy(policy)


def test_a_codec_for_all_groups_and_types_of_torch(world):
    set_policy("int8")
    group = new("plain")
    reduced(group)
    assert used(group, "Allreduce") == "int8"
    set_policy({"plain": {"dtype": torch.bfloat16, "codec": "raw"}})
    reduced(group, dtype=torch.bfloat16)
    assert used(group, "Allreduce") == "raw"


def test_a_policy_that_is_set_between_two_starts(world, agree):
    """Pending calls keep their policy, and the next calls with equal arguments have the new one."""
    group, values = new("between"), [torch.linspace(0, 1, 100_000) for _ in range(3)]
    works = []
    for x, codec in zip(values, ("int8", "raw", "int8"), strict=True):
        set_policy({"between": codec}, min_nbytes=0)
        works.append(dist.all_reduce(x, group=group, async_op=True))
    for work in works:
        work.wait()
    calls = {line.codec: line.calls for line in state_of(group).stats.lines.values()}
    assert agree(calls == {"int8": 2, "raw": 1})
    exact = dist.get_world_size() * torch.linspace(0, 1, 100_000)
    assert agree([torch.allclose(x, exact, rtol=1e-6) for x in values] == [False, True, False])


def test_ranks_with_different_policies(world):
    rank = dist.get_rank()
    mine, other, theirs = ("lossless", 0, "raw") if rank else ("raw", 1, "lossless")
    words = f"rank {other} has %s: '{theirs}', and rank {rank} has %s: '{mine}'$"
    with pytest.raises(compcoll.PolicyError, match=words.replace("%s", "codec of rule 1")):
        set_policy({"default_pg": mine})
    with pytest.raises(compcoll.PolicyError, match=words.replace("%s", "codec of the options")):
        new("odd", Options(mine))
    with pytest.raises(ValueError, match="no-such" if rank == 0 else "^rank 0 raised .*no-such"):
        set_policy({"default_pg": mine if rank else "no-such"})


@pytest.mark.parametrize("name", ["COMPCOLL_TABLE", "COMPCOLL_THREADS", "COMPCOLL_TIMEOUT"])
def test_a_wrong_variable_of_one_rank_is_told_to_all(world, monkeypatch, name):
    if dist.get_rank() == 1:
        monkeypatch.setenv(name, "-x")
    with pytest.raises(compcoll.PolicyError, match=f"^rank 1 raised ValueError: {name} = '-x': "):
        new("odd")
    monkeypatch.undo()
    reduced(new("plain"))


@pytest.mark.filterwarnings("ignore:compcoll. a")
def test_presets(world):
    dp, tp = new("dp"), new("tp")
    n, size = 100_000, dist.get_world_size()
    for preset, expected in (("mzhybrid", "lossless"), ("zhybrid", "bfp:bits=14")):
        set_policy(preset)
        for group, codec in ((dp, "bfp:bits=6"), (tp, expected)):
            reduced(group)
            assert used(group, "Allreduce") == codec
        outs = [torch.zeros(n) for _ in range(size)]
        dist.all_gather(outs, torch.rand(n), group=dp)
        assert used(dp, "Allgatherv") == "lossless"


@pytest.mark.filterwarnings("ignore:compcoll. a")
def test_nothing_lossy_for_what_must_stay_exact(world, agree):
    group = new("lossy", Options("zfp:rate=8", min_nbytes="64K"))
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(100_000) + rank
    dist.all_reduce(whole, group=group)
    assert agree(torch.equal(whole, torch.arange(100_000) * size + size * (size - 1) // 2))
    odd = torch.rand(100_000)
    odd[17] = float("nan")
    dist.broadcast(got := odd.clone(), 0, group=group)
    assert agree(bool(got[17].isnan()))


def test_replicas_are_the_same(world, agree):
    group = new("lossy", Options("zfp:rate=8", min_nbytes=0))
    x = torch.rand(50_001, generator=torch.Generator().manual_seed(dist.get_rank()))
    dist.all_reduce(x, group=group)
    found = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x)
    assert agree(all(torch.equal(x, other) for other in found))


def test_report(world):
    group = new("told", Options("zfp:rate=8", min_nbytes=0))
    for _ in range(3):
        reduced(group, 50_000)
    mine = compcoll.torch.report()
    line = next(line for name, lines in mine.lines.items() if "told" in name for line in lines)
    assert (line.op, line.codec, line.calls) == ("Allreduce", "zfp:rate=8", 3)
    assert line.raw_nbytes > 3 * line.wire_nbytes > 0
    assert line.codecs
    assert line.bound > 0
    together = compcoll.torch.report(together=True)
    total = next(line for name, lines in together.lines.items() if "told" in name for line in lines)
    assert total.calls == 3 * dist.get_world_size()
    assert total.wire_nbytes >= line.wire_nbytes
    assert "zfp:rate=8" in str(together)
    assert f"{dist.get_world_size()} ranks together" in str(together)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14), reason="torch keeps several backends"
)
def test_another_backend_beside_this_one(world):
    for backend in ("cpu:gloo,cuda:compcoll", "cpu:compcoll,cuda:gloo"):
        with pytest.raises(ValueError, match="names gloo"):
            dist.new_group(backend=backend)
    dist.new_group(backend="cpu:compcoll,cuda:compcoll")


def test_gradients_are_those_of_a_backward_pass(world, agree):
    group = new("training")
    set_policy({"training": {"phase": "gradients", "codec": "zfp:rate=8"}}, min_nbytes=0)
    net = DDP(torch.nn.Linear(300, 300), process_group=group)
    for _ in range(2):
        net(torch.ones(2, 300)).sum().backward()
    assert agree(used(group, "Allreduce") == "zfp:rate=8")
    metric = torch.rand(10_000, generator=torch.Generator().manual_seed(dist.get_rank()))
    exact = metric.clone()
    dist.all_reduce(metric, group=group)
    dist.all_reduce(exact)
    assert agree(torch.equal(metric, exact))


def test_callbacks_belong_to_the_phase_of_their_future(world, agree):
    """Callbacks have the phase of their future.

    Rank 0 adds its callback after the call has ended and other ranks before, all in a backward pass.
    """
    group = new("called back")
    set_policy({"called back": {"phase": "gradients", "codec": "raw"}}, min_nbytes=0)
    rank, size, sums = dist.get_rank(), dist.get_world_size(), []

    def again(future):
        dist.all_reduce(value := future.value()[0], group=group)
        return value

    def twice(grad):
        if rank == 0:
            time.sleep(0.2)  # so that the others add theirs first
        work = dist.all_reduce(grad.clone(), group=group, async_op=True)
        if rank == 0:
            work.wait()
        sums.append(work.get_future().then(again).wait())

    x = torch.ones(1000, requires_grad=True)
    x.register_hook(twice)
    x.sum().backward()
    assert agree((sums[0] == size**2).all())
    assert agree([(key[1], line.calls) for key, line in state_of(group).stats.lines.items()] == [("raw", 2)])


def test_lossy_copies_are_a_warning_once(world, agree):
    group = new("copies", Options("zfp:rate=8", min_nbytes=0))
    x, outs = torch.rand(10_000), [torch.zeros(10_000) for _ in range(dist.get_world_size())]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            dist.broadcast(x, 0, group=group)
            dist.all_gather(outs, x, group=group)
    found = [str(warning.message) for warning in seen if "changes values" in str(warning.message)]
    assert agree(len(found) == (dist.get_rank() == 0))
    named = new("named")
    set_policy({"named": {"op": "broadcast", "codec": "zfp:rate=8"}}, min_nbytes=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.broadcast(x, 0, group=named)


@pytest.mark.filterwarnings("ignore:.*set_timeout:FutureWarning")
def test_options_with_a_time_out(world):
    group = new("hurried", Options(timeout=timedelta(seconds=7)))
    assert state_of(group).timeout == 7
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=9), group)
    assert state_of(group).timeout == 9


def test_sizes_of_policies_are_those_of_what_is_reduced(world):
    size = dist.get_world_size()
    group = new("thresholds", Options("lossless", min_nbytes="64K"))
    for n in (4096, 16384):
        dist.all_reduce(torch.ones(n), group=group)
        dist.reduce_scatter_single(torch.ones(n // size), torch.ones(n // size * size), group=group)
    lines = state_of(group).stats.lines.values()
    expected = 65536 // 4 // size * size * 4
    for op, nbytes in (("Allreduce", 65536), ("Reduce_scatter_block", expected)):
        largest = {line.codec: line.largest for line in lines if line.op == op}
        assert largest["lossless" if nbytes >= 65536 else "-"] == nbytes
        assert ("lossless" in largest) == (nbytes >= 65536)
    assert "(rounding of the sum)" in str(compcoll.torch.report())


def test_report_without_a_group(world, monkeypatch):
    monkeypatch.setattr(sys.modules["compcoll.torch.report"], "all_groups", list)
    assert compcoll.torch.report(together=True).ranks == dist.get_world_size()
    monkeypatch.setattr(dist, "is_initialized", bool)
    assert compcoll.torch.report(together=True).ranks == 1


def test_more_groups_than_mpi_has_communicators(world, monkeypatch):
    def full(*_):
        raise MPI.Exception(MPI.ERR_OTHER)

    monkeypatch.setattr("compcoll.torch.make_group._create", full)
    with pytest.raises(RuntimeError, match=r"no communicators for the process group .* beside .* others"):
        new("one too many")

"""WeightSync: all ranks get the source's values, whatever they did to theirs; later syncs send little."""

import pytest
import torch
import torch.distributed as dist

from compcoll import FrameError
from compcoll.torch import WeightSync, weight_sync


class Model(torch.nn.Module):
    """Parameters and buffers of several types, one of them not contiguous."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.big = torch.nn.Parameter(torch.randn(700, 1001).mul(0.02).bfloat16())
        self.turned = torch.nn.Parameter(torch.randn(300, 200).T)
        self.one = torch.nn.Parameter(torch.tensor(float(seed)))
        self.tied = self.big
        self.register_buffer("count", torch.tensor([seed, 3]))
        self.register_buffer("mask", torch.rand(1000) < 0.5)
        self.register_buffer("empty", torch.zeros(0, 3))


@pytest.fixture(params=["gloo", "ours"])
def group(request):
    return request.getfixturevalue(request.param)


def train(model: Model, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            chosen = torch.rand(parameter.shape, generator=generator) < 0.02
            parameter.copy_(torch.where(chosen, parameter * 1.01, parameter))
    model.count += 1
    model.mask[seed % 1000] ^= True


def same(model: Model, reference: Model) -> bool:
    pairs = zip(model.state_dict().values(), reference.state_dict().values(), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_later_syncs_send_differences(group, agree):
    rank, src = dist.get_rank(), dist.get_world_size() - 1
    model, reference = Model(rank), Model(src)
    sync = WeightSync(model, src, group)
    for step in range(4):
        if rank != src:
            with torch.no_grad():
                model.big.fill_(float("nan"))
        report = sync.sync()
        assert agree(same(model, reference))
        assert agree(report.whole == (step == 0) and report.number == step + 1)
        assert agree(report.wire_nbytes < report.raw_nbytes / (1 if step == 0 else 8))
        assert agree(report.base_nbytes == report.raw_nbytes > 2 * 700 * 1001)
        train(reference, step)
        if rank == src:
            train(model, step)


def test_lost_values(gloo, agree, monkeypatch):
    """A damaged message raises on its receiver, and the next sync is whole."""
    rank, last, reference = dist.get_rank(), dist.get_world_size() - 1, Model(0)
    model = Model(rank)
    sync = WeightSync(model, 0, gloo)
    sync.sync()
    train(reference, 1)
    if rank == 0:
        train(model, 1)
    decode, failed = sync._decode, False
    if rank == last:
        monkeypatch.setattr(sync, "_decode", lambda k, data: decode(k, data ^ (data == data[100])))
    try:
        sync.sync()
    except FrameError:
        failed = True
    monkeypatch.undo()
    assert agree(failed == (rank == last))
    assert agree(sync.sync().whole)
    assert agree(same(model, reference))


def test_a_source_that_fails(gloo, agree, monkeypatch):
    rank = dist.get_rank()
    model = Model(rank)
    sync = WeightSync(model, 0, gloo)
    sync.sync()

    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(weight_sync.delta, "encode", fail)
    with pytest.raises(RuntimeError, match="could not encode"):
        sync.sync()
    monkeypatch.undo()
    assert agree(sync.sync().whole)
    assert agree(same(model, Model(0)))


def test_wrong_arguments(gloo, agree):
    rank = dist.get_rank()
    sync = WeightSync([torch.zeros(3 + (rank == 1))], 0, gloo)
    with pytest.raises(ValueError, match="rank 1 has tensors of other names, shapes"):
        sync.sync()
    with pytest.raises(ValueError, match="no tensors"):
        WeightSync([], 0, gloo)
    with pytest.raises(ValueError, match="not in the group"):
        WeightSync([torch.zeros(3)], 99, gloo)
    with pytest.raises(ValueError, match="not in the group"):
        WeightSync([torch.zeros(3)], 0, dist.GroupMember.NON_GROUP_MEMBER)


def test_names_decide_where_values_go(gloo, agree):
    """Names match tensors, in any order and wrapped or not, and names that differ are an error."""
    rank, names = dist.get_rank(), ["a", "b", "c"]
    tensors = {name: torch.full((5,), rank * 10.0 + k) for k, name in enumerate(names)}
    WeightSync(dict(sorted(tensors.items(), reverse=rank == 1)), 0, gloo).sync()
    assert agree([tensors[name][0].item() for name in names] == [0, 1, 2])
    model, wrapped = Model(rank), torch.nn.ModuleDict()
    wrapped["module"] = model
    WeightSync(wrapped if rank else model, 0, gloo).sync()
    assert agree(same(model, Model(0)))
    with pytest.raises(ValueError, match="rank 1 has tensors of other names"):
        WeightSync({"a" if rank == 1 else "b": torch.zeros(5)}, 0, gloo).sync()
    with pytest.raises(ValueError, match="the same name"):
        WeightSync({"module.a": torch.zeros(5), "a": torch.zeros(5)}, 0, gloo)


def assigned(model, seed):
    """Assign other tensors with equal names; the two tied ones stay tied."""
    model.load_state_dict(Model(seed).state_dict(), assign=True)
    model.tied = model.big


def replaced(model, seed):
    """Replace a tensor by one of another shape and type."""
    model.one = torch.nn.Parameter(torch.full((3, 5), float(seed), dtype=torch.float16))


def added(model, seed):
    model.more = torch.nn.Linear(7, 7, device="meta").to_empty(device="cpu")
    torch.nn.init.constant_(model.more.weight, seed)
    torch.nn.init.constant_(model.more.bias, -seed)


def removed(model, seed):
    del model.turned


@pytest.mark.parametrize("change", [assigned, replaced, added, removed])
def test_tensors_may_be_others_by_the_next_sync(gloo, agree, change):
    rank = dist.get_rank()
    model, reference = Model(rank), Model(0)
    sync = WeightSync(model, 0, gloo)
    sync.sync()
    change(model, 7 + rank)
    change(reference, 7)
    report = sync.sync()
    assert agree(report.whole == (change is not assigned))
    assert agree(same(model, reference) and report.tensors == len([*model.parameters(), *model.buffers()]))
    train(reference, 1)
    if rank == 0:
        train(model, 1)
    assert agree(not sync.sync().whole and same(model, reference))


def test_one_rank_with_other_tensors_than_before(gloo, agree):
    """Other tensors on one rank are an error on all ranks before any change, and the next sync is whole."""
    rank = dist.get_rank()
    model, reference = Model(rank), Model(0)
    sync = WeightSync(model, 0, gloo)
    sync.sync()
    if rank == 0:
        added(model, 1)
    with pytest.raises(ValueError, match="tensors of other names, shapes or dtypes"):
        sync.sync()
    if rank == 0:
        del model.more
    assert agree(sync.sync().whole and same(model, reference))


def test_a_receiver_on_the_device_meta(gloo, agree):
    """A tensor on the device meta is an error on all ranks until it has memory, and then syncs."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = torch.nn.Linear(50, 40, device="meta" if rank == last else "cpu")
    sync = WeightSync(model, 0, gloo)
    message = "tensor bias is on the device meta" if rank == last else f"rank {last} cannot list its tensors"
    with pytest.raises(ValueError, match=message):
        sync.sync()
    if rank == last:
        model.to_empty(device="cpu")
    sync.sync()
    values = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    theirs = values.clone()
    dist.broadcast(theirs, 0, group=gloo)
    assert agree(torch.equal(values, theirs))


def test_tensors_that_cannot_be_listed(gloo, agree):
    """A rank that cannot list its tensors is an error on all ranks."""
    rank = dist.get_rank()
    tensors = {"a": torch.full((3,), float(rank))}
    sync = WeightSync(tensors, 0, gloo)
    if rank == 1:
        tensors["module.a"] = tensors["a"]
    with pytest.raises(ValueError, match="the same name" if rank == 1 else "rank 1 cannot list"):
        sync.sync()
    tensors.pop("module.a", None)
    sync.sync()
    assert agree(bool((tensors["a"] == 0).all()))


@pytest.mark.parametrize("once", [True, False], ids=["iterator", "list"])
def test_an_iterator_is_read_once_and_a_list_each_time(gloo, agree, once):
    rank = dist.get_rank()
    first, second = torch.full((3,), float(rank)), torch.full((3,), 5.0 + rank)
    tensors = [first]
    sync = WeightSync(iter(tensors) if once else tensors, 0, gloo)
    tensors[0] = second
    sync.sync()
    assert agree([first[0], second[0]] == ([0, 5 + rank] if once else [rank, 5]))


def test_empty_tensors_alone(gloo, agree):
    sync = WeightSync({"a": torch.empty(0), "b": torch.empty(3, 0)}, 0, gloo)
    assert agree(
        [(report.whole, report.wire_nbytes) for report in (sync.sync(), sync.sync())]
        == [(True, 0), (False, 0)]
    )


def test_fsdp(gloo, agree):
    """Shards of FSDP2 modules are synchronised between replicas, and modules then compute with new values."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size, rank = dist.get_world_size(), dist.get_rank()
    shards = 2 if size % 2 == 0 and size > 2 else 1
    mesh = init_device_mesh("cpu", (size // shards, shards), mesh_dim_names=("replica", "shard"))
    replicas = dist.new_subgroups_by_enumeration(
        [[k + shards * r for r in range(size // shards)] for k in range(shards)], backend="gloo"
    )[0]

    def made(seed: int) -> torch.nn.Sequential:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 6))

    def step(model: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)

    model, reference, x = made(rank // shards), made(0), torch.linspace(-1, 1, 60).reshape(2, 30)
    fully_shard(model[0], mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    sync = WeightSync(model, rank % shards, replicas)
    for number in range(3):
        assert agree(sync.sync().whole == (number == 0))
        with torch.no_grad():
            assert agree(torch.equal(model(x), reference(x)))
        step(reference)
        if rank < shards:
            model.reshard()
            step(model)


def test_a_receiver_in_place_of_another(gloo, world, agree):
    """A receiver can leave, and a new one can join: the first sync with it is whole, and the next is not."""
    size, rank, last = dist.get_world_size(), dist.get_rank(), dist.get_world_size() - 1
    model, reference = Model(rank), Model(0)
    sync = WeightSync(model, 0, gloo)
    sync.sync()
    train(reference, 1)
    if rank == 0:
        train(model, 1)
    few = dist.new_group(list(range(size - 1)), backend="gloo")  # the last rank has left
    if rank != last and size > 2:
        sync.use(few)
        assert not sync.sync().whole
    if rank == last:
        del sync
        model = Model(9)
        sync = WeightSync(model, 0, gloo)
    else:
        sync.use(gloo)
    report = sync.sync()
    assert agree(report.whole and f"rank {last} has not" in report.reason)
    assert agree(same(model, reference))
    sync.use(world)  # continue in another group
    assert agree(not sync.sync().whole and same(model, reference))

"""Tensors on a GPU, or on the tests' device that stands for one: results, and copies through the host."""

import pytest
import torch
import torch.distributed as dist
from test_collectives import ALL_GATHER_SINGLE, CASES, REDUCE_SCATTER_SINGLE, Case, packed, run, same, values

# These tests use a lossy codec for broadcasts on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:compcoll. a :UserWarning")

TYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.bool,
    torch.complex64,
]
SIZES = [0, 1, 7, 3001]


def average(case, **how):
    run(dist.all_reduce, case.mine(), dist.ReduceOp.AVG, **how)


OPERATIONS = [*CASES, average]


def noise(n, dtype, rank, seed=0):
    given = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(n, generator=given).cumsum(0).to(dtype)


def mine(n, dtype=torch.float32, seed=0):
    return noise(n, dtype, dist.get_rank(), seed)


def on_host(how, n, dtype, given, **more):
    """Tensors of an operation after its end: its results and its inputs."""
    case = Case(n, dtype, packed, dist.get_rank(), dist.get_world_size(), given=given)
    how(case, **more)
    return case.made


def on_device(gpu, how, n, dtype, given, **more):
    """Tensors of an operation on the device, read in the order of the caller's stream."""
    case = Case(n, dtype, gpu.tensor, dist.get_rank(), dist.get_world_size(), given=given)
    how(case, **more)
    kept = [gpu.copy_later(x) for x in case.made]
    gpu.synchronize()
    return kept


def copied(gpu, tensor):
    """Values of a tensor, in the order of the caller's stream."""
    into = gpu.copy_later(tensor)
    gpu.synchronize()
    return into


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_like_the_host(ours, gpu, agree, how, dtype):
    """Results on the device equal those on the host, which other tests compare with gloo."""
    if how is average and dtype == torch.bool:
        pytest.skip("there is no average of truth values")
    for n, later in ((0, False), (7, True), (3001, False), (3001, True)):
        want = on_host(how, n, dtype, values, group=ours, later=False)
        got = on_device(gpu, how, n, dtype, values, group=ours, later=later)
        assert agree(same(got, want)), (n, later, got, want)


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_compressed_values_stay_on_the_device(lossy, gpu, agree, how):
    """Compressed values stay on the device.

    The codec is lossy, so that values on another way would have other bits.
    """
    want = on_host(how, 6000, torch.float32, noise, group=lossy, later=False)
    got = on_device(gpu, how, 6000, torch.float32, noise, group=lossy, later=True)
    assert agree(same(got, want) and gpu.launched is not False)


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_small_ones_go_through_the_host(world, gpu, agree, how):
    """Small tensors go through the host and MPI, without a kernel."""
    want = on_host(how, 50, torch.float32, noise, group=world, later=False)
    got = on_device(gpu, how, 50, torch.float32, noise, group=world, later=False)
    assert agree(same(got, want) and not gpu.launched)


# -- memory


def test_a_part_gathered_in_place(lossy, gpu, agree):
    """A part is gathered in place, as FSDP2 does."""
    n, rank, size = 3000, dist.get_rank(), dist.get_world_size()
    want = torch.zeros(n * size)
    want[n * rank : n * (rank + 1)] = mine(n)
    got = gpu.tensor(want)
    for whole_one in (want, got):
        ALL_GATHER_SINGLE(whole_one, whole_one[n * rank : n * (rank + 1)], group=lossy)
    assert agree(same([copied(gpu, got)], [want]))
    for whole_one in (want, got):
        outs = list(whole_one.split(n))
        dist.all_gather(outs, outs[rank], group=lossy)
    assert agree(same([copied(gpu, got)], [want]))


def test_memory_that_overlaps(ours, gpu, agree):
    """Overlapping inputs and outputs give the host's results: inputs are copied on the device first."""
    n, size = 3000, dist.get_world_size()
    given = mine(n * size)
    for host in (given.clone(), given.clone().flip(0)):
        both = host, gpu.tensor(host)
        for x in both:
            dist.all_to_all_single(x, x, group=ours)
        assert agree(same([copied(gpu, both[1])], [both[0]]))
        for x in both:
            REDUCE_SCATTER_SINGLE(x[100 : 100 + n], x, group=ours)
        assert agree(same([copied(gpu, both[1])], [both[0]]))
        for x in both:
            dist.all_gather([x[n * i : n * (i + 1)] for i in range(size)], x[5 : 5 + n], group=ours)
        assert agree(same([copied(gpu, both[1])], [both[0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_gaps(lossy, gpu, agree, dtype):
    """Tensors with gaps are packed on the device, and nothing is written between their elements."""
    room = mine(3 * 3000, dtype).view(3000, 3)
    both = room.clone(), gpu.tensor(room)
    for x in both:
        dist.all_reduce(x[:, 1], dist.ReduceOp.AVG, group=lossy)
        dist.broadcast(x[:, 0], 1, group=lossy)
    assert agree(same([copied(gpu, both[1])], [both[0]]))


@pytest.mark.skipif(not hasattr(dist.ReduceOp, "factor"), reason="this torch does not tell factors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scaled_sums(lossy, gpu, agree, dtype):
    scaled = dist._make_nccl_premul_sum(0.5)
    given = mine(3000 * dist.get_world_size(), dtype)
    both = given.clone(), gpu.tensor(given)
    parts = torch.zeros(3000, dtype=dtype), gpu.tensor(torch.zeros(3000, dtype=dtype))
    for x, part in zip(both, parts, strict=True):
        REDUCE_SCATTER_SINGLE(part, x, scaled, group=lossy)
    assert agree(same([copied(gpu, x) for x in (both[1], parts[1])], [given, parts[0]]))
    for x in both:
        dist.all_reduce(x, scaled, group=lossy)
    assert agree(same([copied(gpu, both[1])], [both[0]]))


def test_host_and_device_in_one_call(lossy, gpu, agree):
    """Some ranks may have the host's tensors and others a device's, but a rank may not mix them in a list."""
    size = dist.get_world_size()
    given = mine(3000)
    dist.all_reduce(want := given.clone(), group=lossy)
    got = gpu.tensor(given) if dist.get_rank() % 2 else given.clone()
    dist.all_reduce(got, group=lossy)
    assert agree(same([copied(gpu, got)], [want]))
    outs = [torch.zeros(3000) if i % 2 else gpu.tensor(torch.zeros(3000)) for i in range(size)]
    with pytest.raises(ValueError, match="on one device"):
        dist.all_gather(outs, gpu.tensor(given), group=lossy)


def test_coalesced(lossy, gpu, agree):
    given = [mine(n, seed=n) for n in (5, 0, 6000)]
    both = [x.clone() for x in given], [gpu.tensor(x) for x in given]
    for tensors in both:
        with dist._coalescing_manager(lossy, async_ops=True) as manager:
            for x in tensors:
                dist.all_reduce(x, group=lossy)
        manager.wait()
    assert agree(same([copied(gpu, x) for x in both[1]], both[0]))


# -- messages


@pytest.mark.parametrize(("group", "dtype"), [("world", torch.bool), ("ours", torch.bfloat16)], ids=str)
def test_messages(request, gpu, agree, group, dtype):
    group = request.getfixturevalue(group)
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        out, into = gpu.tensor(values(n, dtype, rank)), gpu.tensor(torch.zeros(n, dtype=dtype))
        sent = dist.isend(out, (rank + 1) % size, group=group, tag=3)
        dist.recv(into, (rank - 1) % size, group=group, tag=3)
        sent.wait()
        assert agree(same([copied(gpu, into)], [values(n, dtype, (rank - 1) % size)]))
        sent = dist.isend(into, (rank - 1) % size, group=group)
        received = dist.irecv(back := gpu.tensor(torch.zeros(n, dtype=dtype)), (rank + 1) % size, group=group)
        received.wait()
        sent.wait()
        assert agree(same([copied(gpu, back)], [values(n, dtype, rank)]))

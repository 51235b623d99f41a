"""Tensors on a GPU, for which the tests' device stands: results, and what stays on the device."""

import pytest
import torch
import torch.distributed as dist
from test_collectives import ALL_GATHER_SINGLE, REDUCE_SCATTER_SINGLE, values

# A lossy codec for broadcasts is what these tests are about.
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
SIZES = [0, 1, 7, 9001]


# -- each operation with what it is given, and where its results go; tensors of the host


def run(op, *args, group, later, **more):
    """Call an operation of torch's, and wait for it if it runs beside."""
    work = op(*args, group=group, async_op=later, **more)
    if later:
        work.wait()


def _all_reduce(mine, n, size):
    return [], [mine(n)], lambda ins, outs, **how: run(dist.all_reduce, *outs, **how)


def _average(mine, n, size):
    return [], [mine(n)], lambda ins, outs, **how: run(dist.all_reduce, *outs, dist.ReduceOp.AVG, **how)


def _reduce(mine, n, size):
    return [], [mine(n)], lambda ins, outs, **how: run(dist.reduce, *outs, size - 1, **how)


def _broadcast(mine, n, size):
    return [], [mine(n)], lambda ins, outs, **how: run(dist.broadcast, *outs, size - 1, **how)


def _all_gather(mine, n, size):
    outs = [torch.zeros_like(mine(n)) for _ in range(size)]
    return [mine(n)], outs, lambda ins, outs, **how: run(dist.all_gather, outs, *ins, **how)


def _all_gather_single(mine, n, size):
    return (
        [mine(n)],
        [torch.zeros_like(mine(n * size))],
        lambda i, o, **how: run(ALL_GATHER_SINGLE, *o, *i, **how),
    )


def _gather(mine, n, size):
    root = dist.get_rank() == 0
    outs = [torch.zeros_like(mine(n)) for _ in range(size)] if root else []
    return [mine(n)], outs, lambda i, o, **how: run(dist.gather, *i, o if root else None, 0, **how)


def _scatter(mine, n, size):
    root = dist.get_rank() == size - 1
    ins = [mine(n, i) for i in range(size)] if root else []
    return (
        ins,
        [torch.zeros_like(mine(n))],
        lambda i, o, **how: run(dist.scatter, *o, i if root else None, size - 1, **how),
    )


def _reduce_scatter(mine, n, size):
    ins = [mine(n, i) for i in range(size)]
    return ins, [torch.zeros_like(mine(n))], lambda i, o, **how: run(dist.reduce_scatter, *o, i, **how)


def _reduce_scatter_single(mine, n, size):
    return (
        [mine(n * size)],
        [torch.zeros_like(mine(n))],
        lambda i, o, **how: run(REDUCE_SCATTER_SINGLE, *o, *i, **how),
    )


def _all_to_all_single(mine, n, size):
    ins, outs = [mine(n * size)], [torch.zeros_like(mine(n * size))]
    return ins, outs, lambda i, o, **how: run(dist.all_to_all_single, *o, *i, **how)


def _all_to_all_uneven(mine, n, size):
    rank = dist.get_rank()
    count = lambda i, j: 0 if (i, j) == (size - 1, 0) else n + i + 2 * j  # noqa: E731
    sizes, theirs = [count(rank, j) for j in range(size)], [count(i, rank) for i in range(size)]
    ins, outs = [mine(sum(sizes))], [torch.zeros_like(mine(sum(theirs)))]
    return ins, outs, lambda i, o, **how: run(dist.all_to_all_single, *o, *i, theirs, sizes, **how)


OPERATIONS = [
    _all_reduce,
    _average,
    _reduce,
    _broadcast,
    _all_gather,
    _all_gather_single,
    _gather,
    _scatter,
    _reduce_scatter,
    _reduce_scatter_single,
    _all_to_all_single,
    _all_to_all_uneven,
]


def on_device(gpu, how, mine, n, **more):
    """The results of an operation on the device, and what is left of what it was given."""
    ins, outs, call = how(mine, n, dist.get_world_size())
    ins, outs = [gpu.tensor(x) for x in ins], [gpu.tensor(x) for x in outs]
    call(ins, outs, **more)
    kept = [gpu.copy_later(x) for x in (*outs, *ins)]
    gpu.synchronize()
    return kept


def on_host(how, mine, n, **more):
    ins, outs, call = how(mine, n, dist.get_world_size())
    call(ins, outs, **more)
    return [*outs, *ins]


def same(got, want):
    return all(g.dtype == w.dtype and torch.equal(g, w) for g, w in zip(got, want, strict=True))


def whole(dtype):
    return lambda n, seed=0: values(n, dtype, dist.get_rank(), seed)


def noise(dtype):
    def mine(n, seed=0):
        given = torch.Generator().manual_seed(100 * seed + dist.get_rank())
        return torch.randn(n, generator=given).cumsum(0).to(dtype)

    return mine


def copied(gpu, tensor):
    """A tensor's values, in the order of the caller's stream."""
    into = gpu.copy_later(tensor)
    gpu.synchronize()
    return into


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_like_the_host(ours, gpu, agree, how, dtype):
    """Which is compared with gloo elsewhere."""
    if how is _average and dtype == torch.bool:
        pytest.skip("there is no average of truth values")
    for n, later in ((0, False), (1, True), (7, False), (9001, False), (9001, True)):
        want = on_host(how, whole(dtype), n, group=ours, later=False)
        got = on_device(gpu, how, whole(dtype), n, group=ours, later=later)
        assert agree(same(got, want)), (n, later, got, want)


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_compressed_values_stay_on_the_device(lossy, gpu, agree, how):
    """Lossy ones, so that what went another way would have other bits."""
    dtype = torch.float32
    want = on_host(how, noise(dtype), 20_000, group=lossy, later=False)
    got = on_device(gpu, how, noise(dtype), 20_000, group=lossy, later=True)
    assert agree(same(got, want) and gpu.device.launches)


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_small_ones_go_through_the_host(world, gpu, agree, how):
    """As MPI carries them out."""
    want = on_host(how, noise(torch.float32), 50, group=world, later=False)
    got = on_device(gpu, how, noise(torch.float32), 50, group=world, later=False)
    assert agree(same(got, want) and not gpu.device.launches)


# -- memory


def test_a_part_gathered_in_place(lossy, gpu, agree):
    """As FSDP2 does it."""
    n, rank, size = 9000, dist.get_rank(), dist.get_world_size()
    want = torch.zeros(n * size)
    want[n * rank : n * (rank + 1)] = noise(torch.float32)(n)
    got = gpu.tensor(want)
    for whole_one in (want, got):
        ALL_GATHER_SINGLE(whole_one, whole_one[n * rank : n * (rank + 1)], group=lossy)
    assert agree(same([copied(gpu, got)], [want]))
    for whole_one in (want, got):
        outs = list(whole_one.split(n))
        dist.all_gather(outs, outs[rank], group=lossy)
    assert agree(same([copied(gpu, got)], [want]))


def test_memory_that_overlaps(ours, gpu, agree):
    """What is read and written at once is copied first, on the device."""
    n, size = 9000, dist.get_world_size()
    given = noise(torch.float32)(n * size)
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
    room = noise(dtype)(3 * 9000).view(9000, 3)
    both = room.clone(), gpu.tensor(room)
    for x in both:
        dist.all_reduce(x[:, 1], dist.ReduceOp.AVG, group=lossy)
        dist.broadcast(x[:, 0], 1, group=lossy)
    assert agree(same([copied(gpu, both[1])], [both[0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scaled_sums(lossy, gpu, agree, dtype):
    scaled = dist._make_nccl_premul_sum(0.5)
    given = noise(dtype)(9000 * dist.get_world_size())
    both = given.clone(), gpu.tensor(given)
    parts = torch.zeros(9000, dtype=dtype), gpu.tensor(torch.zeros(9000, dtype=dtype))
    for x, part in zip(both, parts, strict=True):
        REDUCE_SCATTER_SINGLE(part, x, scaled, group=lossy)
    assert agree(same([copied(gpu, x) for x in (both[1], parts[1])], [given, parts[0]]))
    for x in both:
        dist.all_reduce(x, scaled, group=lossy)
    assert agree(same([copied(gpu, both[1])], [both[0]]))


def test_host_and_device_in_one_call(lossy, gpu, agree):
    """On different ranks; one rank has one device."""
    size = dist.get_world_size()
    given = noise(torch.float32)(9000)
    dist.all_reduce(want := given.clone(), group=lossy)
    got = gpu.tensor(given) if dist.get_rank() % 2 else given.clone()
    dist.all_reduce(got, group=lossy)
    assert agree(same([copied(gpu, got)], [want]))
    outs = [torch.zeros(9000) if i % 2 else gpu.tensor(torch.zeros(9000)) for i in range(size)]
    with pytest.raises(ValueError, match="on one device"):
        dist.all_gather(outs, gpu.tensor(given), group=lossy)


def test_coalesced(lossy, gpu, agree):
    given = [noise(torch.float32)(n, n) for n in (5, 0, 20_000)]
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

"""Tensors on a GPU, for which the tests' device stands: results, order, and what stays on the device."""

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from standin import Gpu
from test_collectives import ALL_GATHER_SINGLE, REDUCE_SCATTER_SINGLE, values

import compcoll.torch
from compcoll.devices.memory import DeviceArray
from compcoll.torch.tensors import Host

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
SIZES = [0, 1, 7, 40_013]


@pytest.fixture(scope="session")
def library():
    """The executor of device code, compiled by one rank for all."""
    from executor import build

    comm = MPI.COMM_WORLD
    library = comm.bcast(build() if comm.rank == 0 else None)
    if library is None:
        pytest.skip("needs g++ on x86-64")
    return library


@pytest.fixture
def gpu(library, monkeypatch, world):
    """A device of which nobody gives MPI an address, or takes its memory for the host's."""
    gpu = Gpu(library, dist.get_rank())
    monkeypatch.setattr("compcoll.torch.gpu.of", gpu.of)
    monkeypatch.setattr(DeviceArray, "__cuda_array_interface__", property(_refuse))
    monkeypatch.setattr(DeviceArray, "__array__", _refuse)
    made = Host.__init__

    def on_host(self, tensor, **how):
        assert gpu.of(tensor) is None
        made(self, tensor, **how)

    monkeypatch.setattr(Host, "__init__", on_host)
    yield gpu
    for core in compcoll.torch.living.cores():
        core.flush()
    assert gpu.device.sound()


def _refuse(*args):
    raise AssertionError("memory of the device was taken for the host's")


@pytest.fixture(scope="session")
def lossy(world):
    return dist.new_group(pg_options=compcoll.torch.Options("zfp:rate=8", min_nbytes=0))


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
    return [mine(n)], [torch.zeros_like(mine(n * size))], lambda i, o, **how: run(ALL_GATHER_SINGLE, *o, *i, **how)


def _gather(mine, n, size):
    root = dist.get_rank() == 0
    outs = [torch.zeros_like(mine(n)) for _ in range(size)] if root else []
    return [mine(n)], outs, lambda i, o, **how: run(dist.gather, *i, o if root else None, 0, **how)


def _scatter(mine, n, size):
    root = dist.get_rank() == size - 1
    ins = [mine(n, i) for i in range(size)] if root else []
    return ins, [torch.zeros_like(mine(n))], lambda i, o, **how: run(
        dist.scatter, *o, i if root else None, size - 1, **how
    )  # fmt: skip


def _reduce_scatter(mine, n, size):
    ins = [mine(n, i) for i in range(size)]
    return ins, [torch.zeros_like(mine(n))], lambda i, o, **how: run(dist.reduce_scatter, *o, i, **how)


def _reduce_scatter_single(mine, n, size):
    return [mine(n * size)], [torch.zeros_like(mine(n))], lambda i, o, **how: run(REDUCE_SCATTER_SINGLE, *o, *i, **how)


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
    _all_reduce, _average, _reduce, _broadcast, _all_gather, _all_gather_single, _gather, _scatter,
    _reduce_scatter, _reduce_scatter_single, _all_to_all_single, _all_to_all_uneven,
]  # fmt: skip


def on_device(gpu, how, mine, n, **more):
    """The results of an operation on the device, and what is left of what it was given."""
    ins, outs, call = how(mine, n, dist.get_world_size())
    ins, outs = [gpu.tensor(x) for x in ins], [gpu.tensor(x) for x in outs]
    call(ins, outs, **more)
    kept = [torch.empty(x.shape, dtype=x.dtype) for x in (*outs, *ins)]

    def keep():
        for into, x in zip(kept, (*outs, *ins), strict=True):
            into.copy_(x)

    gpu.do(keep)  # in the order of the caller's stream
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


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_like_the_host(ours, gpu, agree, how, dtype):
    """Which is compared with gloo elsewhere."""
    if how is _average and dtype == torch.bool:
        pytest.skip("there is no average of truth values")
    for n in SIZES:
        want = on_host(how, whole(dtype), n, group=ours, later=False)
        for later in (False, True):
            got = on_device(gpu, how, whole(dtype), n, group=ours, later=later)
            assert agree(same(got, want)), (n, later, got, want)


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_like_gloo(ours, gloo, gpu, agree, how):
    if how is _average:
        pytest.skip("gloo has no average")
    want = on_host(how, whole(torch.float32), 5003, group=gloo, later=False)
    assert agree(same(on_device(gpu, how, whole(torch.float32), 5003, group=ours, later=True), want))


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_compressed_values_stay_on_the_device(lossy, gpu, agree, how):
    """Lossy ones, so that what went another way would have other bits."""
    dtype = torch.float32
    want = on_host(how, noise(dtype), 20_000, group=lossy, later=False)
    for later in (False, True):
        got = on_device(gpu, how, noise(dtype), 20_000, group=lossy, later=later)
        assert agree(same(got, want))
    assert agree(gpu.copies == 0)
    assert agree(gpu.device.launches)


@pytest.mark.parametrize("how", OPERATIONS, ids=lambda f: f.__name__)
def test_small_ones_go_through_the_host(world, gpu, agree, how):
    """As MPI carries them out."""
    want = on_host(how, noise(torch.float32), 50, group=world, later=False)
    for later in (False, True):
        got = on_device(gpu, how, noise(torch.float32), 50, group=world, later=later)
        assert agree(same(got, want))
    assert agree(not gpu.device.launches)

"""Every collective against gloo's, in the same ranks."""

import pytest
import torch
import torch.distributed as dist

from compcoll.torch.work import Work

TYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
#: Names of these operations since torch 2.13, and before.
ALL_GATHER_SINGLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER_SINGLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
SIZES = [0, 1, 7, 40_013]


def values(n, dtype, rank, seed=0):
    """Small whole numbers, whose sums are exact in every type."""
    given = torch.Generator().manual_seed(100 * seed + rank)
    whole = torch.randint(0, 4, (n,), generator=given)
    if dtype.is_complex:
        return torch.complex(whole.float(), whole.flip(0).float()).to(dtype)
    return (whole % 2 if dtype == torch.bool else whole).to(dtype)


def spaced(tensor):
    """Copy of a tensor with gaps between its values."""
    room = torch.zeros(tensor.numel(), 3, dtype=tensor.dtype)
    room[:, 1] = tensor
    return room[:, 1]


def run(op, /, *args, group, later, **more):
    """Call an operation of torch, and wait for it if it is asynchronous."""
    work = op(*args, group=group, async_op=later, **more)
    if later:
        work.wait()
        # From 2.14 on, torch returns a holder that needs only `wait` of a Work.
        assert not isinstance(work, Work) or work.is_completed()


class Case:
    """Tensors of an operation, each in a layout, with this rank's values.

    Attributes
    ----------
    made : list of Tensor
        Tensors that the operation reads or writes.
    """

    def __init__(self, n, dtype, layout, rank, size, wide=None, given=values):
        self.n, self.dtype, self.layout, self.rank, self.size = n, wide or dtype, layout, rank, size
        self.values, self.made = lambda n, seed: given(n, dtype, rank, seed).to(self.dtype), []

    def keep(self, tensor):
        self.made.append(tensor)
        return tensor

    def mine(self, n=None, seed=0):
        return self.keep(self.layout(self.values(self.n if n is None else n, seed)))

    def room(self, n=None):
        return self.keep(self.layout(torch.zeros(self.n if n is None else n, dtype=self.dtype)))

    def rooms(self):
        return [self.room() for _ in range(self.size)]


def all_reduce(case, **how):
    run(dist.all_reduce, x := case.mine(), **how)
    return [x]


def all_reduce_aliased(case, **how):
    """all_reduce of a tensor whose memory is a part of another tensor."""
    whole = case.mine(2 * case.n)
    run(dist.all_reduce, whole[: case.n], **how)
    return [whole]


def reduce(case, **how):
    run(dist.reduce, x := case.mine(), case.size - 1, **how)
    return [x] if case.rank == case.size - 1 else []


def broadcast(case, **how):
    run(dist.broadcast, x := case.mine(), case.size - 1, **how)
    return [x]


def all_gather(case, **how):
    run(dist.all_gather, outs := case.rooms(), case.mine(), **how)
    return outs


def all_gather_single(case, **how):
    out = case.room(case.n * case.size).contiguous()
    run(ALL_GATHER_SINGLE, out, case.mine().contiguous(), **how)
    return [out]


def gather(case, **how):
    outs = case.rooms() if case.rank == 0 else None
    run(dist.gather, case.mine(), outs, 0, **how)
    return outs or []


def scatter(case, **how):
    blocks = [case.mine(seed=i) for i in range(case.size)] if case.rank == case.size - 1 else None
    run(dist.scatter, out := case.room(), blocks, case.size - 1, **how)
    return [out]


def reduce_scatter_single(case, **how):
    out = case.room().contiguous()
    run(REDUCE_SCATTER_SINGLE, out, case.mine(case.n * case.size).contiguous(), **how)
    return [out]


def reduce_scatter(case, **how):
    run(dist.reduce_scatter, out := case.room(), [case.mine(seed=i) for i in range(case.size)], **how)
    return [out]


def all_to_all_single(case, **how):
    out = case.room(case.n * case.size).contiguous()
    run(dist.all_to_all_single, out, case.mine(case.n * case.size).contiguous(), **how)
    return [out]


def all_to_all_uneven(case, **how):
    """all_to_all_single of n + i + 2 j elements from rank i to j, and none from the last to the first."""
    count = lambda i, j: 0 if (i, j) == (case.size - 1, 0) else case.n + i + 2 * j  # noqa: E731
    sizes = [count(case.rank, j) for j in range(case.size)]
    theirs = [count(i, case.rank) for i in range(case.size)]
    out = case.room(sum(theirs)).contiguous()
    run(dist.all_to_all_single, out, case.mine(sum(sizes)).contiguous(), theirs, sizes, **how)
    return [out]


CASES = [
    all_reduce,
    all_reduce_aliased,
    reduce,
    broadcast,
    all_gather,
    all_gather_single,
    gather,
    scatter,
    reduce_scatter_single,
    reduce_scatter,
    all_to_all_single,
    all_to_all_uneven,
]


def same(got, want):
    return all(g.dtype == w.dtype and torch.equal(g, w) for g, w in zip(got, want, strict=True))


def packed(tensor):
    """The tensor itself, without gaps."""
    return tensor


def reference(case, how, gloo):
    """gloo's results, without gaps, computed in a type that gloo knows."""
    wide = torch.uint8 if case.dtype == torch.bool else case.dtype
    other = Case(case.n, case.dtype, packed, case.rank, case.size, wide)
    if how is gather and case.dtype.is_complex:  # gloo gathers complex numbers only on all ranks
        found = all_gather(other, group=gloo, later=False)
        return found if case.rank == 0 else []
    return [x.to(case.dtype) for x in how(other, group=gloo, later=False)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("how", CASES, ids=lambda f: f.__name__)
def test_like_gloo(world, ours, gloo, agree, how, dtype):
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        for layout in (packed, spaced):
            if layout is spaced and dtype not in (torch.float32, torch.bfloat16, torch.complex64):
                continue
            case = Case(n, dtype, layout, rank, size)
            want = reference(case, how, gloo)
            for group in (world, ours):
                for later in (False, True):
                    got = how(case, group=group, later=later)
                    assert agree(same(got, want)), (n, group.group_name, later, got, want)


REDUCTIONS = {
    "MIN": TYPES[:6],
    "MAX": TYPES[:6],
    "PRODUCT": TYPES[:6],
    "BAND": TYPES[4:6],
    "BOR": TYPES[4:6],
    "BXOR": TYPES[4:6],
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_like_gloo(world, ours, gloo, agree, name):
    op = getattr(dist.ReduceOp, name)
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in REDUCTIONS[name]:
        for n in (0, 5, 3001):
            want = values(n * size, dtype, rank)
            dist.all_reduce(want, op, group=gloo)
            for group in (world, ours):
                got, part = values(n * size, dtype, rank), torch.zeros(n, dtype=dtype)
                REDUCE_SCATTER_SINGLE(part, got, op, group=group)
                assert agree(torch.equal(part, want[rank * n : (rank + 1) * n])), dtype
                dist.reduce(at_one := got.clone(), 1, op, group=group)
                assert agree(torch.equal(at_one, want if rank == 1 else got)), dtype
                dist.all_reduce(got, op, group=group)
                assert agree(torch.equal(got, want)), dtype


@pytest.mark.parametrize("dtype", TYPES[:5], ids=str)
def test_average_and_scaled_sum(world, ours, gloo, agree, dtype):
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in (0, 1, 20_003):
        total = values(n, torch.float64, rank)
        dist.all_reduce(total, group=gloo)
        for group in (world, ours):
            dist.all_reduce(got := values(n, dtype, rank), dist.ReduceOp.AVG, group=group)
            want = (total / size).trunc() if dtype == torch.int64 else total / size
            assert agree(torch.equal(got, want.to(dtype)))
            if dtype != torch.int64:
                scaled = dist._make_nccl_premul_sum(0.5)
                dist.all_reduce(got := values(n, dtype, rank), scaled, group=group)
                assert agree(torch.equal(got, (total / 2).to(dtype)))
                given = values(n * size, dtype, rank)
                before, part = given.clone(), torch.zeros(n, dtype=dtype)
                REDUCE_SCATTER_SINGLE(part, given, scaled, group=group)
                assert agree(torch.equal(before, given))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("how", [all_reduce, reduce, reduce_scatter, reduce_scatter_single])
def test_sums_of_complex32(world, ours, agree, how):
    """Sums, averages and scaled sums of pairs of float16 are those of complex64."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def pairs(n, dtype, rank, seed):
        return values(n, torch.complex64, rank, seed).to(dtype)

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist._make_nccl_premul_sum(0.5)):
        for n in (1, 20_003):
            for group in (world, ours):
                got, want = (
                    how(Case(n, dtype, packed, rank, size, given=pairs), group=group, later=False, op=op)
                    for dtype in (torch.complex32, torch.complex64)
                )
                pairs_of = [[torch.view_as_real(x).half() for x in some] for some in (got, want)]
                assert agree(same(*pairs_of)), (op, n)


def test_what_cannot_be_reduced(world):
    with pytest.raises(ValueError, match="BAND is for integers"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises(ValueError, match="AVG is for numbers"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    dist.barrier()


@pytest.mark.filterwarnings("default")
def test_sparse_sums_under_way_at_once(ours, agree):
    """A second pending sum of a sparse tensor adds up the first one's result, also without elements."""
    rank, size = dist.get_rank(), dist.get_world_size()
    n = rank % 2  # some ranks have no values
    x = torch.sparse_coo_tensor(torch.zeros(1, n, dtype=torch.int64), torch.ones(n), (4,))
    y = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (size,))
    works = [dist.all_reduce(t, group=ours, async_op=True) for t in (x, y, x)]
    for work in works:
        work.wait()
    odd = size // 2
    assert agree(torch.equal(x.to_dense(), torch.tensor([odd * size, 0.0, 0, 0])))
    assert agree(torch.equal(y.to_dense(), torch.ones(size)))


WRONG = {
    "a list of another length": lambda g, n: dist.all_gather([torch.zeros(3)] * (n + 1), torch.ones(3), g),
    "tensors of other sizes": lambda g, n: dist.all_gather(
        [torch.zeros(4) for _ in range(n)], torch.ones(3), g
    ),
    "uneven slices": lambda g, n: dist.all_to_all_single(torch.zeros(n + 1), torch.zeros(n + 1), group=g),
    "splits of another sum": lambda g, n: dist.all_to_all_single(
        torch.zeros(n), torch.zeros(n), [1] * n, [2] * n, group=g
    ),
    "an expanded tensor": lambda g, n: dist.all_reduce(torch.ones(1).expand(4), group=g),
    "an expanded tensor to receive": lambda g, n: dist.recv(torch.ones(1).expand(4), 0, group=g),
    "two types": lambda g, n: dist.all_gather([torch.zeros(2).int() for _ in range(n)], torch.ones(2), g),
    "a minimum of sparse tensors": lambda g, n: dist.all_reduce(
        torch.eye(3).to_sparse(), dist.ReduceOp.MIN, g
    ),
    "a rank that there is not": lambda g, n: dist.broadcast(torch.ones(3), group=g, group_src=n),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("n", [10, 100_000])
def test_wrong_arguments_leave_the_group_usable(ours, agree, wrong, n):
    size = dist.get_world_size()
    before = dist.all_reduce(early := torch.ones(n), group=ours, async_op=True)
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        WRONG[wrong](ours, size)
    assert not isinstance(caught.value, dist.DistBackendError)
    dist.all_reduce(x := torch.ones(n), group=ours)
    before.wait()
    assert agree(bool((x == size).all()) and bool((early == size).all()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_averages_of_unsigned_integers(world, agree, dtype):
    high = torch.iinfo(dtype).max // dist.get_world_size()
    x = torch.tensor([3, high]).to(dtype) if dtype != torch.uint64 else torch.tensor([3, high], dtype=dtype)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert agree(x.tolist() == [3, high])

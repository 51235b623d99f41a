"""Messages between two ranks."""

import pytest
import torch
import torch.distributed as dist
from test_collectives import SIZES, TYPES, packed, spaced, values


@pytest.fixture(params=["world", "ours"])
def group(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_around_a_ring(group, agree, dtype):
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in SIZES:
        for layout in (packed, spaced):
            out, into = layout(values(n, dtype, rank)), layout(torch.zeros(n, dtype=dtype))
            sent = dist.isend(out, (rank + 1) % size, group=group, tag=3)
            assert dist.recv(into, (rank - 1) % size, group=group, tag=3) == (rank - 1) % size
            sent.wait()
            assert agree(torch.equal(into, values(n, dtype, (rank - 1) % size)))


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14), reason="torch does not forward the source"
)
def test_from_anywhere(group, agree):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        seen = []
        for _ in range(1, size):
            into = torch.zeros(30_000)
            source = dist.recv(into, group=group)
            seen.append(source)
            assert torch.equal(into, torch.full((30_000,), float(source)))
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.full((30_000,), float(rank)), 0, group=group)
    assert agree(True)


def test_tags_are_told_apart(group, agree):
    """The later tag is received first, and of one tag what was sent first."""
    rank = dist.get_rank()
    sizes = [30_000, 10, 40_000]
    if rank == 0:
        works = [dist.isend(torch.full((n,), i + 1.0), 1, tag=tag, group=group)
                 for i, (n, tag) in enumerate(zip(sizes, (7, 7, 9), strict=True))]  # fmt: skip
        for work in works:
            work.wait()
    elif rank == 1:
        for n, value, tag in ((sizes[2], 3.0, 9), (sizes[0], 1.0, 7), (sizes[1], 2.0, 7)):
            dist.recv(into := torch.zeros(n), 0, tag=tag, group=group)
            assert (into == value).all()
    assert agree(True)


def test_batch_of_messages_that_wait_for_each_other(group, agree):
    """Every rank receives before it sends: a queue of one would never end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    into = [torch.zeros(50_000) for _ in range(size)]
    peers = [p for p in range(size) if p != rank]
    ops = [dist.P2POp(dist.irecv, into[p], p, group) for p in peers]
    ops += [dist.P2POp(dist.isend, torch.full((50_000,), float(rank)), p, group) for p in peers]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert agree(all((into[p] == p).all() for p in peers))


def test_messages_do_not_wait_for_collectives(group, agree):
    rank = dist.get_rank()
    x = torch.ones(50_000)
    if rank == 0:
        work = dist.irecv(into := torch.zeros(50_000), 1, group=group)
        dist.all_reduce(x, group=group)
        dist.send(torch.ones(1), 1, group=group)
        work.wait()
        assert (into == 5).all()
    else:
        dist.all_reduce(x, group=group)
        if rank == 1:
            dist.recv(torch.zeros(1), 0, group=group)
            dist.send(torch.full((50_000,), 5.0), 0, group=group)
    assert agree(bool((x == dist.get_world_size()).all()))


def test_to_itself(group, agree):
    x, into = torch.arange(40_000.0), torch.zeros(40_000)
    works = [dist.isend(x, dist.get_rank(), group=group), dist.irecv(into, dist.get_rank(), group=group)]
    for work in works:
        work.wait()
    assert agree(torch.equal(x, into))

"""Messages between two ranks."""

import threading
import time

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


def test_tags_are_told_apart(group, agree):
    """A later tag is received first, and messages of one tag arrive in the order in which they were sent."""
    rank = dist.get_rank()
    sizes = [30_000, 10, 40_000]
    if rank == 0:
        works = [
            dist.isend(torch.full((n,), i + 1.0), 1, tag=tag, group=group)
            for i, (n, tag) in enumerate(zip(sizes, (7, 7, 9), strict=True))
        ]
        for work in works:
            work.wait()
    elif rank == 1:
        for n, value, tag in ((sizes[2], 3.0, 9), (sizes[0], 1.0, 7), (sizes[1], 2.0, 7)):
            dist.recv(into := torch.zeros(n), 0, tag=tag, group=group)
            assert (into == value).all()
    assert agree(True)


def test_batch_of_messages_that_wait_for_each_other(group, agree):
    """A batch in which every rank receives before it sends completes, which one queue could not do."""
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


def test_small_message_nobody_waits_for(group, gloo, agree):
    """Messages whose Work is dropped arrive, and their buffers live as long as MPI may write to them."""
    rank = dist.get_rank()
    if rank == 0:
        into = torch.zeros(4)
        dist.irecv(into, 1, group=group)  # this Work is not kept
        dist.irecv(other := torch.zeros(4), 1, group=group)
        told = dist.irecv(last := torch.zeros(4), 1, group=group).get_future()
    dist.barrier(gloo)
    if rank == 1:
        for value in (1.0, 2.0, 3.0):
            dist.isend(torch.full((4,), value), 0, group=group)
    if rank == 0:
        told.wait()
        limit = time.monotonic() + 20
        while not (into.any() and other.any()) and time.monotonic() < limit:
            time.sleep(0.01)
        assert [int(x[0]) for x in (into, other, last)] == [1, 2, 3]
    assert agree(True)


def test_small_messages_of_two_threads(group, agree):
    rank = dist.get_rank()
    found = []

    def talk(tag):
        for i in range(50):
            x = torch.full((4,), float(i))
            if rank == 0:
                dist.send(x, 1, group=group, tag=tag)
            dist.recv(into := torch.empty(4), 1 - rank, group=group, tag=tag)
            if rank == 1:
                dist.send(x, 0, group=group, tag=tag)
            found.append(torch.equal(into, x))

    if rank < 2:
        threads = [threading.Thread(target=talk, args=(tag,)) for tag in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 100
    assert agree(True)


def test_to_itself(group, agree):
    x, into = torch.arange(40_000.0), torch.zeros(40_000)
    works = [dist.isend(x, dist.get_rank(), group=group), dist.irecv(into, dist.get_rank(), group=group)]
    for work in works:
        work.wait()
    assert agree(torch.equal(x, into))

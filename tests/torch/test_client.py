"""The backend as a client of the layer: its queue, its threads, and what groups leave behind."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import compcoll.torch
from compcoll.engine import _engine
from compcoll.torch import groups
from compcoll.torch.work import Work


def state_of(group):
    return next(state for state in groups.all_groups() if state.name == group.group_name)


def test_large_calls_begin_two_at_a_time(ours, agree):
    """Two large calls run at a time, in the order of the calls, and all complete whichever is waited for."""
    state, size = state_of(ours), dist.get_world_size()
    for first in (0, -1):
        tensors = [torch.full((1 << 20,), float(i)) for i in range(5)]
        works, most = [], 0
        for tensor in tensors:
            works.append(dist.all_reduce(tensor, group=ours, async_op=True))
            most = max(most, len(state._in_flight))
        works[first].wait()
        for work in works:
            work.wait()
        assert agree(most == 2)
        assert agree(all((tensor == i * size).all() for i, tensor in enumerate(tensors)))


def test_calls_go_on_where_a_thread_keeps_the_interpreter(ours, agree):
    """If rank 0 holds the GIL in C code, calls on the other ranks complete meanwhile."""
    for holds in (False, True):  # Python decides the first one
        dist.barrier()
        x, since = torch.ones(1 << 19), time.monotonic()
        work = dist.all_reduce(x, group=ours, async_op=True)
        if holds and dist.get_rank() == 0:
            ctypes.PyDLL(None).usleep(900_000)
        work.wait()
        took = time.monotonic() - since
    assert agree(dist.get_rank() == 0 or took < 0.6), took


def test_a_group_is_destroyed_with_calls_under_way(world, agree):
    """Pending calls of a destroyed group complete, and its communicator is freed with the last of them."""
    marked = _engine.marked_count()
    group = dist.new_group(pg_options=compcoll.torch.Options("lossless", min_nbytes=0))
    tensors = [torch.full((1 << 19,), float(i)) for i in range(6)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    dist.destroy_process_group(group)
    for work in works:
        work.wait()
    size = dist.get_world_size()
    assert agree(all((tensor == i * size).all() for i, tensor in enumerate(tensors)))
    assert agree(_engine.marked_count() == marked)


def test_groups_leave_nothing_behind(world, agree):
    kept, marked = len(groups.all_groups()), _engine.marked_count()
    for _ in range(8):
        group = dist.new_group()
        dist.all_reduce(x := torch.ones(3), group=group)
        assert agree(_engine.marked_count() == marked + 1)
        dist.destroy_process_group(group)
    assert agree((x == dist.get_world_size()).all())
    assert agree(_engine.marked_count() == marked and len(groups.all_groups()) == kept)
    assert agree(not _engine._in_flight)


def test_a_policy_changes_behind_calls_that_wait_for_their_turn(world, agree):
    """Calls that wait in the queue keep the policy with which they were called, on all ranks alike."""
    group = dist.new_group(pg_options=compcoll.torch.Options("lossless", min_nbytes=0))
    state, size = state_of(group), dist.get_world_size()
    tensors = [torch.full((1 << 20,), float(i)) for i in range(6)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[:3]]
    if dist.get_rank() == 0:
        works[-1].wait()  # this rank's queue is empty now
    state.options = compcoll.torch.Options("bfp:bits=7", min_nbytes=0)
    state.forget_policy()
    works += [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[3:]]
    for work in works:
        work.wait()
    assert agree(all((tensor == i * size).all() for i, tensor in enumerate(tensors)))
    calls = {codec: line.calls for (_, codec, _), line in state.stats.lines.items()}
    assert agree(calls == {"lossless": 3, "bfp:bits=7": 3}), calls
    dist.destroy_process_group(group)


def test_calls_of_one_tensor_are_in_order(ours, world, agree):
    size = dist.get_world_size()
    for group in (world, ours):
        x = torch.ones(1 << 18)
        works = [dist.all_reduce(x, group=group, async_op=True) for _ in range(3)]
        works += [dist.all_reduce(x[::2], group=group, async_op=True)]
        for work in works:
            work.wait()
        assert agree((x[1::2] == size**3).all() and (x[::2] == size**4).all())


def test_a_future_after_the_end_and_one_that_calls(ours, agree):
    """A callback of a future may make further calls, and a future can be made after the end."""
    work = dist.all_reduce(x := torch.ones(1 << 16), group=ours, async_op=True)
    work.wait()
    assert agree(work.get_future().wait()[0] is not None)
    size = dist.get_world_size()

    def again(future):
        dist.all_reduce(value := future.value()[0], group=ours)
        return value

    future = dist.all_reduce(x, group=ours, async_op=True).get_future().then(again)
    assert agree((future.wait() == size**3).all())


def test_lists_are_taken_from_where_they_lie(ours, gloo, agree):
    """all_to_all sends from tensors in separate memory, in any order, some of them empty."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = lambda i, j: 0 if i == j == 0 else 40_000 * (1 + (i + j) % 2)  # noqa: E731
    results = []
    for group in (ours, gloo):
        ins = [torch.full((count(rank, j),), float(10 * rank + j)) for j in range(size)][::-1]
        outs = [torch.zeros(count(i, rank)) for i in range(size)]
        if group is ours:
            dist.all_to_all(outs, ins[::-1], group=group)
        else:
            sizes = [count(rank, j) for j in range(size)], [count(i, rank) for i in range(size)]
            whole = torch.zeros(sum(sizes[1]))
            dist.all_to_all_single(whole, torch.cat(ins[::-1]), sizes[1], sizes[0], group=group)
            outs = list(whole.split(sizes[1]))
        results.append(outs)
    assert agree(all(torch.equal(a, b) for a, b in zip(*results, strict=True)))


def test_an_error_reaches_every_waiter(world, agree):
    """Two threads that wait for a receive of the wrong size get one error, which a third thread polls for."""
    group, rank, errors = dist.new_group(), dist.get_rank(), []
    if rank == 0:
        work = dist.irecv(torch.zeros(8), 1, group=group)

        def wait():
            with pytest.raises(ValueError, match="16 bytes came from rank 1 for a tensor of 32") as caught:
                work.wait()
            return caught.value

        def poll():
            while not work.is_completed():
                time.sleep(1e-3)
            return work.exception()

        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(wait), pool.submit(wait)]
            if isinstance(work, Work):  # from 2.14 on torch hands out one that can only be waited for
                found.append(pool.submit(poll))
            pool.submit(dist.send, torch.ones(1), 1)
            errors = [one.result() for one in found]
        assert "error state" in state_of(group).broken
        state_of(group).broken = ""  # a single message has failed, so that the tests can end without an abort
    elif rank == 1:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.ones(4), 0, group=group)
    assert agree(len({str(one) for one in errors}) <= 1), errors
    dist.destroy_process_group(group)


def test_a_wait_says_so_once(world, capfd):
    """Rank 1 waits for rank 0, and says on stderr in which operation."""
    group = dist.new_group()
    state_of(group).notice = 0.3
    capfd.readouterr()
    for call in (dist.all_reduce, lambda one, group: dist.broadcast(one, 0, group=group)):
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(1)
        call(torch.ones(4), group=group)
    said = capfd.readouterr().err
    end = "has waited 0.3 s; COMPCOLL_TIMEOUT=SECONDS makes it an error"
    expected = [
        f"compcoll: rank 1 of {dist.get_world_size()}: {op} {end}" for op in ("allreduce", "broadcast")
    ]
    lines = [line for line in said.splitlines() if line in expected]
    assert dist.get_rank() != 1 or lines == expected, said
    dist.destroy_process_group(group)


def test_a_time_out_names_who_is_missing(world):
    """A time-out of a receive names the missing rank, and its group is in an error state afterwards."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    state = state_of(group)
    if dist.get_rank() == 0:
        work = dist.irecv(torch.zeros(4), 1, group=group)
        with pytest.raises(dist.DistBackendError, match="recv from rank 1, tag 0: Timed out after 1 s"):
            work.wait()
        with pytest.raises(dist.DistBackendError, match="error state"):
            dist.all_reduce(torch.ones(1), group=group)
        state.broken = ""  # a single message has failed, so that the tests can end without an abort
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(torch.ones(4), 0, group=group)
    dist.barrier()
    dist.destroy_process_group(group)

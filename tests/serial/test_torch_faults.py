"""Programs of torch.distributed that once hung, or raised on some ranks; some of them in one job."""

from importlib.util import find_spec

import pytest
from torch_jobs import check, in_turn, run  # noqa: F401

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

#: Every rank sends to the next one, in a group of these two, before it receives.
RING = """
groups = [dist.new_group(sorted([i, (i + 1) % 3])) for i in range(3)]
x, got = torch.full((n,), float(rank)), torch.empty(n)
before, after = (rank - 1) % 3, (rank + 1) % 3
sent = dist.isend(x, after, groups[rank])
dist.recv(got, before, groups[before])
sent.wait()
assert (got == before).all()
"""
#: Values go from 1 to 2, 0 and 1; rank 1 is ready for the last message before it sends the first.
CHAIN = """
first, second, last = (dist.new_group(ranks) for ranks in ([1, 2], [0, 2], [0, 1]))
x, got = torch.full((n,), float(rank)), torch.empty(n)
if rank == 1:
    coming = dist.irecv(got, 0, last)
    dist.send(x, 2, first)
    coming.wait()
else:
    dist.recv(got, 1 if rank == 2 else 2, first if rank == 2 else second)
    dist.send(got, 0 if rank == 2 else 1, second if rank == 2 else last)
assert (got == 1).all()
"""
#: Two groups of all ranks, whose first calls are made in another order on rank 0.
CROSSED = """
groups = [dist.new_group(), dist.new_group()]
x = [torch.full((n,), float(rank + i)) for i in range(2)]
works = [dist.all_reduce(x[i], group=groups[i], async_op=True) for i in ([0, 1] if rank else [1, 0])]
for work in works:
    work.wait()
assert (x[0] == 3).all() and (x[1] == 6).all()
"""
#: A message in the group of all ranks, which must not wait for the last rank.
BESIDE = """
x = torch.full((n,), float(rank))
if rank == 2:
    time.sleep(3)
else:
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    assert (x == 0).all()
    assert time.monotonic() - since < 2.5, "rank 2 was waited for"
"""


def test_the_first_calls_of_groups(run):  # noqa: F811
    """First calls of groups end in time if each rank is a node, whose link the default policy measures."""
    programs = in_turn([RING, CHAIN, CROSSED, BESIDE], ["", "lossless"])
    said, status = run(programs, 3, COMPCOLL_NODES="0,1,2")
    assert (status, said.count("in time")) == (0, 24), said


JOIN = """
def moved(phases, divides):
    rule = {"phase": "gradients", "codec": "bfp:bits=6"}
    compcoll.torch.set_policy({"*": rule} if phases else None, min_nbytes=0 if phases else None)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    before = model.module.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with model.join(divide_by_initial_world_size=divides):
        for _ in range(2 + 2 * rank):
            optimizer.zero_grad()
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
    moved = before - model.module.weight.detach()
    return f"{moved.min():.1f} {moved.max():.1f}"

say(f"moved {[moved(*how) for how in ((0, False), (0, True), (1, False), (1, True))]}")
"""
BUSY = """
class Busy(torch.nn.Linear):
    def forward(self, x):
        for _ in range(300):
            dist.all_reduce(torch.ones(1))
        return super().forward(x)

model = torch.nn.parallel.DistributedDataParallel(Busy(64, 64))
with model.join(divide_by_initial_world_size=False):
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
say(f"has gradients of {model.module.weight.grad.mean():g}")
"""


def test_join(run):  # noqa: F811
    """Under `join`, steps of one rank count in full, or half if divided by the initial world size.

    A model may make hundreds of calls in a step; the reducer's first call, read at the end, is not lost.
    """
    found = run(BUSY + JOIN)
    check(found, "has gradients of 8")
    check(found, "moved ['4.0 4.0', '3.0 3.0', '4.0 4.0', '3.0 3.0']")


#: Every rank is rank 0 of a default group of its own.
JOINED = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from datetime import timedelta
from torch.distributed import distributed_c10d as c10d
import compcoll.torch
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.utils.data import DataLoader

def joined(rank):
    store = dist.FileStore(sys.argv[0] + ".store", 2)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    name, limit = "joined", timedelta(seconds=15)
    group, _ = c10d._new_process_group_helper(2, rank, [], "gloo", store, group_name=name, timeout=limit)
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    for src in range(2):
        ours, by_gloo = [torch.full((1000,), rank + 1.0) for _ in range(2)]
        sync = compcoll.torch.WeightSync({"w": ours}, src, group)
        for _ in range(2):
            sync.sync()
            dist.broadcast(by_gloo, src, group)
            assert torch.equal(ours, by_gloo), (ours[0], by_gloo[0])
            ours += rank + 1
            by_gloo += rank + 1
    dist.destroy_process_group()
"""
#: Ranks with children that load data, and one that saves a checkpoint.
CHILDREN = """
if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    joined(rank)
    dist.init_process_group("compcoll")
    dist.all_reduce(x := torch.ones(9))
    loaded = []
    for how in ("spawn", "forkserver"):
        loaded += [one.item() for one in DataLoader([1, 2], num_workers=1, multiprocessing_context=how)]
    group, folder = dist.new_group(backend="gloo"), sys.argv[0] + ".saved"
    state, how = {"w": torch.arange(1000.0)}, AsyncCheckpointerType.PROCESS
    dcp.async_save(state, checkpoint_id=folder, async_checkpointer_type=how, process_group=group).result()
    read = {"w": torch.zeros(1000)}
    dcp.load(read, checkpoint_id=folder, process_group=group)
    dist.all_reduce(x)
    same = torch.equal(*read.values(), *state.values())
    os.write(1, f"rank {rank} has loaded {loaded}, and its values: {same}, {x[0]:g}\\n".encode())
"""


def test_weights_between_default_groups_and_children_that_are_no_ranks(run):  # noqa: F811
    check(run(JOINED + CHILDREN, head=""), "has loaded [1, 2, 1, 2], and its values: True, 4")


EMPTY = """
def piece(kind, k, value):
    if k:
        return torch.full((k * 40_000,), value)
    return [torch.empty(0, 4).t(), torch.empty(8)[8::2], torch.empty(4, 0)[:, ::2], torch.empty(0)][kind]

for kind in range(4):
    for sizes in ([[0, 3], [2, 0]], [[3, 0], [0, 2]], [[0, 0], [0, 5]], [[0, 0], [0, 0]]):
        inputs = [piece(kind, k, 10.0 * rank + i) for i, k in enumerate(sizes[rank])]
        outputs = [piece(kind, one[rank], -1.0) for one in sizes]
        dist.all_to_all(outputs, inputs)
        assert all((out == 10.0 * i + rank).all() for i, out in enumerate(outputs)), outputs
"""
DROPPED = """
x = torch.full((n,), rank + 1.0)
dist.all_reduce(x, async_op=True)
gc.collect()
dist.barrier()
while not (x == 3).all() and time.monotonic() - since < 10:
    time.sleep(1e-3)
assert (x == 3).all()
"""
THREE_WAITS = """
time.sleep(rank / 2)
x = torch.full((n,), rank + 1.0)
work = dist.all_reduce(x, async_op=True)
with ThreadPoolExecutor(3) as pool:
    waited = list(pool.map(lambda _: (work.wait(), x.sum().item()), range(3)))
assert waited == [(True, 3 * n)] * 3, waited
"""
SYNC_AND_ASYNC = """
for i in range(20):
    x = torch.full((n if i % 2 else 5,), rank + 1.0)
    work = dist.all_reduce(x, async_op=rank == i % 2)
    work and work.wait()
    assert (x == 3).all()
"""


REPORTS = """
def count():
    return sum(line.calls for lines in compcoll.torch.report().lines.values() for line in lines)

before, interval, x = count(), sys.getswitchinterval(), torch.zeros(10)
sys.setswitchinterval(1e-6)
with ThreadPoolExecutor(4) as pool:
    for _ in range(150):
        for _ in range(39):
            dist.all_reduce(x)
        polls = [pool.submit(compcoll.torch.report) for _ in range(4)]
        dist.all_reduce(x)
        for poll in polls:
            poll.result()
sys.setswitchinterval(interval)
say(f"has counted {count() - before} calls")
"""

THREADS = """
from threading import Thread, enumerate as threads
groups = [dist.new_group() for _ in range(8)]
def first(group):
    dist.all_reduce(torch.ones(1000), group=group, async_op=True).wait()
started = [Thread(target=first, args=[group]) for group in groups]
[one.start() for one in started]
[one.join() for one in started]
say(f"{sum(one.name == 'compcoll-completion' for one in threads())} completion thread")
"""
ALARMS = """
import signal
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
rung, until = 0, time.monotonic() + 2
while True:
    work, goes_on = dist.all_reduce(x := torch.tensor([float(time.monotonic() < until)]), async_op=True), True
    seconds = 2e-5 + 1e-4 * (rung % 3)
    while goes_on:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work.wait()
            signal.setitimer(signal.ITIMER_REAL, 0)
            goes_on = sum(range(3)) == 0  # after a moment for a pending alarm
        except Alarm:
            rung, seconds = rung + 1, 0
    if x.item() < dist.get_world_size():
        break
assert rung
"""
ORDERS = """
a = torch.ones(n) * rank
if rank == 0:
    works = [dist.broadcast(a, 0, async_op=True) for _ in range(2)]
    dist.send(torch.ones(3), 1)
else:
    dist.recv(torch.zeros(3), 0)
    works = [dist.broadcast(a, 0, async_op=True) for _ in range(2)]
[work.wait() for work in works]
assert (a == 0).all()
"""
#: Groups on a store that was used before, by ranks in different numbers of groups.
AGAIN = """
for i in range(2):
    again("")
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    dist.all_reduce(x := torch.ones(2))
    time.sleep(0.3 * rank)
    assert (x == 2).all()
say("has summed again")
"""


def test_works(run):  # noqa: F811
    """Calls are right with empty pieces, a dropped Work, waits in threads, and async on one rank alone."""
    programs = in_turn([EMPTY, DROPPED, THREE_WAITS, SYNC_AND_ASYNC], ["", "lossless"])
    said, status = run(programs + AGAIN)
    assert (status, said.count("in time"), said.count("has summed again")) == (0, 16, 2), said


def test_threads(run):  # noqa: F811
    """Calls complete with first calls and reports in threads, calls in another order, and alarms in waits."""
    programs = in_turn([THREADS, ORDERS, ALARMS], [""])
    found = run(programs + REPORTS)
    check(found, "1 completion thread")
    check(found, "has counted 6000 calls")
    assert found[0].count("in time") == 6, found[0]

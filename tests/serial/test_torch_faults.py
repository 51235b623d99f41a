"""Programs of torch.distributed that once hung, or raised on some ranks; each is a job of its own."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from test_launch import outside

from compcoll.cli.launch import find_mpiexec

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

#: What most programs begin with.
HEAD = """
import gc, os, sys, time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import torch, torch.distributed as dist
import compcoll.torch

def say(words):
    os.write(1, f"rank {rank} {words}\\n".encode())  # at once, as one line

torch.set_num_threads(1)
dist.init_process_group("compcoll", timeout=timedelta(seconds=float(os.environ.get("SECONDS", 15))))
rank, world, n = dist.get_rank(), dist.group.WORLD, 1 << 18
since = time.monotonic()
"""
#: The end of programs that are to take no time but their own.
IN_TIME = """
say("in time" if time.monotonic() - since < 5 else "late")
dist.barrier()
"""


def in_turn(programs):
    """Programs as one, each with names of its own: a job takes seconds to import torch."""
    return "".join(
        f"since = time.monotonic()\nexec({one + IN_TIME!r}, dict(globals()))\n" for one in programs
    )


@pytest.fixture
def run(tmp_path):
    """Runs a program on several ranks; returns what they say, and the exit status."""

    def run(program, n=2, head=HEAD, **variables):
        file, said = tmp_path / "program.py", tmp_path / "said"
        file.write_text(head + program)
        command = [find_mpiexec(), "-n", str(n), sys.executable, str(file)]
        with said.open("w") as out:
            options = {"env": outside(**variables), "stdout": out, "stderr": subprocess.STDOUT}
            try:
                done = subprocess.run(command, **options, timeout=50)
            except subprocess.TimeoutExpired:
                pytest.fail(f"the program has not ended within 50 s:\n{said.read_text()}")
        return said.read_text(), done.returncode

    return run


def check(found, words, n=2):
    """All ranks have said these words, and ended well."""
    said, status = found
    assert status == 0, said
    assert all(f"rank {rank} {words}\n" in said for rank in range(n)), said


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
#: Of two groups of all ranks, the first call is not the same one everywhere.
CROSSED = """
groups = [dist.new_group(), dist.new_group()]
x = [torch.full((n,), float(rank + i)) for i in range(2)]
works = [dist.all_reduce(x[i], group=groups[i], async_op=True) for i in ([0, 1] if rank else [1, 0])]
for work in works:
    work.wait()
assert (x[0] == 3).all() and (x[1] == 6).all()
"""
#: A message of the world, in which the last rank has no part.
BESIDE = """
x = torch.full((n,), float(rank))
if rank == 2:
    time.sleep(3)
else:
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    assert (x == 0).all()
    assert time.monotonic() - since < 2.5, "rank 2 was waited for"
"""


@pytest.mark.parametrize("codec", ["", "lossless"], ids=["default", "lossless"])
def test_the_first_calls_of_groups(run, codec):
    """Each rank counts as a node: the default policy asks how fast their link is."""
    programs = in_turn([RING, CHAIN, CROSSED, BESIDE])
    said, status = run(programs, 3, COMPCOLL_NODES="0,1,2", COMPCOLL_CODEC=codec)
    assert (status, said.count("in time")) == (0, 12), said


JOIN = """
if {phases}:
    compcoll.torch.set_policy({{"*": {{"phase": "gradients", "codec": "bfp:bits=8"}}}}, min_nbytes=0)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
before = model.module.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
with model.join(divide_by_initial_world_size={divides}):
    for _ in range(2 + 2 * rank):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
moved = before - model.module.weight.detach()
say(f"moved from {{moved.min():.1f}} to {{moved.max():.1f}}")
"""


@pytest.mark.parametrize("phases", [False, True], ids=["no phases", "phases"])
@pytest.mark.parametrize(("divides", "moved"), [(False, 4.0), (True, 3.0)])
def test_join(run, phases, divides, moved):
    """Two of four steps are of one rank: each is half a step where it divides by the number of both."""
    check(run(JOIN.format(phases=phases, divides=divides)), f"moved from {moved} to {moved}")


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


def test_join_of_a_model_that_calls_much(run):
    """The reducer alone keeps the first call of a step, which it reads at the end."""
    check(run(BUSY), "has gradients of 8")


CHILDREN = """
import os, torch, torch.distributed as dist
import compcoll.torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    dist.init_process_group("compcoll")
    dist.all_reduce(x := torch.ones(9))
    values = [one.item() for one in DataLoader([1, 2, 3], num_workers=1, multiprocessing_context="{how}")]
    dist.all_reduce(x)
    os.write(1, f"rank {{dist.get_rank()}} has loaded {{values}}, {{x[0]:g}}\\n".encode())
"""


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_children_are_no_ranks(run, how):
    check(run(CHILDREN.format(how=how), head=""), "has loaded [1, 2, 3], 4")


SAVED = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import compcoll.torch
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

if __name__ == "__main__":
    dist.init_process_group("compcoll")
    group, folder = dist.new_group(backend="gloo"), sys.argv[0] + ".saved"
    state, how = {"w": torch.arange(1000.0)}, AsyncCheckpointerType.PROCESS
    dcp.async_save(state, checkpoint_id=folder, async_checkpointer_type=how, process_group=group).result()
    loaded = {"w": torch.zeros(1000)}
    dcp.load(loaded, checkpoint_id=folder, process_group=group)
    dist.all_reduce(x := torch.ones(9))
    same = torch.equal(*loaded.values(), *state.values())
    os.write(1, f"rank {dist.get_rank()} has its values: {same}, {x[0]:g}\\n".encode())
"""


def test_a_process_that_saves_is_no_rank(run):
    check(run(SAVED, head=""), "has its values: True, 2")


#: Each rank has a default group of its own, and the name of rank 0 there.
JOINED = """
import os, sys, torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed import distributed_c10d as c10d
import compcoll.torch

rank, store = int(os.environ["RANK"]), dist.FileStore(sys.argv[0] + ".store", 2)
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
os.write(1, f"rank {rank} has all\\n".encode())
"""


def test_weights_between_two_default_groups(run):
    check(run(JOINED, head=""), "has all")


POLLED = """
if rank == 1:
    time.sleep(8)
work = dist.all_reduce(torch.ones(10), async_op=True)
while not work.is_completed() and time.monotonic() - since < 7.5:
    time.sleep(1e-3)
say("in time" if time.monotonic() - since < 6 else "late")
work.wait()
"""


def test_a_loop_of_is_completed_ends(run):
    said, status = run(POLLED, SECONDS="2")
    assert "rank 0 in time\n" in said, said
    assert status, said
    assert "DistBackendError: allreduce: Timed out after 2 s in call 1 of the process group" in said, said


NEW_GROUP = """
if rank == 2:
    time.sleep(8)
    sys.exit()
try:
    dist.new_group([0, 1, 2], timeout=timedelta(seconds=3))
except Exception as error:
    say(f"after {time.monotonic() - since:.0f} s: {error}".replace("\\n", " "))
    time.sleep(1)  # for the other rank to say it, too
    raise
"""


def test_a_rank_that_does_not_come_to_new_group(run):
    said, status = run(NEW_GROUP, 3, SECONDS="3")
    assert status, said
    found = re.findall(r"rank [01] after (\d+) s: .*rank 2", said)
    assert [int(seconds) < 7 for seconds in found] == [True, True], said


BARRIER = """
def values(of):
    return torch.randn(1 << 20, generator=torch.Generator().manual_seed(of))

other, got = 1 - rank, torch.empty(1 << 20)
for i in range(3):
    sent = [dist.isend(values(rank), other)] if rank in {senders} else []
    time.sleep(0.2)  # its first parts are on their way
    world.monitored_barrier(timeout=timedelta(seconds=10))
    if other in {senders}:
        dist.recv(got, other)
        assert torch.equal(got, values(other)), i
    for work in sent:
        work.wait()
lines = sum(compcoll.torch.report(together=True).lines.values(), [])
assert ("Send", "lossless") in [(line.op, line.codec) for line in lines]
say("has all")
"""


@pytest.mark.parametrize("senders", [[0], [1], [0, 1]], ids=["from 0", "from 1", "both"])
def test_a_monitored_barrier_beside_a_message(run, senders):
    check(run(BARRIER.format(senders=senders), COMPCOLL_CODEC="lossless"), "has all")


#: One rank waits for the other in vain; the memory that it gives back is used again.
LATE = """
other = dist.new_group()
dist.barrier(other)
if rank == {late}:
    time.sleep(3)
try:
    world.monitored_barrier(timeout=timedelta(seconds=1))
except RuntimeError as error:
    say(f"got {{error}}")
memory = [bytearray(b"x" * k) for k in (1, 2, 8, 16) for _ in range(5000)]
dist.barrier(other)
time.sleep(0.5)  # messages of the late one arrive
dist.barrier(other)
assert all(set(one) == {{120}} for one in memory)
say("has its memory")
"""


@pytest.mark.parametrize("late", [1, 0])
def test_a_rank_that_comes_late_to_a_monitored_barrier(run, late):
    said, _ = run(LATE.format(late=late))
    assert re.search(f"rank {1 - late} got .*rank {late}\\b", said, re.IGNORECASE), said
    assert said.count("has its memory\n") == 2, said


CAUGHT = """
everyone, pair = dist.new_group(backend="compcoll"), dist.new_group([1, 2], backend="compcoll")
if rank:
    try:
        dist.all_reduce(torch.ones(10 + rank), group=pair)
    except Exception as error:
        say(f"got {{type(error).__name__}}")
{end}
if rank == 0:
    time.sleep(3)
    open("{file}", "w").close()
"""
DESTROY = "dist.destroy_process_group()"
BESIDE_GLOO = HEAD.replace('"compcoll", timeout', '"gloo", timeout')


@pytest.mark.parametrize(
    ("head", "end"),
    [(HEAD, ""), (HEAD, DESTROY), (BESIDE_GLOO, ""), (BESIDE_GLOO, DESTROY)],
    ids=["", "destroyed", "gloo", "gloo, destroyed"],
)
def test_a_caught_error_leaves_others_the_time_to_end(run, tmp_path, head, end):
    file = tmp_path / "checkpoint"
    said, _ = run(CAUGHT.format(file=file, end=end), 3, head)
    assert all(f"rank {rank} got MismatchError\n" in said for rank in (1, 2)), said
    assert file.exists(), said


SECOND = """
group = dist.new_group(backend="compcoll")
group.monitored_barrier()
if rank == 1:
    sys.exit()
try:
    dist.all_reduce(torch.ones(10), group=group)
except dist.DistBackendError as error:
    say(f"got {error}")
"""


def test_a_group_beside_gloo_has_barriers_and_hears_of_ends(run):
    said, status = run(SECOND, head=BESIDE_GLOO)
    assert status, said
    assert "rank 0 got rank 1 has ended, and does not come to call 1 of the group\n" in said, said


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


@pytest.mark.parametrize("codec", ["", "lossless"], ids=["default", "lossless"])
def test_works(run, codec):
    """Empty pieces, a Work that nobody keeps, threads that wait, sync on one rank and async on another."""
    programs = in_turn([EMPTY, DROPPED, THREE_WAITS, SYNC_AND_ASYNC])
    said, status = run(programs, COMPCOLL_CODEC=codec)
    assert (status, said.count("in time")) == (0, 8), said


REPORTS = """
sys.setswitchinterval(1e-6)
x = torch.zeros(10)
with ThreadPoolExecutor(4) as pool:
    for _ in range(150):
        for _ in range(39):
            dist.all_reduce(x)
        polls = [pool.submit(compcoll.torch.report) for _ in range(4)]
        dist.all_reduce(x)
        for poll in polls:
            poll.result()
calls = sum(line.calls for lines in compcoll.torch.report().lines.values() for line in lines)
say(f"has counted {calls} calls")
"""


def test_reports_from_several_threads(run):
    check(run(REPORTS), "has counted 6000 calls")


SERIALIZED = """
import os, mpi4py
mpi4py.rc.thread_level = "serialized"
import torch.distributed as dist, compcoll.torch
try:
    dist.init_process_group("compcoll")
except Exception as error:
    os.write(1, f"rank {os.environ['RANK']} got {error}".replace("\\n", " ").encode() + b"\\n")
"""


def test_a_thread_level_that_is_too_low(run):
    said, status = run(SERIALIZED, head="")
    assert status == 0, said
    assert len(re.findall("rank [01] got .*MPI.THREAD_MULTIPLE", said)) == 2, said


THREADS = """
from threading import Thread, enumerate as threads
groups = [dist.new_group() for _ in range(8)]
def first(group):
    dist.all_reduce(torch.ones(1000), group=group, async_op=True).wait()
started = [Thread(target=first, args=[group]) for group in groups]
[one.start() for one in started]
[one.join() for one in started]
say(f"{sum(one.name == 'compcoll-finisher' for one in threads())} finisher")
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
            goes_on = sum(range(3)) == 0  # behind a moment for what has come meanwhile
        except Alarm:
            rung, seconds = rung + 1, 0
    if x.item() < dist.get_world_size():
        break
assert rung
"""
SPLITS = """
group = dist.new_group(pg_options=compcoll.torch.Options("lossless", min_nbytes=0))
splits = ([7] * 2, [7] * 2) if rank else ()
try:
    dist.all_to_all_single(torch.zeros(14), torch.ones(14), *splits, group=group)
except dist.DistBackendError as error:
    say("differs" if "with splits" in str(error) else error)
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
AGAIN = """
dist.destroy_process_group()
for i in range(3):
    store = dist.FileStore(sys.argv[0] + ".store", 2)
    dist.init_process_group("compcoll", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=9))
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    x = torch.ones(2)
    dist.all_reduce(x)
    time.sleep(0.3 * rank)
    dist.destroy_process_group()
say("in time" if (x == 2).all() else "wrong")
"""


def test_what_hung_once(run):
    """First calls of threads, splits on one rank, a root that reads, alarms in waits; found by attack."""
    said, _ = run(in_turn([THREADS, SPLITS, ORDERS, ALARMS]))
    assert [said.count(words) for words in ("in time", "1 finisher", "differs")] == [8, 2, 2], said


def test_a_store_that_was_used_before(run):
    said, _ = run(AGAIN)
    assert said.count("in time") == 2, said

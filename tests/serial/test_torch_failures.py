"""Errors on the other ranks if a rank fails, leaves, differs, is late or never comes."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import standin
from executor import compiler
from torch_jobs import BESIDE_GLOO, HEAD, run  # noqa: F401

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

RAISES = """
groups = [dist.new_group() for _ in range(4)]
x = [torch.ones(10), torch.ones(100_000), torch.ones(10), torch.ones(10)]
if rank == 1:
    dist.destroy_process_group(groups[3])
    raise ValueError("no more")
works = [
    dist.all_reduce(x[0], group=groups[0], async_op=True),
    dist.all_reduce(x[1], group=groups[1], async_op=True),
    dist.irecv(x[2], 1, group=groups[2]),
    dist.all_reduce(x[3], group=groups[3], async_op=True),
]
for work in works:
    try:
        work.wait()
    except dist.DistBackendError as error:
        say(f"got {error}")
say("in time" if time.monotonic() - since < 5 else "late")
"""


def test_a_rank_that_raises(run):  # noqa: F811
    """Small and large sums and a receive get the failed rank's error, or that it destroyed the group."""
    said, status = run(RAISES, SECONDS="60")
    assert status, said
    assert said.count("rank 0 got rank 1 has ended with ValueError: no more") == 3, said
    assert said.count("rank 0 got rank 1 has destroyed the group") == 1, said
    assert "rank 0 in time" in said, said


LEAVES = """
net, x = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1)), torch.ones(10)
for i in range(3 - rank):
    since = time.monotonic()
    try:
        net(x).sum().backward()
    except Exception as error:
        say(f"got {error} in {time.monotonic() - since:.0f} s")
        raise
if rank:
    sys.exit()
"""
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


def test_a_rank_with_a_batch_fewer(run):  # noqa: F811
    said, status = run(LEAVES, SECONDS="60")
    assert status, said
    found = re.search(r"rank 0 got .*rank 1 has ended, and does not come to call .* in (\d+) s", said)
    assert found, said
    assert int(found[1]) < 5, said


def test_a_group_beside_gloo_has_barriers_and_hears_of_ends(run):  # noqa: F811
    said, status = run(SECOND, head=BESIDE_GLOO)
    assert status, said
    assert "rank 0 got rank 1 has ended, and does not come to call 1 of the group\n" in said, said


#: Head of a program whose ranks all have a GPU; in the program, rank 1 alone uses GPU memory.
ON_GPUS = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import standin
standin.load()
import fake_torch, compcoll.devices.cuda as cuda
cuda.is_usable = lambda: True
"""
ON_ONE = """
fake_torch.install()
x = fake_torch.tensor(torch.ones(n)) if rank else torch.ones(n)
try:
    dist.broadcast(x, 0)
except dist.DistBackendError as error:
    say(f"got {error} in {time.monotonic() - since:.0f} s")
"""


@pytest.mark.skipif(compiler() is None, reason="needs g++ on x86-64")
def test_memory_of_one_ranks_gpu_alone_ends_in_the_time_out(run):  # noqa: F811
    """A large broadcast without a codec, by MPI on one rank and by the engine on the other, times out."""
    standin.load()
    said, _ = run(ON_ONE, head=ON_GPUS + HEAD, SECONDS="3", COMPCOLL_CODEC="none")
    assert sorted(re.findall(r"rank (\d) got .*Timed out after 3 s", said)) == ["0", "1"], said


#: Calls of rank 1 against rank 0's `all_reduce`, and their names in errors.
OTHERS = {
    "broadcast": ("dist.broadcast(x, 0, group=group)", "broadcast 0 torch.float32 {n}"),
    "all_gather": (
        "dist.all_gather(outs, x, group)",
        "allgather torch.float32 {n} {n}",
    ),
    "barrier": ("dist.barrier(group)", "barrier"),
    "half": ("dist.all_reduce(x[: n // 2], group=group)", "allreduce SUM torch.float32 {half}"),
    "double": ("dist.all_reduce(double, group=group)", "allreduce SUM torch.float64 {n}"),
}
DIFFERS = """
def called(words, call):
    try:
        call()
        say(f"{{words}}: nobody noticed")
    except compcoll.MismatchError as error:
        say(f"{{words}}: {{error}}")

kept = []  # MPI may still write to it
for n in (10, 100_000):
    for name, other in {others}.items():
        group, x = dist.new_group(), torch.ones(n)
        kept += [x, double := x.double(), outs := [x.clone() for _ in range(2)]]
        dist.all_reduce(x, group=group)
        called(f"{{name}} {{n}}", lambda: eval(other) if rank else dist.all_reduce(x, group=group))
group = dist.new_group(pg_options=compcoll.torch.Options("lossless", min_nbytes=0))
splits, out = ([7] * 2, [7] * 2) if rank else (), torch.zeros(14)
called("splits", lambda: dist.all_to_all_single(out, x[:14], *splits, group=group))
called("policy", lambda: compcoll.torch.set_policy("int8") if rank else dist.all_reduce(x[:10]))
"""


def test_ranks_that_call_something_else(run):  # noqa: F811
    """Another operation, size, type, split or setting raises on all ranks, and names each rank's call."""
    said, status = run(
        DIFFERS.format(others={name: call for name, (call, _) in OTHERS.items()}), SECONDS="60"
    )
    assert status, said
    assert "nobody noticed" not in said, said
    for rank in range(2):
        for n in (10, 100_000):
            for name, (_, words) in OTHERS.items():
                line = re.search(f"rank {rank} {name} {n}: the ranks of the group have called (.*)", said)[1]
                theirs = words.format(n=n, half=n // 2)
                assert f"rank 1 called {theirs}, rank 0 called allreduce SUM torch.float32 {n}" in line, said
        assert re.search(f"rank {rank} splits: .*with splits", said), said
        both = "rank 1 called set_policy, rank 0 called allreduce SUM torch.float32 10"
        assert re.search(f"rank {rank} policy: .*{both}", said), said


ABSENT = """
pair = dist.new_group([0, 2], timeout=limit)
if rank == 2:
    time.sleep(10)
    sys.exit()
try:
    dist.new_group([0, 1, 2], timeout=limit)
except Exception as error:
    say(f"has no group after {time.monotonic() - since:.0f} s: {error}")
since = time.monotonic()
try:
    if rank == 0:
        work = dist.all_reduce(torch.ones(10), group=pair, async_op=True)
        while not work.is_completed() and time.monotonic() - since < 6:
            time.sleep(1e-3)
        say(f"has polled for {time.monotonic() - since:.0f} s")
        work.wait()
    else:
        compcoll.torch.set_policy("int8")
except dist.DistBackendError as error:
    say(f"got {error}")
    time.sleep(1)  # for the other rank to say it, too
    raise
"""


def test_a_rank_that_does_not_come(run):  # noqa: F811
    """A missing rank times out a new group, a call, which may be polled, and `set_policy`."""
    said, status = run(ABSENT, 3, SECONDS="2")
    assert status, said
    found = re.findall(r"rank [01] has no group after (\d+) s: .*rank 2", said)
    assert [int(seconds) < 6 for seconds in found] == [True, True], said
    assert int(re.search(r"rank 0 has polled for (\d+) s", said)[1]) < 5, said
    assert re.search(
        r"rank 0 got allreduce: Timed out after 2 s in call 1 of the process.*missing: rank 1\b", said
    )
    assert re.search(r"rank 1 got set_policy: Timed out after 2 s in call \d of the process", said), said


BARRIER = """
def values(of):
    return torch.randn(1 << 20, generator=torch.Generator().manual_seed(of))

other, got = 1 - rank, torch.empty(1 << 20)
for senders in ([0], [1], [0, 1]):
    for i in range(2):
        sent = [dist.isend(values(rank), other)] if rank in senders else []
        time.sleep(0.2)  # its first parts are on their way
        world.monitored_barrier(timeout=timedelta(seconds=10))
        if other in senders:
            dist.recv(got, other)
            assert torch.equal(got, values(other)), i
        for work in sent:
            work.wait()
lines = sum(compcoll.torch.report(together=True).lines.values(), [])
assert ("Send", "lossless") in [(line.op, line.codec) for line in lines]
say("has all")
"""
#: A barrier times out on one rank while the other is late; memory freed then is not written to.
LATE = """
other = dist.new_group()
for late in (1, 0):
    group = dist.new_group()
    dist.barrier(other)
    if rank == late:
        time.sleep(2)
    try:
        group.monitored_barrier(timeout=timedelta(seconds=1))
    except RuntimeError as error:
        say(f"got {error}")
    memory = [bytearray(b"x" * k) for k in (1, 2, 8, 16) for _ in range(5000)]
    dist.barrier(other)
    time.sleep(0.5)  # messages of the late one arrive
    dist.barrier(other)
    assert all(set(one) == {120} for one in memory)
    say("has its memory")
"""


def test_monitored_barriers(run):  # noqa: F811
    """Monitored barriers pass messages in flight, and name a late rank."""
    said, _ = run(BARRIER + LATE, COMPCOLL_CODEC="lossless")
    assert said.count("has all\n") == 2, said
    for late in range(2):
        assert re.search(f"rank {1 - late} got .*rank {late}\\b", said, re.IGNORECASE), said
    assert said.count("has its memory\n") == 4, said


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


@pytest.mark.parametrize(
    ("head", "end"), [(HEAD, "dist.destroy_process_group()"), (BESIDE_GLOO, "")], ids=["destroyed", "gloo"]
)
def test_a_caught_error_leaves_others_the_time_to_end(run, tmp_path, head, end):  # noqa: F811
    file = tmp_path / "checkpoint"
    said, _ = run(CAUGHT.format(file=file, end=end), 3, head)
    assert all(f"rank {rank} got MismatchError\n" in said for rank in (1, 2)), said
    assert file.exists(), said


SERIALIZED = """
import os, mpi4py
mpi4py.rc.thread_level = "serialized"
import torch.distributed as dist, compcoll.torch
try:
    dist.init_process_group("compcoll")
except Exception as error:
    os.write(1, f"rank {os.environ['RANK']} got {error}".replace("\\n", " ").encode() + b"\\n")
"""


def test_a_thread_level_that_is_too_low(run):  # noqa: F811
    said, status = run(SERIALIZED, head="")
    assert status == 0, said
    assert len(re.findall("rank [01] got .*MPI.THREAD_MULTIPLE", said)) == 2, said

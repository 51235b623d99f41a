"""Segments map only the memory that frames need, and calls are right at the system's limits."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from compcoll.cli import launch
from compcoll.engine.memory import memory_nbytes

MIB = 1 << 20
#: Bytes by which a segment grows, and upper limit of the mailbox, which is mapped before any call.
PIECE, MAILBOX = 64 * MIB, MIB
#: Nodes of the job's ranks, of which the first two share memory.
NODES = "0,0,1"

PROGRAM = """
import ctypes, json, os, re, resource, sys, time
import numpy as np
from mpi4py import MPI
import compcoll
from compcoll.policy import Policy, Rule

MIB = 1 << 20
world = MPI.COMM_WORLD
HALF = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
said = {}

def limit(what, nbytes):
    resource.setrlimit(what, (nbytes, resource.getrlimit(what)[1]))

def addresses():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def segments():
    '''Bytes of segments: mapped, resident, and in a core file.'''
    mapped = resident = dumped = 0
    for area in re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read()):
        if "/memfd:compcoll" in area:
            size, rss = (1024 * int(re.search(name + r": +(\\d+)", area)[1]) for name in ("Size", "Rss"))
            mapped, resident = mapped + size, resident + rss
            dumped += size * (" dd" not in re.search("VmFlags:.*", area)[0])
    return mapped, resident, dumped

def right(comm, n=1 << 18):
    '''True if calls of so many elements for each rank have the right values.'''
    mine = np.arange(n, dtype="i4") + comm.rank
    total, blocks = np.empty_like(mine), np.empty((comm.size, n), "i4")
    comm.Allreduce(mine, total)
    ok = (total == comm.size * np.arange(n) + comm.size * (comm.size - 1) // 2).all()
    comm.Allgather(mine, blocks)
    ok &= all((block == np.arange(n) + r).all() for r, block in enumerate(blocks))
    comm.Bcast(mine, 1)
    return bool(ok and (mine == np.arange(n) + 1).all())

def by_chunks(nbytes):
    return compcoll.Comm(world, policy=Policy("raw", rules=(Rule(chunk_nbytes=nbytes),)))

def used():
    comm = compcoll.Comm(world, codec="raw")
    said["before any call"] = segments()
    if world.rank == 0:
        limit(resource.RLIMIT_AS, addresses() + 48 * MIB)
    ok = right(comm)
    said["no piece can be mapped"] = ok, segments()
    limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    said["all can be mapped"] = right(comm), segments()

    limit(resource.RLIMIT_FSIZE, 128 * MIB)  # a piece, behind that of the mailbox
    arrays = [np.full(MIB // 4, i if world.rank == 0 else -1, "i4") for i in range(100)]
    time.sleep(0.5 * (world.rank == 1))  # till the piece is full
    MPI.Request.Waitall([comm.Ibcast(array) for array in arrays])
    ok = all((array == i).all() for i, array in enumerate(arrays))
    said["a segment is full"] = bool(ok), right(comm), segments()

    limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    array = np.full(65 * MIB, world.rank == 0, "u1")
    by_chunks(128 * MIB).Bcast(array, 0)
    said["blocks longer than a piece"] = bool(array.all())

def limited():
    limit(resource.RLIMIT_AS, HALF * 3 // 2)
    ok = right(compcoll.Comm(world, codec="raw"))
    np.empty(HALF * 3 // 5, "u1")
    said["addresses of its own"] = ok

def locked():
    if ctypes.CDLL(None).mlockall(3):  # MCL_CURRENT | MCL_FUTURE
        said["locked"] = None
        return
    ok = right(compcoll.Comm(world, codec="raw"))
    said["locked"] = ok, segments()

def without_memory():
    comm, mine = by_chunks(32 * MIB), np.full(8 * MIB, world.rank, "i4")
    if world.rank == 1:
        limit(resource.RLIMIT_AS, addresses() + 12 * MIB)
    try:
        comm.Bcast(mine, 0)
        said["ends"] = "right" if (mine == 0).all() else "wrong"
    except (MPI.Exception, MemoryError, compcoll.FrameError) as problem:
        said["ends"] = type(problem).__name__
    limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)

globals()[sys.argv[1]]()
everyone = world.gather(said)
if world.rank == 0:
    print(json.dumps(everyone), flush=True)
"""


@cache
def job(name: str) -> list[dict]:
    """Output of the ranks of a job."""
    environment = {**os.environ, "COMPCOLL_NODES": NODES, "COMPCOLL_TIMEOUT": "30"}
    command = [launch.find_mpiexec(), "-n", "3", sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_nothing_is_mapped_before_a_call():
    assert all(mapped <= 2 * MAILBOX for mapped, _, _ in (one["before any call"] for one in job("used")))


def test_what_is_used_is_mapped():
    for rank, one in enumerate(job("used")):
        ok, (mapped, _, _) = one["all can be mapped"]
        assert ok
        assert rank == 2 or PIECE <= mapped <= 2 * (PIECE + MAILBOX)


def test_no_core_file_has_frames():
    assert all(dumped == 0 for one in job("used") for _, _, dumped in (one["all can be mapped"][1],))


def test_a_receiver_that_maps_nothing():
    said = job("used")
    assert [one["no piece can be mapped"][0] for one in said] == [True] * 3
    assert said[0]["no piece can be mapped"][1][0] <= 2 * MAILBOX


def test_a_segment_that_is_full():
    for ok, again, (mapped, _, _) in (one["a segment is full"] for one in job("used")):
        assert ok
        assert again
        assert mapped <= 2 * (PIECE + MAILBOX)


def test_blocks_longer_than_a_piece():
    assert all(one["blocks longer than a piece"] for one in job("used"))


def test_programs_keep_their_share_of_addresses():
    """Under RLIMIT_AS, an array of two fifths of the limit can be allocated after calls."""
    assert all(one["addresses of its own"] for one in job("limited"))


def test_memory_that_is_locked():
    said = [one["locked"] for one in job("locked")]
    if None in said:
        pytest.skip("this process may lock no memory")
    for ok, (_, resident, _) in said:
        assert ok
        assert resident <= 2 * (PIECE + MAILBOX)


def test_a_receiver_without_memory():
    """A rank without memory gets an error, and no rank hangs or has a wrong value."""
    ends = [one["ends"] for one in job("without_memory")]
    assert ends[1] not in ("right", "wrong")
    assert "wrong" not in ends


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/job/rank\n", {"memory.max": "max", "job/memory.max": "4096000"}, 4096000),
        ("0::/job/rank\n", {"job/memory.max": "4096000", "job/rank/memory.max": "8192"}, 8192),
        ("0::/\n", {"memory.max": "12288"}, 12288),
        ("0::/../../other\n", {"memory.max": "12288"}, 12288),
        ("5:cpu:/a\n4:memory,hugetlb:/of/the/host\n0::/\n", {"memory/memory.limit_in_bytes": "8192"}, 8192),
        ("0::/job\n", {}, None),
        ("", {"memory.max": "8192"}, None),
    ],
)
def test_limits_of_control_groups(tmp_path, groups, files, limit):
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{k}": v for k, v in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_nbytes(tmp_path) == (machine if limit is None else limit)

"""GPU frames in memory shared by a node's ranks, on the stand-in: registered, refused, and full."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from executor import compiler

from compcoll.cli import launch

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++ on x86-64")
#: Bytes that a rank registers of its own segment, and of each segment from which its GPU receives.
PIECE = 64 << 20

PROGRAM = """
import json, os, sys, time
import numpy as np
import standin
from mpi4py import MPI
import compcoll
from compcoll.devices import cuda
from compcoll.policy import Policy, Rule

world = MPI.COMM_WORLD
mode, told = sys.argv[1], {}
cuda.has_gpu = lambda: mode != "one without" or world.rank > 0
N = 3000

def values(rank, n):
    return np.cumsum(np.random.default_rng(rank).standard_normal(n)).astype("f4")

def made(codec, chunk=4096, **rule):
    policy = Policy("lossless", min_nbytes=0, rules=(Rule(codec=codec, chunk_nbytes=chunk, **rule),))
    return compcoll.Comm(world, policy=policy)

def called(place):
    '''Bits of the results of calls on memory of one kind.'''
    results = []
    for codec in ("lossless", "zfp:rate=8", "raw"):
        for name, n, m, algorithms in (
            ("Allgather", N, N * world.size, ("ring",)),
            ("Alltoall", N * world.size, N * world.size, ("pairwise",)),
            ("Allreduce", N, N, ("ring", "direct", "recursive_halving")),
            ("Bcast", N, 0, ("tree", "chain")),
        ):
            for algorithm in algorithms:
                comm = made(codec, algorithm=algorithm)
                sent, got = place(values(world.rank, n)), place(np.zeros(m, "f4"))
                if name == "Bcast":
                    comm.Bcast(sent, world.size - 1)
                    got = sent
                else:
                    getattr(comm, name)(sent, got)
                results.append(np.asarray(got).tobytes().hex())
                comm.Free()
    return results

def maps():
    return [line for line in open("/proc/self/maps") if "/memfd:compcoll" in line]

def holes():
    '''True if this rank's registered piece, which follows the piece of the host's frames, has lost pages.'''
    from compcoll.engine import _engine
    _, fd, _ = _engine.segment_address()
    return os.lseek(fd, 128 << 20, os.SEEK_HOLE) < 192 << 20

with standin.installed():
    device = standin.Device(0, world.rank)
    refuses = mode == "refused" or (mode == "refused on one" and world.rank == 1)
    device.lib.standin_register(not refuses, mode != "other addresses")
    told["before"] = device.lib.standin_live(6)
    wanted = called(np.array)
    told["of the host"] = device.lib.standin_live(6)
    got = called(np.array if mode == "one on the host" and world.rank == 0 else device.array)
    told["right"] = got == wanted
    told["pageable"] = device.pageable
    told["registered"] = device.lib.standin_live(6)
    if mode == "many":
        n = 1 << 20
        plain, sent = compcoll.Comm(world, codec="none"), np.arange(n * world.size, dtype="f4") + world.rank
        blocks = device.array(np.zeros(n * world.size, "f4"))
        plain.Alltoall(device.array(sent), blocks)
        want = np.concatenate([np.arange(n, dtype="f4") + n * world.rank + r for r in range(world.size)])
        told["right uncompressed"] = bool((blocks.get() == want).all())
        for i in range(100):
            comm = made("raw").Dup()
            blocks = device.array(np.zeros(N * world.size, "f4"))
            comm.Allgather(device.array(values(world.rank, N)), blocks)
            comm.Free()
        told["registered after many"] = device.lib.standin_live(6)
        told["mapped"] = len(maps())
        told["holes"] = bool(told["registered"]) and holes()
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        told["right after a fork"] = called(device.array) == wanted
    if mode == "full":
        comm, n = made("raw", 1 << 20), 1 << 18
        arrays = [device.array(np.full(n, i if world.rank == 0 else -1, "f4")) for i in range(100)]
        time.sleep(1.0 * (world.rank == 1))
        MPI.Request.Waitall([comm.Ibcast(array) for array in arrays])
        told["right when full"] = all(bool((array.get() == i).all()) for i, array in enumerate(arrays))
        told["right"] = told["right"] and called(device.array) == wanted
    told["sound"] = device.sound()
everyone = world.gather(told)
if world.rank == 0:
    print(json.dumps(everyone), flush=True)
"""


def job(mode: str, nodes: str = "") -> tuple[list[dict], str]:
    """Run three ranks; return their output and their stderr."""
    return _job(mode, nodes)


@cache
def _job(mode: str, nodes: str) -> tuple[list[dict], str]:
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "COMPCOLL_TIMEOUT": "60", "PYTHONPATH": paths}
    if nodes:
        environment["COMPCOLL_NODES"] = nodes
    command = [launch.find_mpiexec(), "-n", "3", sys.executable, "-c", PROGRAM, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(
    ("mode", "nodes"),
    [
        ("many", ""),
        ("many", "0,0,1"),
        ("other addresses", ""),
        ("refused", ""),
        ("refused on one", ""),
        ("refused on one", "0,0,1"),
        ("full", ""),
        ("one on the host", ""),
        ("one without", ""),
    ],
)
def test_the_bits_are_those_of_host_memory(mode, nodes):
    said, _ = job(mode, nodes)
    assert [one["right"] and one["sound"] for one in said] == [True] * 3


def test_nothing_is_registered_before_a_frame_lies_on_a_gpu():
    assert all(one["before"] == one["of the host"] == 0 for one in job("many")[0])


def test_ranks_of_a_node_register_a_piece_of_each():
    assert [one["registered"] for one in job("many")[0]] == [3 * PIECE] * 3
    assert [one["registered"] for one in job("many", "0,0,1")[0]] == [2 * PIECE, 2 * PIECE, 0]


def test_communicators_that_were_freed_leave_no_more_registered():
    said, _ = job("many")
    assert all(one["registered after many"] == one["registered"] for one in said)


def test_registered_memory_keeps_its_pages():
    assert all(not one["holes"] for one in job("many")[0])


def test_copies_do_not_have_the_host_wait():
    """No copy uses pageable memory: frames that the driver refuses to share are in pinned memory."""
    for mode in ("many", "other addresses", "refused", "refused on one", "full"):
        assert all(one["pageable"] == 0 for one in job(mode)[0]), mode


def test_uncompressed_calls():
    assert all(one["right uncompressed"] for one in job("many")[0] + job("many", "0,0,1")[0])


def test_calls_after_a_fork():
    assert all(one["right after a fork"] for one in job("many")[0])


def test_what_the_driver_refuses_is_said_once():
    text = "does not register shared memory of 67108864 bytes"
    assert job("many")[1].count(text) == 0
    assert job("refused on one")[1].count(text) == 1
    assert job("refused")[1].count(text) == 3
    assert all(one["registered"] == 0 for one in job("refused")[0])


def test_more_frames_than_a_registered_piece_holds():
    assert all(one["right when full"] for one in job("full")[0])


def test_nothing_is_shared_where_a_rank_has_no_gpu():
    assert all(one["registered"] == 0 for one in job("one without")[0])

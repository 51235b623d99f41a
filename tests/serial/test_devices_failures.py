"""GPUs that fail, which is permanent, and first calls of a process, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from executor import build, compiler
from standin import load

from compcoll.cli.launch import find_mpiexec

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")
COMMON = f"""
import ctypes, sys, time
sys.path.append({str(Path(__file__).parent)!r})
import standin
driver = standin.load()
import numpy as np
from mpi4py import MPI
import compcoll
world = MPI.COMM_WORLD
def right(array, i=0):
    want = np.concatenate([data(rank, i)[world.rank] for rank in range(world.size)])
    return np.array_equal(np.asarray(array), want)
def data(rank, i=0):
    return np.arange(world.size * 5000.0).reshape(world.size, -1) % 1000 + rank + i
def mine(i=0):
    return data(world.rank, i).reshape(-1)
"""


def run(program: str, *arguments: object) -> list[str]:
    """Run a program on two ranks; return the lines that they print."""
    load()
    build()
    command = [find_mpiexec(), "-n", "2", sys.executable, "-c", COMMON + program, *map(str, arguments)]
    environment = {**os.environ, "COMPCOLL_TIMEOUT": "5", "COMPCOLL_STANDIN_DEVICES": "16"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


FAILING = """
first, step = map(int, sys.argv[1:3])
codec, warm, name = sys.argv[3], sys.argv[4] == "warm", sys.argv[5]
sys.unraisablehook = lambda problem: None
import warnings
warnings.simplefilter("ignore")
with standin.installed():
    comm = compcoll.Comm(world, codec, min_nbytes=0)
    ways = {
        "Alltoall": lambda c, s, r: c.Alltoall(s, r),
        "Ialltoall": lambda c, s, r: c.Ialltoall(s, r).Wait(),
        "messages": lambda c, s, r: MPI.Request.Waitall([
            request for p in range(c.size) for n in [s.size // c.size] for request in
            (c.Irecv(r[p * n:][:n], p, 3), c.Isend(s[p * n:][:n], p, 3))]),
    }
    way = ways[name]
    devices = [standin.Device(i) for i in range(16)]
    arrays = [(one.array(mine(i)), one.array(np.zeros(mine().size))) for i, one in enumerate(devices)]
    for i, (send, recv) in enumerate(arrays) if warm else ():
        way(comm, send, recv)
        assert right(recv, i)
        recv.set(0)
    for i, (send, recv) in enumerate(arrays):
        world.Barrier()
        if world.rank == 1:
            driver.lib.standin_fail_from(first + step * i, 700)
        start, problem = time.monotonic(), ""
        try:
            way(comm, send, recv)
        except Exception as error:
            problem = str(error)
        seconds = time.monotonic() - start
        driver.lib.standin_fail_from(-1, 0)
        said = "raised" if problem else "right" if right(recv, i) else "wrong"
        said = f"rank {world.rank} waited in vain: {problem}" if seconds > 4 else said
        duplicate = world.Dup()  # messages of a call that failed meet no other's
        comm = compcoll.Comm(duplicate, codec, min_nbytes=0)
        host = np.zeros(mine().size)
        way(comm, mine(), host)
        said = said if right(host) else "wrong values of host memory"
        said = world.allgather(said)
        if codec == "none" and "raised" in said:  # MPI has received a part
            said = [one.replace("wrong", "raised") for one in said]
        if world.rank == 0:
            bad = [one for one in said if one not in ("right", "raised")]
            print(first + step * i, *bad or [max(said, key=("right", "raised").index)], flush=True)
"""


#: Form of a call, codec, warm or cold GPUs, and jobs. A job has the first driver call that fails on the
#: first GPU, and how many calls later it is on each next GPU; the forms together have every second call up
#: to 60. A cold call loads kernels first, some hundred driver calls.
FAILURES = [
    ("Alltoall", "mpc", "warm", [(0, 4)]),
    ("Ialltoall", "mpc", "warm", [(2, 4)]),
    ("messages", "mpc", "warm", [(1, 4)]),
    ("Alltoall", "mpc", "cold", [(0, 1), (100, 8)]),
    ("Ialltoall", "mpc", "cold", [(16, 5)]),
    ("messages", "mpc", "cold", [(3, 8)]),  # not `none`: MPI cannot end waits for messages that are not sent
    ("Alltoall", "none", "warm", [(0, 4)]),
    ("Ialltoall", "none", "cold", [(0, 2)]),
]


@pytest.mark.parametrize(("name", "codec", "warm", "jobs"), FAILURES)
@pytest.mark.exhaustive
def test_a_gpu_that_fails_after_some_calls(name, codec, warm, jobs):
    """Each rank raises or has the right values, and later calls on host memory are right."""
    found: dict[int, str] = {}
    for first, step in jobs:
        lines = [line.split(" ", 1) for line in run(FAILING, first, step, codec, warm, name)]
        found |= {int(calls): said for calls, said in lines}
    odd = {calls: said for calls, said in found.items() if said not in ("right", "raised")}
    assert not odd
    assert "raised" in found.values()


CAPTURED = """
who, codec, name = sys.argv[1:]
ways = {
    "Alltoall": lambda c, s, r: c.Alltoall(s, r),
    "Ialltoall": lambda c, s, r: c.Ialltoall(s, r).Wait(),
}
way = ways[name]
with standin.installed():
    comm, device = compcoll.Comm(world, codec, min_nbytes=0), standin.Device(0)
    send, recv = device.array(mine()), device.array(np.zeros(mine().size))
    if who != "first":
        way(comm, send, recv)
        recv.set(0)
    if world.rank == 0 or who != "one":
        stream, graph = standin.Stream(device), ctypes.c_void_p()
        device.call("cuStreamBeginCapture_v2", stream.ptr, 0)
        with stream:
            try:
                way(comm, send, recv)
            except MPI.Exception as error:
                assert "graph" in str(error), error
            else:
                raise AssertionError("it raised nothing")
        code = device.try_call("cuStreamEndCapture", stream.ptr, ctypes.byref(graph))
        assert code == 0, f"the capture is invalid: {code}"
    device.reset()
    way(comm, send, recv)
    assert right(recv)
    assert codec == "none" or device.launches, "the host coded"
    print("right", flush=True)
"""


@pytest.mark.parametrize(
    ("name", "who", "codec"),
    [
        ("Alltoall", "first", "lossless"),
        ("Ialltoall", "all", "lossless"),
        ("Ialltoall", "one", "lossless"),
        ("Ialltoall", "first", "none"),
        ("Alltoall", "all", "none"),
        ("Alltoall", "one", "none"),
    ],
)
@pytest.mark.exhaustive(but=1)
def test_a_call_in_a_captured_stream(name, who, codec):
    """A call in a capture raises and keeps the capture valid; made again outside, it has the right values."""
    assert "".join(run(CAPTURED, who, codec, name)) == "right" * 2


HOST = """
comm = compcoll.Comm(world, "lossless", min_nbytes=0)
host = np.zeros(mine().size)
for call in (comm.Alltoall, comm.Alltoall, lambda s, r: comm.Ialltoall(s, r).Wait()):
    call(mine(), host)
assert right(host)
comm.Sendrecv(mine(), (comm.rank + 1) % comm.size, 0, host, (comm.rank - 1) % comm.size, 0)
found = driver.listed()
assert not found["cuInit"], found
assert not found["cuDevicePrimaryCtxRetain"], found
assert driver.lib.standin_live(3) == 0
device = standin.Device(0)  # the program starts to use a GPU after all
with standin.installed():
    send, recv = device.array(mine()), device.array(np.zeros(mine().size))
    comm.Alltoall(send, recv)
    assert right(recv)
    assert driver.listed()["cuInit"] == 0
    assert device.launches
print("right", flush=True)
"""


def test_host_memory_leaves_gpus_alone():
    assert "".join(run(HOST)) == "right" * 2


NO_KERNELS = """
device = standin.Device(0)
sys.modules["cupy"] = None
comm = compcoll.Comm(world, "lossless", min_nbytes=0)
send, recv = device.array(mine()), device.array(np.zeros(mine().size))
comm.Alltoall(send, recv)
assert right(recv) and not device.launches and device.sound()
print("right", flush=True)
"""


def test_without_cupy_the_host_codes():
    assert "".join(run(NO_KERNELS)) == "right" * 2


FRESH = """
driver.lib.standin_fail_on_fresh(1)
with standin.installed():
    device, comm = standin.Device(0), compcoll.Comm(world, "lossless", min_nbytes=0)
    for n in (1, 517, 2500, 20003):
        values = np.sin(np.arange(n * world.size, dtype="f4") / 50)
        for spec in ("lossless", "mpc", "szp:abs=1e-3", "bfp:bits=7"):
            codec = compcoll.codec(spec)
            frame = np.asarray(codec.encode(device.array(values)))
            assert np.array_equal(frame, codec.encode(values)), (spec, n)
        send, recv = device.array(values), device.array(np.zeros_like(values))
        comm.Alltoall(send, recv)
        assert comm.report.accelerated, comm.report
        assert np.array_equal(np.asarray(recv)[:n], values[world.rank * n :][:n])
    assert device.sound()
print("right", flush=True)
"""


def test_no_copy_to_the_host_reads_memory_that_nothing_has_written():
    assert "".join(run(FRESH)) == "right" * 2

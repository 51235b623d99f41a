"""The lab: its links have the requested rate, and it leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import spare_cores
from benchmarks.netlab import Lab, Unavailable, watchdog
from benchmarks.netlab.__main__ import main
from benchmarks.netlab.launch import OPEN_MPI, find_mpiexec

RING = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
left = comm.sendrecv(comm.rank, (comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
near = comm.Split_type(MPI.COMM_TYPE_SHARED).size
print(f"left {left} of {comm.size} near {near}\\n", end="", flush=True)
"""
NODES = """
import socket
from mpi4py import MPI
from benchmarks.netlab import port_bytes
comm = MPI.COMM_WORLD
data, into = bytearray(8 << 20), bytearray(8 << 20)

def moved(peer):
    comm.Barrier()
    before = port_bytes(), port_bytes("lo")
    comm.Barrier()
    comm.Sendrecv(data, peer, 0, into, peer, 0)
    comm.Barrier()
    return port_bytes()[0] - before[0][0], port_bytes("lo")[0] - before[1][0]

line = " ".join(map(str, [socket.gethostname(), *moved(comm.rank ^ 1), *moved(comm.rank ^ 2)]))
print(line + "\\n", end="", flush=True)
"""
#: Messages of all forms, some with another kind of receive, some longer than the receive buffer.
MESSAGES = """
import numpy as np
from mpi4py import MPI
import compcoll
comm, n = compcoll.Comm(MPI.COMM_WORLD, "lossless"), 50_000
other, x, y = 1 - comm.rank, np.arange(50_000.0), np.zeros(50_000)
for tag in range(20):
    if comm.rank == 0:
        comm.Send(x, 1, tag), comm.Ssend(x, 1, tag), comm.Isend(x, 1, tag).Wait()
    else:
        comm.Probe(0, tag), comm.Recv(y, 0, tag), comm.Mprobe(0, tag).Recv(y)
        while not comm.Iprobe(0, tag):
            pass
        comm.Irecv(y, 0, tag).Wait()
    comm.Sendrecv(x, other, tag, y, other, tag)
    comm.Sendrecv_replace(y, other, tag, other, tag)
    comm.send(x, other, tag), comm.recv(None, other, tag)
requests = [comm.Send_init(x, other), comm.Recv_init(y, other)]
for _ in range(10):
    MPI.Prequest.Startall(requests), MPI.Request.Waitall(requests)
assert (x == y).all()
for room in n // 10, 1000, 128:
    request = comm.Isend(x, other)
    try:
        comm.Recv(np.zeros(room), other)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_TRUNCATE
    request.Wait()
print("end", flush=True)
"""
HERE = len(os.sched_getaffinity(0))
ENDLESS = "from mpi4py import MPI\nwhile True: MPI.COMM_WORLD.allgather(bytes(1 << 16))"


CORES = "import os; os.write(1, f'{sorted(os.sched_getaffinity(0))}\\n'.encode())"


@pytest.fixture(scope="module")
def lab():
    try:
        find_mpiexec()
        with Lab(hosts=2, gbit=1) as lab:
            yield lab
    except (Unavailable, FileNotFoundError) as error:
        pytest.skip(f"no lab on this machine: {error}")


def remains(name: str) -> list[str]:
    return watchdog.namespaces(name) + [p.name for p in Path(tempfile.gettempdir()).glob(f"{name}-*")]


def until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(shutil.which(OPEN_MPI) is None, reason="no Open MPI")
def test_open_mpi_starts_ranks_on_all_hosts(lab):
    done = lab.run(["hostname"], ppn=2, capture=True, timeout=30, open_mpi=True)
    assert sorted(done.stdout.split()) == ["host0", "host0", "host1", "host1"]


def test_ranks_meet_over_the_links(lab):
    done = lab.run(["-genv", "UNUSED", "1", sys.executable, "-c", RING], capture=True, timeout=30)
    assert sorted(done.stdout.split("\n"))[1:] == ["left 0 of 2 near 1", "left 1 of 2 near 1"]


def test_compressed_messages_leave_nothing_that_was_not_received(lab):
    """Every message is received, or UCX would name it in MPI_Finalize."""
    done = lab.run([sys.executable, "-c", MESSAGES], capture=True, timeout=60)
    assert (done.stdout.count("end"), done.stderr) == (2, "")


def test_hosts_share_memory_inside_and_not_across(lab):
    done = lab.run([sys.executable, "-c", NODES], ppn=2, capture=True, timeout=30)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sorted(name for name, *_ in lines) == ["host0", "host0", "host1", "host1"]
    for name, *counts in lines:
        near, near_lo, far, far_lo = map(int, counts)
        assert max(near, near_lo, far_lo) < 1 << 20, (name, counts)
        assert 16 << 20 < far < 18 << 20, (name, counts)


def test_bytes_through_the_ports_are_counted(lab):
    before = lab.port_bytes()
    lab.measure(1 << 20, repeats=1)
    moved = np.array(lab.port_bytes()) - np.array(before)
    assert moved.ravel() == pytest.approx(4 * [1 << 20], rel=0.1)


def test_shared_memory_goes_with_the_lab(lab):
    name = f"netlab-{os.getpid()}"
    script = f"from pathlib import Path; f = Path('/dev/shm/{name}'); assert not f.exists(); f.write_text('')"
    lab.run(["-ppn", "1", sys.executable, "-c", script])
    assert not Path("/dev/shm", name).exists()


def test_hosts_have_cores_of_their_own_or_share_them(lab, monkeypatch):
    """Ranks of two hosts have disjoint cores by default, and the same ones if hosts share them."""

    def cores_of_ranks():
        done = lab.run([sys.executable, "-c", CORES], capture=True, timeout=30)
        return sorted(json.loads(line) for line in done.stdout.splitlines())

    here = sorted(os.sched_getaffinity(0))
    each = max(1, len(here) // 2)
    assert cores_of_ranks() == [here[:each], here[each:][:each] or here]
    monkeypatch.setattr(lab, "shared_cores", True)
    assert cores_of_ranks() == [here, here]
    monkeypatch.setattr(lab, "cores_per_host", 1)
    assert cores_of_ranks() == [here[:1], here[:1]]


def test_links_have_their_rate(lab):
    rates = [rate for link in lab.measure() for rate in link]
    assert len(rates) == 4
    assert all(rate == pytest.approx(1.0, rel=0.15) for rate in rates), rates


@pytest.mark.exhaustive
def test_frames_are_measured_beside_mpi_alone(lab):
    """Results equal plain MPI's, or the program would fail."""
    options = ["--operations", "alltoall,allreduce", "--codec", "bfp:bits=7,none", "--chunks", "64K,gpu"]
    program = [sys.executable, "-m", "benchmarks.frames", *options, "--nbytes", "256K", "--iters", "1"]
    rows = [line.split(" | ") for line in lab.run(program, capture=True, timeout=60).stdout.splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        [f"| {op}", spec, chunk]
        for op in ("alltoall", "allreduce")
        for spec, chunks in (("bfp:bits=7", ("0.06", "1.00")), ("none", ("0.06", "1.00")))
        for chunk in chunks
    ]
    # A frame has about 7.3 bits a value.
    assert [row[3] for row in rows] == ["0.01", "0.23", "0.06", "1.00"] * 2
    assert all(float(row[4]) > 0 for row in rows)


def test_timeout_kills_every_rank(lab):
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run([sys.executable, "-c", ENDLESS], timeout=2)
    assert watchdog.processes(lab.name) == []


@pytest.mark.exhaustive
def test_a_dropped_link_ends_the_program(lab):
    lab.LOST_SECONDS = 1.0
    begin = time.monotonic()
    done = lab.run([sys.executable, "-c", ENDLESS], down=[(1, 1.5)], check=False, capture=True, timeout=30)
    lab.set_link(1, True)
    assert done.returncode != 0
    assert time.monotonic() - begin < 8


def test_nothing_stays_after_the_end(lab):
    with Lab(hosts=3, gbit=0) as other:
        assert len(remains(other.name)) == 4
        assert other.name != lab.name
    assert remains(other.name) == []
    assert other.holders == []
    assert len(remains(lab.name)) == 3, "a lab in use was taken for a stale one"


def test_nothing_stays_after_a_kill(lab):
    command = [sys.executable, "-m", "benchmarks.netlab", "--gbit", "0", "--", sys.executable, "-c", ENDLESS]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        name = f"netlab-{process.pid}-{watchdog.started(process.pid)}-0"
        # mpiexec, two shells and two proxies come before the ranks.
        assert until(lambda: len(watchdog.processes(name)) >= 7, 15)
        assert len(remains(name)) == 4
        process.kill()
    assert until(lambda: not remains(name), 15), remains(name)


def test_remains_of_the_dead_are_removed(lab):
    name = f"netlab-{os.getpid()}-1-0"  # our process id, with a start at boot
    lab.command("ip", "netns", "add", f"{name}.head")
    assert watchdog.stale() == [name]
    with Lab(hosts=1, gbit=0):
        assert watchdog.namespaces(name) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no program"),
        (["--hosts", "0", "true"], "0 hosts are not between"),
        (["--gbit", "-1", "true"], "-1.0 Gb/s is not between"),
        (["--down", "1", "true"], "'1' is not HOST@SECONDS"),
        (
            ["--cores-per-host", "9999", "true"],
            f"9999 cores for each of 2 hosts: this process may use {HERE}",
        ),
        (
            ["--cores-per-host", "9999", "--shared-cores", "true"],
            f"9999 cores for all hosts: this process may use {HERE}",
        ),
        (["--cores-per-host", "0", "true"], "0 cores for each of 2 hosts"),
    ],
)
def test_wrong_options_of_the_command(options, words):
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 2
    assert words in done.output


def test_the_command_says_why_there_is_no_lab(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(main, ["--", "true"])
    assert (done.exit_code, done.output) == (69, "netlab: network namespaces need root: run this with sudo\n")


def test_the_command_has_the_status_of_the_program(lab):
    program = [sys.executable, "-m", "benchmarks.netlab", "--hosts", "1", "--", "sh", "-c", "exit 7"]
    assert subprocess.run(program, cwd=Path(__file__).parents[2]).returncode == 7


@pytest.mark.exhaustive
def test_spare_cores_are_measured_with_workers_and_without(lab):
    options = ["--shared-cores", "--gbit", "0", "--operations", "alltoall", "--sizes", "64K", "--runs", "1"]
    done = CliRunner().invoke(spare_cores.main, options)
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.output.splitlines() if f"| {HERE} shared | 0 | alltoall | 64K |" in line]
    with_workers, without, gain = map(float, row.split("|")[5:8])
    assert min(with_workers, without, gain) > 0


def test_hosts_with_more_cores_than_there_are_are_not_measured():
    done = CliRunner().invoke(spare_cores.main, ["--cores", "9999"])
    assert done.exit_code == 2
    assert f"two hosts of 9999 cores need more than {HERE}" in done.output

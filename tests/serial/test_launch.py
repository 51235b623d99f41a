"""``compcoll.bootstrap`` makes ranks of processes that no mpiexec started; MPICH is the server's client."""

import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import pytest

import compcoll
from compcoll.launch import bootstrap, pmi

MARK = "TEST_OF_LAUNCHERS"


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def outside(**more):
    """The environment of a process that no launcher started."""
    foreign = (
        "PMI_",
        "PMIX_",
        "OMPI_",
        "COMPCOLL_",
        "MASTER_",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_",
        "TORCHELASTIC",
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(Path(compcoll.__file__).parents[1]), **more}


@pytest.fixture
def marked():
    """An environment; at the end, no process that has it may remain, nor a server."""
    mark = uuid.uuid4().hex
    yield outside(**{MARK: mark})
    deadline = time.monotonic() + 5
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def processes_with(mark):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
    return found


def run(tmp_path, environment, text, *words):
    program = tmp_path / "program.py"
    program.write_text(text)
    return subprocess.run(
        [sys.executable, program, *map(str, words)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )


SPAWN = """
import multiprocessing, os, sys

def rank(rank, size, address):
    import compcoll
    from compcoll.launch import bootstrap
    assert "mpi4py.MPI" not in sys.modules
    bootstrap.node_name = lambda: "even" if rank % 2 == 0 else "odd"
    os.environ["PMI_RANK"] = "5"  # of another launcher
    compcoll.bootstrap(rank, size, address, secret="word", timeout=30)
    assert os.environ["PMI_RANK"] == "5" and "PMI_FD" not in os.environ
    from mpi4py import MPI
    import numpy as np
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    world = compcoll.Comm(MPI.COMM_WORLD, "lossless")
    assert (world.rank, world.size) == (rank, size)
    assert world.Split_type(MPI.COMM_TYPE_SHARED).size == [2, 1, 2][rank]
    with open("/proc/self/maps") as maps:
        names = [line for line in maps if "/dev/shm/mpich" in line and "(deleted)" not in line]
    assert not names, names
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    x = np.arange(1 << 16, dtype="f8")
    y = np.empty_like(x)
    world.Allreduce(x, y)
    assert (y == size * x).all() and world.report.codec == "lossless"
    try:
        MPI.COMM_SELF.Spawn(sys.executable, ["-c", ""])
    except MPI.Exception:
        return
    raise AssertionError("spawned")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(i, 3, sys.argv[1])) for i in range(3)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(any(one.exitcode for one in ranks))
"""


def test_multiprocessing_on_nodes_as_the_server_says(tmp_path, marked):
    done = run(tmp_path, marked, SPAWN, f"127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stderr
    assert not done.stderr


ENDS = """
import os, sys, time
import compcoll
how, rank, size = sys.argv[1], int(sys.argv[2]), 3
compcoll.bootstrap(rank, size, sys.argv[3], timeout=30)
from mpi4py import MPI
if rank == 1:
    if how == "abort":
        MPI.COMM_WORLD.Abort(7)
    if how == "raise":
        raise KeyError("lost")
    if how == "kill":
        os.kill(os.getpid(), 9)
if how == "finalize":
    MPI.Finalize()
    if rank == 1:
        os._exit(4)
    time.sleep(1.5)
elif how != "early":
    MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize(
    ("how", "codes", "says"),
    [
        ("early", (0, 0, 0), ""),
        ("finalize", (0, 4, 0), ""),
        ("abort", (-9, 7, -9), "rank 1 called MPI_Abort(7)"),
        ("raise", (-9, 1, -9), "KeyError: 'lost'"),
        ("kill", (-9, -9, -9), "ended without MPI_Finalize"),
    ],
)
@pytest.mark.exhaustive(but=2)
def test_one_rank_ends_all_where_it_fails(tmp_path, marked, how, codes, says):
    address = f"127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS, how, str(rank), address],
            env=marked,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = "".join(rank.communicate(timeout=60)[1] for rank in ranks)
    assert tuple(rank.returncode for rank in ranks) == codes, said
    assert says in said
    assert bool(says) == bool(said)


WRONG = """
import json, socket, sys
from threading import Thread
import compcoll

said = []
def attempt(*args, **more):
    try:
        compcoll.bootstrap(*args, **more)
        said.append("joined")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")

port = int(sys.argv[1])
here = f"127.0.0.1:{port}"
attempt(2, 2, here)
attempt(-1, 2, here)
attempt(0, 2, "127.0.0.1")
attempt(0, 2, "127.0.0.1:70000")
attempt(0, 2, 5000)
attempt("0", 2, here)
attempt(0, 2, here, timeout=0)
attempt(0, 2, here, secret=b"word")
attempt(1, 3, here, timeout=0.3)
attempt(0, 3, here, timeout=0.3)
attempt(0, 1, "192.0.2.1:5000")
with socket.create_server(("127.0.0.1", port)):
    attempt(0, 2, here)
two = [Thread(target=attempt, args=(0, 1, here)) for _ in range(2)]
for one in two:
    one.start()
for one in two:
    one.join()
said[-2:] = sorted(said[-2:])
attempt(0, 1, here)
print(json.dumps(said))
"""


def test_wrong_arguments_and_missing_ranks_are_named(tmp_path, marked):
    port = free_port()
    done = run(tmp_path, marked, WRONG, port)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    here = f"127.0.0.1:{port}"
    expected = [
        "ValueError: rank 2 is not one of 2 ranks",
        "ValueError: rank -1 is not one of 2 ranks",
        "ValueError: '127.0.0.1' is not 'host:port'",
        "ValueError: '127.0.0.1:70000' is not 'host:port'",
        "TypeError: an address is a str",
        "TypeError: 'str' object",
        "ValueError: timeout 0",
        "TypeError: a secret is a str, not bytes",
        f"TimeoutError: rank 1 of 3: rank 0, whose server is at {here}, did not come within 0.3 s",
        "TimeoutError: ranks 1, 2 of 3 did not come within 0.3 s",
        "OSError: [Errno 99] rank 0 cannot listen at 192.0.2.1:5000",
        f"OSError: [Errno 98] rank 0 cannot listen at {here}",
        "",
        "joined",
        "RuntimeError: MPI is initialised in this process already, as rank 0 of 1",
    ]
    assert len(said) == len(expected)
    for told, begin in zip(said, expected, strict=True):
        assert told.startswith(begin), said
    assert said[12].startswith(("OSError: [Errno 98]", "RuntimeError: MPI is initialised"))


@pytest.mark.skipif(not shutil.which("mpiexec.openmpi"), reason="there is no Open MPI")
def test_open_mpi_is_refused(tmp_path, marked):
    text = "import compcoll; compcoll.bootstrap(0, 2, '127.0.0.1:5000')"
    done = run(tmp_path, {**marked, "MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}, text)
    assert "RuntimeError: Open MPI's processes have to be started by its mpiexec" in done.stderr


@pytest.fixture
def servers():
    return []


@pytest.fixture
def serve(servers):
    """Function that starts a server of some ranks in a thread of this process, and returns its port."""
    threads = []

    def serve(size, secret="word", timeout=20.0):
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        servers.append(pmi.Server(listener, size, secret, timeout))
        threads.append(Thread(target=servers[-1].run))
        threads[-1].start()
        return port

    yield serve
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def join(port, rank, size, secret="word"):
    """Join as a rank in a thread; return the thread, and a list that gets the outcome."""
    said = []

    def act():
        try:
            for line in bootstrap._join(rank, size, ("127.0.0.1", port), secret, 20):
                line.close()
            said.append("joined")
        except Exception as error:
            said.append(str(error))

    thread = Thread(target=act)
    thread.start()
    return thread, said


def await_rank_0(servers):
    while (0, "watch") not in servers[0]._members:
        time.sleep(0.01)


def answers(*ranks):
    for thread, _ in ranks:
        thread.join(20)
    return [words for _, said in ranks for words in said]


def test_strangers_are_ignored(serve, servers):
    port = serve(2)
    first = join(port, 0, 2)
    await_rank_0(servers)
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for stranger in strangers[::2]:
        with suppress(OSError):
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with suppress(OSError):
        strangers[1].sendall(b"x" * 200_000)
    assert answers(join(port, 1, 2, "another")) == ["the secret is not that of rank 0"]
    assert answers(first, join(port, 1, 2)) == ["joined", "joined"]
    for stranger in strangers:
        stranger.close()


def test_strangers_where_the_secret_is_empty(serve, servers):
    """Strangers with a valid proof and a wrong hello are dropped, and the ranks still join."""
    port = serve(2, secret="")
    first = join(port, 0, 2, "")
    await_rank_0(servers)
    wrong = ["0.5 2 pmi", "-1 2 pmi", "x 2 pmi", "1 2.0 pmi", "1 2 another", f"{'1' * 5000} 2 pmi", "1 2"]
    for hello in ["[" * 50_000, "", *(f"{words} node host" for words in wrong)]:
        with socket.create_connection(("127.0.0.1", port)) as stranger, stranger.makefile("rw") as file:
            stranger.settimeout(20)
            nonce = file.readline().split()[1]
            file.write(f"{pmi.proof('', nonce, hello)} {hello}\n")
            file.flush()
            assert file.readline() == "", hello[:60]
    assert answers(first, join(port, 1, 2, "")) == ["joined", "joined"]


@pytest.mark.parametrize(
    ("rank", "size", "says"),
    [(0, 3, "two processes are rank 0: process"), (1, 2, "is one of 2 ranks, rank 0 one of 3")],
)
def test_ranks_that_do_not_fit_are_told_to_all(serve, servers, rank, size, says):
    port = serve(3)
    first = join(port, 0, 3)
    await_rank_0(servers)
    said = answers(first, join(port, rank, size))
    assert len(said) == 2
    assert all(says in words for words in said), said


def test_a_rank_that_leaves_is_told_to_the_others(serve, servers):
    port = serve(3)
    other = join(port, 0, 3)
    await_rank_0(servers)
    with socket.create_connection(("127.0.0.1", port)) as line:
        bootstrap._introduce(line, 1, 3, "pmi", "word")
        assert not other[1]
    (said,) = answers(other)
    assert said.startswith("rank 1 (process")


def test_connections_that_come_as_the_server_ends_are_closed(serve, servers, recwarn):
    for _ in range(10):
        port = serve(2)
        first = join(port, 5, 2)
        late = []
        with suppress(OSError):  # the server has ended
            while len(late) < 20:
                late.append(socket.create_connection(("127.0.0.1", port)))
        (said,) = answers(first)
        assert "is one of 2 ranks" in said
        for line in late:
            line.settimeout(20)
            with line, suppress(ConnectionError):
                assert len(line.makefile("rb").read()) in (0, len(f"{pmi.PROTOCOL} {'0' * 32}\n"))
    gc.collect()
    assert not [str(one.message) for one in recwarn if "unclosed" in str(one.message)]


def test_another_program_answers():
    def answer(server):
        with server.accept()[0] as line:
            line.sendall(b"SSH-2.0\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=answer, args=(server,))
        thread.start()
        with pytest.raises(RuntimeError, match="rank 1 of 2: another program answers at"):
            bootstrap._join(1, 2, server.getsockname(), "", 5)
        thread.join()


def test_what_mpich_asks_for(serve):
    """The server answers as src/pmi/maint/pmi-1.1.txt of MPICH specifies."""
    lines = bootstrap._join(0, 1, ("127.0.0.1", serve(1)), "word", 20)
    lines[0].sendall(b"cmd=get_my_kvsname\n")
    name = re.fullmatch(r"cmd=my_kvsname kvsname=(\S+) rc=0", bootstrap._read_line(lines[0]))[1]
    talk = [
        ("init pmi_version=1 pmi_subversion=1", "response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
        ("get_maxes", "maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0"),
        (f"get kvsname={name} key=PMI_process_mapping", "get_result rc=0 msg=success value=(vector,(0,1,1))"),
        (f"put kvsname={name} key=a value=b=\\ c", "put_result rc=0 msg=success"),
        (f"get kvsname={name} key=a", "get_result rc=0 msg=success value=b=\\ c"),
        (f"get kvsname={name} key=b", "get_result rc=-1 msg=key_not_found value=unknown"),
        ("get kvsname=x key=a", "get_result rc=-1 msg=another_kvsname"),
        ("lookup_name service=x", "lookup_result rc=-1 msg=not_supported"),
        ("barrier_in", "barrier_out rc=0"),
        ("finalize", "finalize_ack rc=0"),
    ]
    for question, expected in talk:
        lines[0].sendall(f"cmd={question}\n".encode())
        assert bootstrap._read_line(lines[0]) == f"cmd={expected}"
    for line in lines:
        line.close()


def test_mapping_of_ranks_to_nodes():
    assert pmi.process_mapping(["b", "b", "a", "b"]) == "(vector,(0,1,2),(1,1,1),(0,1,1))"
    assert pmi.process_mapping(["a", "b"] * 500) is None  # MPICH compares the names of hosts then

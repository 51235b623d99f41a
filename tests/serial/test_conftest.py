"""conftest.py's hooks on small test files: which tests run, what ranks print, and how runs end."""

import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = ROOT / "conftest.py"
TESTS = """
import pytest

@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", ["x", "y"])
def test_pairs(a, b):
    print("ran", a, b)

@pytest.mark.exhaustive
def test_long():
    pass

def test_wrong():
    assert not "a failure"
"""


@pytest.fixture
def run(tmp_path):
    """Function that runs pytest in a folder of its own with environment variables; returns its output."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(*arguments, code=1, **variables):
        own = ("EXHAUSTIVE", "PMI_", "OMPI_", "PYTEST_")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rP", *arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


def test_each_value_of_each_parameter_occurs_in_the_sample(run):
    text = run()
    assert "1 failed, 3 passed, 4 deselected" in text
    pairs = re.findall(r"^ran (\d) (\w)$", text, re.MULTILINE)
    assert {a for a, _ in pairs} == {"1", "2", "3"}
    assert {b for _, b in pairs} == {"x", "y"}


def test_everything_runs_where_it_is_asked_for(run):
    assert "1 failed, 7 passed" in run(EXHAUSTIVE="1")
    assert "4 passed, 4 deselected" in run(EXHAUSTIVE="rest", code=0)
    assert "1 failed, 6 passed, 1 deselected" in run("-k", "pairs or wrong")


def test_other_ranks_print_nothing_but_failures(run):
    text = run("-rfE", PMI_RANK="2")
    assert text.startswith("F")
    assert "." not in text.splitlines()[0]
    assert "_ test_wrong on rank 2 _" in text
    assert "a failure" in text
    assert "passed" not in text
    assert run("-rfE", OMPI_COMM_WORLD_RANK="0").count("on rank 0") == 1


#: In the first test, the last rank fails as PLANTED's first word says; the others wait as its second says.
PLANTED = """
import os, signal, threading, time
import numpy as np
import pytest
from mpi4py import MPI
import compcoll

kind, wait = os.environ["PLANTED"].split()
comm = MPI.COMM_WORLD
last = comm.size - 1
ours = compcoll.Comm(comm, codec="lossless")
waits = {
    "mpi": comm.Barrier,
    "layer": lambda: ours.Recv(np.empty(1 << 20, "f4"), last),
    "join": lambda: joined(threading.Thread(target=comm.Barrier)),
    "next": lambda: None,
}

def joined(thread):
    thread.start()
    thread.join()

def now():
    with open("when", "w") as file:
        file.write(str(time.time()))

if (kind, comm.rank) == ("collect", last):
    now()
    raise KeyError("planted")

@pytest.fixture
def resource():
    comm.Barrier()  # all ranks have begun the test
    yield
    if (kind, comm.rank) == ("teardown", last):
        raise KeyError("planted")

@pytest.mark.timeout(1 if kind == "hangs" else 60, func_only=True)
def test_first(resource):
    if comm.rank != last:
        waits[wait]()
        return check()
    now()
    if kind == "raises":
        raise KeyError("planted")
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "leaves":
        os._exit(0)
    elif kind == "hangs":
        time.sleep(1000)
    check()

def check():
    assert kind != "agreed"

def test_second():
    comm.Barrier()
"""
KINDS = [
    *("raises mpi", "raises join", "raises next", "killed mpi", "leaves mpi", "hangs mpi"),
    *("collect mpi", "teardown next"),
]
#: The sample of `make test`; CI runs `MORE` as well.
CASES = [("mpich", 3, "raises mpi"), ("mpich", 3, "hangs mpi"), ("openmpi", 2, "raises layer")]
MORE = [
    *[("mpich", 3, kind) for kind in KINDS],
    *[("openmpi", 2, "leaves mpi"), ("openmpi", 4, "killed mpi")],
]
EVERY = [*CASES, *[pytest.param(*case, marks=pytest.mark.exhaustive) for case in MORE if case not in CASES]]
LAUNCHERS = {
    "mpich": [str(Path(sys.executable).with_name("mpiexec"))],
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe"],
}
OPEN_MPI = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}


@pytest.fixture
def ranks(tmp_path):
    """Function that runs planted tests on ranks; returns lines, exit status, seconds since the failure."""
    quick = CONFTEST.read_text().replace("GRACE = 3", "GRACE = 0.5").replace("ANSWER = 1", "ANSWER = 5")
    (tmp_path / "conftest.py").write_text(quick)
    (tmp_path / "test_it.py").write_text(PLANTED)

    def ranks(mpi, n, planted, by_hand=False):
        launcher = LAUNCHERS[mpi]
        if shutil.which(launcher[0]) is None:
            pytest.skip(f"there is no {launcher[0]}")
        if mpi == "openmpi" and b"libmpi_abi.so" in Path(find_spec("mpi4py.MPI").origin).read_bytes():
            pytest.skip("this mpi4py is for the standard ABI")
        own = ("EXHAUSTIVE", "PMI_", "PMIX_", "OMPI_", "PYTEST_", "TEST_RANKS")
        env = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        env |= {"PLANTED": planted, "PYTHONPATH": str(ROOT), **(OPEN_MPI if mpi == "openmpi" else {})}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        before = [] if by_hand else [sys.executable, str(ROOT / "tests" / "run_ranks.py")]
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        done = subprocess.run(
            [*before, *launcher, "-n", str(n), *tests],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        seconds = time.time() - float((tmp_path / "when").read_text())
        return done.stdout.strip().splitlines(), done.returncode, seconds

    return ranks


@pytest.mark.parametrize(("mpi", "n", "planted"), EVERY)
def test_what_happens_to_one_rank_ends_all(ranks, mpi, n, planted):
    """The run fails within 10 s, and prints the failing rank's traceback last, or where all ranks were."""
    lines, status, seconds = ranks(mpi, n, planted)
    assert status not in (0, 60), lines
    assert seconds < 10
    kind = planted.split()[0]
    if kind in ("killed", "leaves"):
        assert lines[-n:] == [f"== rank {rank} was at test_it.py::test_first" for rank in range(n)]
    elif kind == "hangs":
        heads = [line for line in lines if line.startswith("== ")]
        assert re.match(r"== test_it.py::test_first takes longer than 1 s on rank \d", heads[-1])
        assert sum("test_it.py::test_first" in line for line in heads) == n
        assert sum("waits[wait]()" in line for line in lines) == n - 1
        assert sum("time.sleep(1000)" in line for line in lines) == 1
    else:
        where = [i for i, line in enumerate(lines) if line.startswith("== test_it.py")]
        assert len(where) == 1, lines
        assert f"rank {n - 1}" in lines[where[0]]
        assert any(re.fullmatch("E +KeyError: 'planted'", line) for line in lines[where[0] :])
        assert re.match(r"(E +|.*: )KeyError", lines[-1]), lines[-1]


def test_what_all_ranks_fail_ends_nothing(ranks):
    lines, status, _ = ranks("mpich", 2, "agreed next")
    assert status == 1
    assert any("1 failed, 1 passed" in line for line in lines), lines
    assert sum("_ test_first on rank" in line for line in lines) == 2


@pytest.mark.exhaustive
def test_a_rank_that_fails_without_the_program_in_front(ranks):
    lines, status, seconds = ranks("mpich", 2, "raises mpi", by_hand=True)
    assert status not in (0, 60), lines
    assert seconds < 10
    assert "test_it.py::test_first, call, fails on rank 1" in "\n".join(lines)
    assert any(re.fullmatch("E +KeyError: 'planted'", line) for line in lines)

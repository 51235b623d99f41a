"""``compcoll run`` and ``compcoll.auto`` on unchanged programs, which do not import compcoll."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import compcoll
from compcoll.cli.launch import find_mpiexec

RUN = [sys.executable, "-m", "compcoll", "run", "--codec", "lossless"]
BY_DEFAULT = RUN[:-2]
SUMMARY = re.compile(
    r"compcoll: (\d+) calls, (\d+) accelerated, (\d+) -> (\d+) bytes \([\d.]+x\), [\d.]+ s in calls; "
    r"sums over (\d+) ranks?"
)

#: Sums of a compressed array, with the world communicator as a default argument.
PROGRAM = """
import sys
import numpy as np
from mpi4py.MPI import COMM_WORLD
from mpi4py import MPI

def say(*words):  # lines of two ranks do not mix if each is written at once
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def total(x, comm=MPI.COMM_WORLD):
    y = np.empty_like(x)
    comm.Allreduce(x, y)
    return y

x = np.arange(1 << 16, dtype="f8") + COMM_WORLD.rank
y = total(x)
assert (y == 2 * x + 1 - 2 * COMM_WORLD.rank).all()
line = COMM_WORLD.Create_cart([2])
line.Alltoall(x, y)
line.Barrier()
"""


#: One call of each kind, on two ranks.
BYTES = """
import time
import numpy as np
from mpi4py import MPI

c, n = MPI.COMM_WORLD, 1 << 16
x, y = np.ones(2 * n), np.ones(2 * n)
first = c.rank == 0
c.Alltoall(x, y)
c.Allgather(x[:n], y)
c.Allgather(MPI.IN_PLACE, y)
c.Bcast(x)
c.Allreduce(x, y)
c.Reduce_scatter_block(x, y[:n])
c.Scatter(x if first else None, y[:n])
c.Gather(x[:n], y if first else None)
c.Send(x, 1) if first else c.Recv(y)
first or time.sleep(0.4)
"""


@pytest.fixture
def program(tmp_path):
    """Function that writes a program and returns its path."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(PROGRAM + text)
        return path

    return write


def run(*command, cwd=None, **environment):
    """Run a command outside of the ranks of these tests; return its result."""
    outside = {
        k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_", "COMPCOLL_"))
    }
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**outside, "PYTHONPATH": str(Path(compcoll.__file__).parents[1]), **environment},
    )


def started(n, *command, **more):
    """Like `run`, on ranks that mpiexec starts."""
    return run(find_mpiexec(), "-n", n, sys.executable, *command, **more)


def summary(text):
    """Calls, accelerated calls, bytes, bytes on the wire and ranks of the summary line."""
    found = SUMMARY.findall(text)
    assert len(found) == 1, text
    return tuple(map(int, found[0]))


@pytest.mark.parametrize("launched", [False, True], ids=["alone", "launched"])
@pytest.mark.exhaustive(but=1)
def test_a_program_is_as_under_plain_python_on_a_wrapped_world(program, tmp_path, launched):
    """A program's arguments, path and main module are as under plain python, and its classes are pickled."""
    path = program(
        "import atexit, json, __main__\n"
        "class Point:\n"
        "    pass\n"
        "def at_end():\n"
        "    say(type(COMM_WORLD.bcast(Point())) is Point)\n"
        "atexit.register(at_end)\n"
        "say(json.dumps([sys.argv, sys.path[0], __name__, __file__, __spec__, __main__.total is total]))\n"
        "say(sys.modules['__main__'].__dict__ is globals())\n"
        "first = total.__defaults__[0]\n"
        "say(type(COMM_WORLD).__module__, first.report.codec if hasattr(first, 'report') else '')\n"
        "sys.exit(0)\n"
    )
    words = [path.name, "a", "-m", "--help", "-n", "5", "--codec", "x"]
    options = [*RUN, "--codec", "szp:abs=1e-9"]
    plain = started(2, *words, cwd=tmp_path)
    start = (started, 2, *options[1:]) if launched else (run, *options, "-n", 2)
    ours = start[0](*start[1:], *words, cwd=tmp_path)
    assert plain.returncode == ours.returncode == 0, ours.stderr
    there = plain.stdout.replace("mpi4py.MPI ", "compcoll.comm.communicator szp:abs=1e-09").splitlines()
    assert sorted(ours.stdout.splitlines()) == sorted(there)
    assert (ours.stdout.count(str(tmp_path)), ours.stdout.count("True\n")) == (4, 4)
    calls, accelerated, nbytes, wire, ranks = summary(ours.stderr)
    assert (calls, accelerated, ranks) == (10, 4, 2)
    assert 0 < wire < nbytes


@pytest.mark.parametrize("where", ["module", "package", "folder"])
@pytest.mark.exhaustive(but=1)
def test_modules_packages_and_folders(tmp_path, where):
    (tmp_path / "package").mkdir()
    show = "import sys\nfrom mpi4py.MPI import COMM_WORLD\nCOMM_WORLD.Barrier()\n"
    show += "print(__name__, sys.argv[1:], type(COMM_WORLD).__module__)\n"
    (tmp_path / ("package/__main__.py" if where != "module" else "some.py")).write_text(show)
    (tmp_path / "package" / "__init__.py").touch()
    words = {"module": ["-m", "some"], "package": ["-m", "package"], "folder": ["package"]}[where]
    result = run(*RUN, "-n", 1, *words, "-x", "1", cwd=tmp_path)
    assert result.stdout == "__main__ ['-x', '1'] compcoll.comm.communicator\n", result.stderr
    assert result.stderr.endswith("; sums over 1 rank\n")


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("if line.rank == 1: raise KeyError('lost')\nline.Barrier()", 1, "KeyError: 'lost'"),
        ("if line.rank == 1: sys.exit(5)\nline.Barrier()", 5, ""),
        ("sys.exit('no more')", 1, "no more"),
        ("import click\nif line.rank: raise click.UsageError('my')\nline.Barrier()", 1, "UsageError: my"),
        ("import os\nif line.rank == 1: os.kill(os.getpid(), 9)\nline.Barrier()", None, ""),
    ],
)
@pytest.mark.exhaustive(but=1)
def test_how_a_program_fails(program, text, status, says):
    result = run(*RUN, "-n", 2, program(text))
    assert result.returncode == status or (status is None and result.returncode), result.stderr
    assert says in result.stderr
    assert "in calls" not in result.stderr
    assert "compcoll/cli" not in result.stderr, "the traceback begins in the program"


#: Ways in which a program initialises MPI, or tells mpi4py how to do it.
BEGINNINGS = {
    "Init_thread": "mpi4py.rc(initialize=False)\nfrom mpi4py import MPI\n"
    "assert MPI.Init_thread(MPI.THREAD_SERIALIZED) == MPI.THREAD_SERIALIZED",
    "thread_level": "mpi4py.rc.thread_level = 'funneled'",
    "threads": "mpi4py.rc.threads = False",
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.exhaustive(but=1)
def test_a_program_begins_mpi_as_without(tmp_path, beginning):
    path = tmp_path / "program.py"
    path.write_text(
        f"import mpi4py\n{beginning}\n"
        "from mpi4py import MPI\n"
        "import numpy as np\n"
        "total = np.zeros(1 << 16)\n"
        "MPI.COMM_WORLD.Allreduce(np.ones(1 << 16), total)\n"
        "print(MPI.Query_thread(), set(total), flush=True)\n"
        "MPI.Finalize()\n"
    )
    plain, ours = started(2, path), run(*RUN, "-n", 2, path)
    assert (plain.returncode, ours.returncode) == (0, 0), plain.stderr + ours.stderr
    assert plain.stdout == ours.stdout
    assert summary(ours.stderr)[1] == 2


@pytest.mark.exhaustive
def test_policy_from_a_file_and_quiet(program, tmp_path):
    (tmp_path / "policy.toml").write_text('[[rule]]\nop = "Alltoall"\ncodec = "int8"\n')
    path = program("say(line.report.codec)")
    result = run(*RUN, "-n", 2, "-q", "--policy", tmp_path / "policy.toml", path)
    assert result.stdout.splitlines() == ["int8", "int8"]
    assert "compcoll:" not in result.stderr


@pytest.mark.exhaustive
def test_calls_are_left_to_mpi_by_name(program):
    result = run(*RUN, "-n", 2, "--codec", "none", program(""))
    assert summary(result.stderr)[1] == 0
    assert re.search("none of these bytes accelerated: .*none", result.stderr)


def test_within_a_program_by_its_import(program, tmp_path):
    path = tmp_path / "auto.py"
    path.write_text("import compcoll.auto\n" + PROGRAM + "say(total.__defaults__[0].policy.codec)\n")
    result = started(2, path, COMPCOLL_CODEC="szp:abs=1e-9")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["szp:abs=1e-9"] * 2
    assert summary(result.stderr)[:2] == (6, 4)
    path.write_text(path.read_text() + "if line.rank: raise ValueError('wrong')\nline.Barrier()\n")
    result = started(2, path)
    assert (result.returncode, result.stdout.splitlines()) == (1, ["auto"] * 2)
    assert "ValueError: wrong" in result.stderr


@pytest.mark.exhaustive
def test_a_misspelt_variable_is_named_once(program, tmp_path):
    path = program("")
    own = tmp_path / "own.py"
    own.write_text("import compcoll\nfrom mpi4py import MPI\ncompcoll.Comm(MPI.COMM_WORLD)\n")
    for command in ([*RUN[1:], path], [own]):
        done = started(2, *command, COMPCOLL_TIME_OUT="60", COMPCOLL_LIBPYTHON="")
        assert done.returncode == 0, done.stderr
        (said,) = (line for line in done.stderr.splitlines() if "variable" in line)
        assert said.startswith(
            "compcoll: there is no variable COMPCOLL_TIME_OUT, it is ignored; did you mean"
        )
        assert said.endswith("'COMPCOLL_TIMEOUT'?")
    assert "'COMPCOLL_CPU'?" in run(*RUN[:3], "info", COMPCOLL_CPUS="avx2", COMPCOLL_TABLE="off").stderr


def test_by_default_only_what_gains_is_accelerated(program):
    path = program("say(line.policy.codec)")
    result = run(*BY_DEFAULT, "-n", 2, path)
    assert result.stdout.split() == ["auto", "auto"]
    assert summary(result.stderr)[1] == 0
    assert "none of these bytes accelerated: auto leaves messages inside a node to MPI" in result.stderr
    result = run(*BY_DEFAULT, "-n", 2, path, COMPCOLL_CODEC="mpc", COMPCOLL_SUMMARY="0")
    assert result.stdout.split() == ["mpc", "mpc"]
    assert "compcoll:" not in result.stderr


@pytest.mark.exhaustive
def test_bytes_are_those_that_leave_a_rank(tmp_path):
    """A summary counts all bytes that leave a rank, accelerated or not, and waits for late ranks."""
    path = tmp_path / "bytes.py"
    path.write_text(BYTES)
    said = [run(*RUN, "-n", 2, *more, path).stderr for more in ((), ("--min-nbytes", 1 << 30))]
    accelerated, unchanged = map(summary, said)
    assert (accelerated[1], unchanged[1]) == (18, 0)
    assert accelerated[2] == unchanged[2] == unchanged[3]
    assert "none of these bytes accelerated: the messages are below min_nbytes" in said[1]


def test_without_an_mpi_library(program, tmp_path):
    """Without an MPI library, a command prints one line with a hint."""
    path, none = program(""), {"MPI4PY_LIBMPI": "/nonexistent.so"}
    hint = "no MPI library was found .*nonexistent.so.*; pip install mpich brings one"
    for command in ([*RUN, "-n", 2, path], [*RUN, path], [*RUN[:3], "bench", "bcast"]):
        result = run(*command, **none)
        assert result.returncode == 1
        assert re.fullmatch(f"Error: {hint}[^\\n]*\\n", result.stderr), result.stderr
    result = run(sys.executable, "-c", "import compcoll.auto", **none)
    assert re.match(f"ImportError: {hint}", result.stderr.splitlines()[-1])
    assert len(result.stderr.splitlines()) < 12


@pytest.mark.exhaustive
def test_other_ranks_than_those_of_the_launcher_are_an_error(program):
    result = started(2, *RUN[1:], "-n", 3, program("say('started')"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "-n 3, but a launcher has started 2 ranks" in result.stderr


#: A program of mpi4py.futures, whose tasks run this file's functions in other processes.
EXECUTOR = """
from mpi4py import MPI
from mpi4py.futures import {kind}

def square(x):
    return x * x

if __name__ == "__main__":
    with {kind}({arguments}) as executor:
        if executor is not None:
            print(list(executor.map(square, range(5))), flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "arguments", "n"),
    [
        ("MPICommExecutor", "MPI.COMM_WORLD", 2),
        ("MPIPoolExecutor", "1", 1),
    ],
    ids=["ranks", "spawned"],
)
@pytest.mark.exhaustive(but=1)
def test_executors_under_a_trace(tmp_path, kind, arguments, n):
    path = tmp_path / "executor.py"
    path.write_text(EXECUTOR.format(kind=kind, arguments=arguments))
    got = run(*BY_DEFAULT, "-n", n, "--trace", tmp_path / "trace", path)
    assert (got.returncode, got.stdout.strip()) == (0, "[0, 1, 4, 9, 16]"), got.stderr
    assert list((tmp_path / "trace").iterdir())


# -- Python behind a wrapper

WRAPPERS = {
    "python": [sys.executable],
    "env": ["env", "X=1", sys.executable],
    "taskset": ["taskset", "-c", "0", sys.executable],
    "sh": ["sh", "-c", 'exec "$0" "$@"', sys.executable],
    "script": ["./script.sh"],
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.exhaustive(but=2)
def test_a_wrapped_program_in_python_is_accelerated(program, tmp_path, wrapper):
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/sh\n{sys.executable} -c 'print(1)'\n{sys.executable} \"$@\"\nexit 7\n")
    script.chmod(0o755)
    path = program("say(type(COMM_WORLD).__name__, sys.argv[1:], __name__)")
    got = run(*RUN, "-n", 2, *wrapper, path, "a b", cwd=tmp_path)
    is_script = wrapper == WRAPPERS["script"]
    expected = ["1"] * 2 * is_script + ["Comm ['a b'] __main__"] * 2
    assert (got.returncode, sorted(got.stdout.splitlines())) == (7 * is_script, expected), got.stderr
    assert summary(got.stderr)[:2] == (6, 4)


@pytest.mark.parametrize(
    "first",
    [
        "from compcoll import Comm",
        "import compcoll.launch.bootstrap",
        "import compcoll.auto",
        "import mpi4py; mpi4py.rc.threads = False",
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; MPI.Init()",
        "import ctypes, glob; [ctypes.CDLL(each).MPI_Init(None, None) for each in glob.glob(LIBRARY)]",
    ],
    ids=["Comm", "bootstrap", "auto", "one thread", "Init", "ctypes"],
)
@pytest.mark.exhaustive(but=1)
def test_a_wrapped_program_may_begin_mpi_in_any_way(tmp_path, first):
    """Each way to initialise MPI in Python leads to accelerated calls, messages included."""
    path = tmp_path / "program.py"
    library = str(Path(sys.prefix, "lib", "libmpi.so.12"))
    path.write_text(f"LIBRARY = {library!r}\n{first}\n{BYTES}MPI.Finalize()\n")
    got = run(*RUN, "-n", 2, "env", sys.executable, path)
    assert (got.returncode, summary(got.stderr)[:2]) == (0, (18, 18)), got.stderr


def test_a_wrapped_python_without_compcoll_says_so(tmp_path):
    """A Python that has no compcoll runs plain, with a line."""
    library = Path(sys.prefix, "lib", "libmpi.so.12")
    if not library.exists():
        pytest.skip("MPI is not the wheel's")
    text = f"import ctypes; mpi = ctypes.CDLL({str(library)!r}); mpi.MPI_Init(None, None); mpi.MPI_Finalize()"
    got = run(*RUN, "env", sys.executable, "-I", "-S", "-c", text)
    says = f"compcoll: calls are not accelerated: {sys.executable}: No module named 'compcoll'\n"
    assert (got.returncode, got.stdout, got.stderr) == (0, "", says)


@pytest.mark.exhaustive
def test_ranks_behind_wrappers_that_do_not_begin(program):
    """Ranks with different settings end with one line, and a rank's exception ends all."""
    wrapped = ["env", sys.executable, program("COMM_WORLD.rank and 1 / 0\nCOMM_WORLD.Barrier()")]
    got = started(1, *RUN[1:], *wrapped, ":", "-n", 1, *RUN[:-1], "mpc", *wrapped)
    says = "Error: rank 1 has codec: 'mpc', and rank 0 has codec: 'lossless'\n"
    assert (got.returncode, got.stdout, got.stderr) == (1, "", says)
    got = run(*RUN, "-n", 2, *wrapped)
    assert (got.returncode, got.stderr.count("ZeroDivisionError")) == (1, 1), got.stderr

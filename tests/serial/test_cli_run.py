"""``compcoll run`` and ``compcoll.auto``: programs that know nothing of compcoll, as they are."""

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

#: Sums of an array that is compressed, over the world as a default argument sees it.
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


#: Each kind of call, on two ranks.
BYTES = """
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
"""


@pytest.fixture
def program(tmp_path):
    """Writes a program, and gives its path."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(PROGRAM + text)
        return path

    return write


def run(*command, cwd=None, **environment):
    """What a command says and how it ends; outside of the ranks of these tests, if there are any."""
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
    """`run` on ranks that mpiexec has started."""
    return run(find_mpiexec(), "-n", n, sys.executable, *command, **more)


def summary(text):
    """Calls, accelerated ones, bytes, bytes on the wire and ranks of the last line."""
    found = SUMMARY.findall(text)
    assert len(found) == 1, text
    return tuple(map(int, found[0]))


def test_world_is_wrapped_before_the_program_sees_it(program):
    path = program("say(type(COMM_WORLD).__module__, total.__defaults__[0].report.codec, sys.argv[1:])\n")
    result = run(*RUN, "-n", 2, "--codec", "szp:abs=1e-9", path, "-n", "5", "--codec", "x")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("compcoll.comm szp:abs=1e-09 ['-n', '5', '--codec', 'x']") == 2
    calls, accelerated, nbytes, wire, ranks = summary(result.stderr)
    assert (calls, accelerated, ranks) == (6, 4, 2)
    assert 0 < wire < nbytes == 2 * (2 << 18) + 2 * (1 << 18)


@pytest.mark.parametrize("launched", [False, True], ids=["alone", "launched"])
@pytest.mark.exhaustive(but=1)
def test_arguments_path_and_main_are_those_of_plain_python(program, tmp_path, launched):
    text = "import json, __main__\nsay(json.dumps([sys.argv, sys.path[0], __name__, __file__, __spec__, "
    path = program(text + "__main__.total is total, sys.modules['__main__'].__dict__ is globals()]))\n")
    words = [path.name, "a", "-m", "--help"]
    plain = started(2, *words, cwd=tmp_path)
    ours = (
        started(2, *RUN[1:], *words, cwd=tmp_path) if launched else run(*RUN, "-n", 2, *words, cwd=tmp_path)
    )
    assert sorted(ours.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert plain.returncode == ours.returncode == 0
    assert ours.stdout.count(str(tmp_path)) == 4


def test_what_main_defines_is_pickled_until_the_end(program):
    path = program(
        "class Point:\n"
        "    pass\n"
        "def at_end():\n"
        "    say(type(COMM_WORLD.bcast(Point())) is Point)\n"
        "import atexit; atexit.register(at_end)\n"
    )
    result = run(*RUN, "-n", 2, path)
    assert (result.returncode, result.stdout.split()) == (0, ["True", "True"]), result.stderr


@pytest.mark.parametrize("where", ["module", "package", "folder"])
@pytest.mark.exhaustive(but=1)
def test_modules_packages_and_folders(program, tmp_path, where):
    (tmp_path / "package").mkdir()
    show = "say(__name__, sys.argv[1:], type(COMM_WORLD).__module__)\n"
    program(show, "package/__main__.py" if where != "module" else "some.py")
    (tmp_path / "package" / "__init__.py").touch()
    words = {"module": ["-m", "some"], "package": ["-m", "package"], "folder": ["package"]}[where]
    result = run(*RUN, "-n", 2, *words, "-x", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["__main__ ['-x', '1'] compcoll.comm"] * 2


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("if line.rank == 1: raise KeyError('lost')\nline.Barrier()", 1, "KeyError: 'lost'"),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("if line.rank == 1: sys.exit(5)\nline.Barrier()", 5, ""),
        ("sys.exit('no more')", 1, "no more"),
        ("import click\nif line.rank: raise click.UsageError('my')\nline.Barrier()", 1, "UsageError: my"),
    ],
)
@pytest.mark.exhaustive(but=2)
def test_how_a_program_ends(program, text, status, says):
    result = run(*RUN, "-n", 2, program(text))
    assert result.returncode == status, result.stderr
    assert says in result.stderr
    assert ("in calls" in result.stderr) == (status == 0)
    assert "compcoll/cli" not in result.stderr, "the traceback begins in the program"


def test_a_rank_that_is_killed_ends_all(program):
    path = program("import os\nif line.rank == 1: os.kill(os.getpid(), 9)\nline.Barrier()")
    result = run(*RUN, "-n", 2, path)
    assert result.returncode != 0
    assert "in calls" not in result.stderr


@pytest.mark.exhaustive
def test_a_rank_that_ends_early_is_waited_for(program):
    result = run(*RUN, "-n", 2, program("import time\nif line.rank == 1: time.sleep(1); say('late')"))
    assert result.stdout == "late\n"
    assert summary(result.stderr)[:2] == (6, 4)


def test_explicit_finalize(program):
    result = run(*RUN, "-n", 2, program("MPI.Finalize()"))
    assert result.returncode == 0, result.stderr
    assert summary(result.stderr)[:2] == (6, 4)


#: How a program may begin MPI itself, or say how mpi4py is to do it.
BEGINNINGS = {
    "Init": "mpi4py.rc.initialize = False\nfrom mpi4py import MPI\nMPI.Init()",
    "Init_thread": "mpi4py.rc(initialize=False)\nfrom mpi4py import MPI\n"
    "assert MPI.Init_thread(MPI.THREAD_SERIALIZED) == MPI.THREAD_SERIALIZED",
    "thread_level": "mpi4py.rc.thread_level = 'funneled'",
    "threads": "mpi4py.rc.threads = False",
    "by default": "",
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
def test_policy_from_a_file(program, tmp_path):
    (tmp_path / "policy.toml").write_text('[[rule]]\nop = "Alltoall"\ncodec = "int8"\n')
    path = program("say(line.report.codec)")
    result = run(*RUN, "-n", 2, "--policy", tmp_path / "policy.toml", path)
    assert result.stdout.splitlines() == ["int8", "int8"]
    large = run(*RUN, "-n", 2, "--min-nbytes", 1 << 30, path)
    assert large.stdout.splitlines() == ["None", "None"]
    assert summary(large.stderr)[1] == 0


def test_calls_are_left_to_mpi_by_name(program):
    result = run(*RUN, "-n", 2, "--codec", "none", program(""))
    assert summary(result.stderr)[1] == 0
    assert re.search("none of these bytes accelerated: .*none", result.stderr)


@pytest.mark.exhaustive
def test_quiet(program):
    path = program("")
    assert "compcoll:" not in run(*RUN, "-n", 2, "-q", path).stderr
    assert "compcoll:" not in run(*RUN, "-n", 2, path, COMPCOLL_SUMMARY="0").stderr


def test_within_a_program_by_its_import(program, tmp_path):
    path = tmp_path / "auto.py"
    path.write_text("import compcoll.auto\n" + PROGRAM + "say(total.__defaults__[0].policy.codec)\n")
    result = started(2, path, COMPCOLL_CODEC="szp:abs=1e-9")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["szp:abs=1e-9"] * 2
    assert summary(result.stderr)[:2] == (6, 4)
    path.write_text(path.read_text() + "if line.rank: raise ValueError('wrong')\nline.Barrier()\n")
    result = started(2, path)
    assert result.returncode == 1
    assert "ValueError: wrong" in result.stderr


@pytest.mark.exhaustive
def test_by_default_only_what_gains_is_accelerated(program, tmp_path):
    path = program("say(line.policy.codec)")
    result = run(*BY_DEFAULT, "-n", 2, path)
    assert result.stdout.split() == ["auto", "auto"]
    assert summary(result.stderr)[1] == 0
    assert "none of these bytes accelerated: auto leaves messages inside a node to MPI" in result.stderr
    auto = tmp_path / "auto.py"
    auto.write_text("import compcoll.auto\n" + path.read_text())
    assert started(2, auto).stdout.split() == ["auto", "auto"]
    assert run(*BY_DEFAULT, "-n", 2, path, COMPCOLL_CODEC="mpc").stdout.split() == ["mpc", "mpc"]
    small = run(*RUN, "-n", 2, "--min-nbytes", 1 << 30, path)
    assert "none of these bytes accelerated: the messages are below min_nbytes" in small.stderr


@pytest.mark.exhaustive
def test_bytes_are_those_that_leave_a_rank(tmp_path):
    """Of calls that are accelerated, and of the same ones that are MPI's."""
    path = tmp_path / "bytes.py"
    path.write_text(BYTES)
    accelerated, unchanged = (
        summary(run(*RUN, "-n", 2, *more, path).stderr) for more in ((), ("--min-nbytes", 1 << 30))
    )
    assert (accelerated[1], unchanged[1]) == (18, 0)
    assert accelerated[2] == unchanged[2] == unchanged[3]


def test_one_rank(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
    assert run(*RUN, "-n", 1, path).stderr.endswith("; sums over 1 rank\n")


def test_without_an_mpi_library(program, tmp_path):
    """A line and a hint."""
    path, none = program(""), {"MPI4PY_LIBMPI": "/nonexistent.so"}
    hint = "no MPI library was found .*nonexistent.so.*; pip install 'compcoll\\[mpich\\]' brings one"
    for command in ([*RUN, "-n", 2, path], [*RUN, path], [*RUN[:3], "tune"], [*RUN[:3], "bench", "bcast"]):
        result = run(*command, **none)
        assert result.returncode == 1
        assert re.fullmatch(f"Error: {hint}[^\\n]*\\n", result.stderr), result.stderr
    for text in ("from compcoll import Comm", "import compcoll.auto"):
        result = run(sys.executable, "-c", text, **none)
        assert re.match(f"ImportError: {hint}", result.stderr.splitlines()[-1])
        assert len(result.stderr.splitlines()) < 12


@pytest.mark.exhaustive
def test_wrong_options_are_told_before_anything_starts(program, tmp_path):
    path = program("say('started')")
    for words, says in (
        (["-n", 0, path], "0 is not in the range"),
        (["-n", 2, "--codec", "zfp:rate=99", path], "99"),
        (["-n", 2, "--min-nbytes", -1, path], "-1"),
        (["-n", 2, tmp_path / "none.py"], "none.py does not exist"),
    ):
        result = run(*RUN, *words)
        assert (result.returncode, result.stdout) == (2, ""), words
        assert says in result.stderr
    result = started(2, *RUN[1:], "-n", 3, path)
    assert result.returncode == 1
    assert "-n 3, where a launcher has started 2 ranks" in result.stderr


#: mpi4py.futures, with tasks of this file in other processes.
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
    ("kind", "arguments", "n", "module"),
    [
        ("MPICommExecutor", "MPI.COMM_WORLD", 2, []),
        ("MPIPoolExecutor", "", 2, ["-m", "mpi4py.futures"]),
        ("MPIPoolExecutor", "1", 1, []),
    ],
    ids=["ranks", "pool of ranks", "spawned"],
)
@pytest.mark.exhaustive(but=1)
def test_executors_under_a_trace(tmp_path, kind, arguments, n, module):
    path = tmp_path / "executor.py"
    path.write_text(EXECUTOR.format(kind=kind, arguments=arguments))
    got = run(*BY_DEFAULT, "-n", n, "--trace", tmp_path / "trace", *module, path)
    assert (got.returncode, got.stdout.strip()) == (0, "[0, 1, 4, 9, 16]"), got.stderr
    assert list((tmp_path / "trace").iterdir())

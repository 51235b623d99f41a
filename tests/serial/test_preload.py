"""Programs in C and Fortran under ``compcoll run``, and what `compcoll info --preload` prints."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import compcoll
from compcoll.operations import OPERATIONS
from compcoll.preload import environment, library_path
from compcoll.tracing.reader import read

SOURCES = Path(__file__).parents[1] / "preload"
ACCELERATED = re.compile(r"compcoll: (\d+) calls, (\d+) accelerated")


HERE = Path(sys.executable).parent
#: True if mpi4py was built for the standard ABI, for which C programs have to be built as well.
STANDARD = b"libmpi_abi.so" in Path(find_spec("mpi4py.MPI").origin).read_bytes()
#: Compilers, with the mpiexec of each; MPICH's are those of its wheel.
C_COMPILERS = {"mpich": (str(HERE / ("mpicc_abi" if STANDARD else "mpicc")), str(HERE / "mpiexec"))}
if not STANDARD:
    C_COMPILERS["openmpi"] = ("mpicc.openmpi", "mpiexec.openmpi")


#: Start-up file: at exit, Python prints how many functions of compcoll the main thread called, and how
#: many calls of MPI were prepared by Python on the layer's thread.
COUNTS = """
import atexit, sys

def note(frame, event, _):
    note.calls += event == "call" and "/compcoll/" in frame.f_code.co_filename

def say():
    from compcoll.engine import _engine
    sys.setprofile(None)
    sys.stdout.write(f"{note.calls} {_engine.prepared_count()}\\n")

note.calls = 0
if sys.argv == [""]:
    sys.setprofile(note)
    atexit.register(say)
"""

#: The calls of jobs.c in Python.
JOBS = """
import os, subprocess, sys
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
x, y = 1 / np.arange(3.0, 3 + (1 << 17)), 1 / np.arange(3.0, 3 + (1 << 17))
n, wrong = world.size, 0
world.Bcast(y)
wrong += (x != y).sum()
world.Allreduce(x, y)
wrong += (n * x != y).sum()
world.Iallreduce(x, y).Wait()
wrong += (n * x != y).sum()
world.Sendrecv(x, (world.rank + 1) % n, 0, y, (world.rank - 1) % n, 0)
wrong += (x != y).sum()
if world.rank == 0:
    print(f"{sys.argv[1]} on {n}: {'lossy' if wrong else 'exact'}", flush=True)
    marks = ("PMI", "MPI_LOCAL", "HYDI", "OMPI_", "OPAL_", "ORTE_")
    if sys.argv[2:]:
        subprocess.run(sys.argv[2:], env={k: v for k, v in os.environ.items() if not k.startswith(marks)})
world.Barrier()
"""
RUN = sys.executable, "-m", "compcoll", "run"


def outside():
    """The environment without the variables of these tests' own ranks."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_", "COMPCOLL_"))}
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        known[name] = "1"
    known["OMPI_MCA_rmaps_base_oversubscribe"] = "true"
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(compcoll.__file__).parents[1])]
    known["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return known


def run(*command, **more):
    """Run a command; return the result."""
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**outside(), **more},
        check=False,
    )


def accelerated(*command, **more):
    """Like `run`, for a program that `compcoll run` starts on two ranks."""
    return run(sys.executable, "-m", "compcoll", "run", "-n", 2, "--codec", "lossless", *command, **more)


@pytest.fixture(scope="module", autouse=True)
def _library():
    try:
        library_path()
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Function that compiles a program, and returns its path."""
    folder = tmp_path_factory.mktemp("programs")

    def compiled(source, compiler, *flags):
        if shutil.which(compiler) is None:
            pytest.skip(f"{Path(compiler).name} is not there")
        path = folder / "".join([source, Path(compiler).name, *flags])
        if not path.exists():
            result = run(compiler, "-w", *flags, SOURCES / source, "-o", path)
            if result.returncode:
                pytest.skip(f"{Path(compiler).name} cannot compile: {result.stderr[-300:]}")
        return path

    return compiled


@pytest.fixture
def jobs(build, tmp_path):
    """Function of an MPI that returns programs by language, its mpiexec, and variables for them."""

    def made(mpi):
        script = tmp_path / "jobs.py"
        script.write_text(JOBS)
        more = {"MPI4PY_MPIABI": mpi} if mpi == "openmpi" else {}
        return {"C": build("jobs.c", C_COMPILERS[mpi][0]), "Python": script}, C_COMPILERS[mpi][1], more

    return made


def calls_accelerated(result):
    """Accelerated calls of the summary, 0 without one."""
    found = ACCELERATED.findall(result.stderr)
    return sum(int(n) for _, n in found)


@pytest.mark.parametrize("mpi", C_COMPILERS)
@pytest.mark.exhaustive(but=1)
def test_c(build, mpi):
    program = build("collectives.c", C_COMPILERS[mpi][0])
    # mpi4py's variable may be set for Python programs.
    ours = accelerated(program, MPI4PY_MPIABI="mpich", COMPCOLL_TIME_OUT="9")
    assert (ours.stdout, ours.returncode) == ("0 wrong values on 2 ranks, thread level 0\n", 0), ours.stderr
    assert calls_accelerated(ours) > 100
    assert (
        ours.stderr.count("no variable COMPCOLL_TIME_OUT, it is ignored; did you mean 'COMPCOLL_TIMEOUT'?")
        == 1
    )


@pytest.mark.parametrize("mpi", C_COMPILERS)
@pytest.mark.exhaustive(but=1)
def test_messages(build, mpi):
    result = accelerated(build("messages.c", C_COMPILERS[mpi][0]))
    assert (result.stdout, result.returncode) == ("0 wrong values on 2 ranks\n", 0), result.stderr
    assert calls_accelerated(result) > 50


@pytest.mark.parametrize("mpi", C_COMPILERS)
@pytest.mark.exhaustive(but=1)
def test_calls_that_wait_say_so(build, mpi):
    """The rank that waits for the other names its call, and the late rank if it is known."""
    result = accelerated("-q", build("late.c", C_COMPILERS[mpi][0]), 0, 1000, COMPCOLL_NOTICE="0.3")
    calls = (
        "Allreduce of 131072 float64 has waited 0.3 s for rank 0",
        "Recv of 1048576 bytes from any rank with tag 7 has waited 0.3 s",
    )
    expected = [
        f"compcoll: rank 1 of 2: {call}; COMPCOLL_TIMEOUT=SECONDS makes it an error" for call in calls
    ]
    assert [line for line in result.stderr.splitlines() if line in expected] == expected, result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("mpi", C_COMPILERS)
@pytest.mark.exhaustive(but=1)
def test_statuses(build, mpi):
    compiler, mpiexec = C_COMPILERS[mpi]
    program = build("statuses.c", compiler)
    expected = ("0 wrong on 2 ranks\n", 0)
    for result in (run(mpiexec, "-n", 2, program), accelerated("-q", program)):
        assert (result.stdout, result.returncode) == expected, result.stderr


@pytest.mark.exhaustive
def test_mpi_ends_after_a_request_was_freed(build):
    program = build("freed.c", C_COMPILERS["mpich"][0])
    result = accelerated("-q", program, MPIR_CVAR_FINALIZE_WAIT="1")
    assert (result.stdout, result.returncode) == ("ended\n", 0), result.stderr


@pytest.mark.exhaustive
def test_communicators_inherit_what_is_known(build):
    """Hundreds of communicators are made at once, without measurements for each of them."""
    program = build("duplicates.c", C_COMPILERS["mpich"][0])
    result = run(*RUN, "-n", 2, "-q", program, 300, "dup", "split", "cart")
    assert (result.stdout, result.returncode) == ("0 wrong values\n" * 3, 0), result.stderr


@pytest.mark.parametrize("mpi", C_COMPILERS)
@pytest.mark.exhaustive(but=1)
def test_callbacks_of_attributes_run_as_plain(build, mpi):
    """Private communicators have none of the program's attributes."""
    compiler, mpiexec = C_COMPILERS[mpi]
    program = build("attributes.c", compiler)
    plain, ours = run(mpiexec, "-n", 2, program), accelerated(program)
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr
    assert plain.stdout.endswith("end: 17 copied, 19 deleted\n")
    assert calls_accelerated(ours) > 0


def test_a_missing_mpi4py_is_one_sentence(build, tmp_path):
    """An mpi4py without `MPI`, as in a build for the standard ABI, leaves calls to MPI with one line."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("rc = type('rc', (), {})\n")
    program = build("faulty.c", C_COMPILERS["mpich"][0])
    path = os.pathsep.join([str(tmp_path), outside()["PYTHONPATH"]])
    result = run(program, "none", **environment(), PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("compcoll: calls are not accelerated: cannot import name 'MPI'")
    assert result.stderr.count("\n") == 1


@pytest.mark.exhaustive
def test_a_library_that_python_calls(build):
    """Calls of a C library and of mpi4py in a Python program are accelerated, with right values."""
    library = build("extension.c", C_COMPILERS["mpich"][0], "-shared", "-fPIC")
    result = accelerated(SOURCES / "extension.py", library)
    assert (result.stdout, result.returncode) == ("0 wrong values\n", 0), result.stderr
    assert calls_accelerated(result) == 10, result.stderr


@pytest.mark.parametrize("mpi", C_COMPILERS)
@pytest.mark.exhaustive
def test_odd_arguments(build, mpi):
    """Arguments that ranks describe differently, or that MPI refuses on one rank, end as with MPI alone."""
    (compiler, mpiexec), n = C_COMPILERS[mpi], 3
    program = [build("odd_arguments.c", compiler), *["truncated"] * (mpi == "mpich")]
    expected = (f"0 wrong on {n} ranks\n", 0)
    if mpi == "mpich":  # Open MPI 4 itself hangs, as ranks choose an algorithm by the type
        plain = run(mpiexec, "-n", n, *program)
        assert (plain.stdout, plain.returncode) == expected, plain.stderr
    ours = run(sys.executable, "-m", "compcoll", "run", "-n", n, "--codec", "lossless", *program)
    assert (ours.stdout, ours.returncode) == expected, ours.stderr
    assert calls_accelerated(ours) > 10


@pytest.mark.exhaustive
def test_a_repeated_call_is_compiled_code_alone(build, tmp_path):
    """The interpreter runs no function of compcoll for a call like an earlier one."""
    (tmp_path / "sitecustomize.py").write_text(COUNTS)
    path = os.pathsep.join([str(tmp_path), outside()["PYTHONPATH"]])
    program = build("repeated.c", C_COMPILERS["mpich"][0])
    none, often = (accelerated("-q", program, n, PYTHONPATH=path).stdout.splitlines() for n in (0, 10))
    assert [line.split()[1] for line in none + often] == ["0", "0", "1", "1"]
    assert {line.split()[0] for line in often} == {line.split()[0] for line in none}


def test_disabled_in_c_and_in_python(jobs):
    programs, mpiexec, _ = jobs("mpich")
    one, other = ((*RUN, "--codec", "bfp:bits=8", programs[which], which) for which in ("C", "Python"))
    result = run(mpiexec, "-n", 1, *one, ":", "-n", 1, *other, COMPCOLL_DISABLE="1", COMPCOLL_TIMEOUT="20")
    assert (result.stdout, result.returncode, result.stderr) == ("C on 2: exact\n", 0, "")


@pytest.mark.parametrize(("mpi", "language"), list(zip(C_COMPILERS, ["C", "Python"], strict=False)))
@pytest.mark.exhaustive(but=1)
def test_a_program_that_a_rank_starts_is_plain(jobs, tmp_path, mpi, language):
    """A program that a rank starts is not accelerated, unless `compcoll run` starts it."""
    programs, mpiexec, more = jobs(mpi)
    allowed = [f"{name}={value}" for name, value in outside().items() if name.startswith("OMPI_")]
    child = f"{mpiexec} -n 2 {programs['C']} child"
    again = f"{mpiexec} -n 2 {' '.join(RUN)} -q --codec bfp:bits=8 {programs['C']} again"
    words = ["parent", "env", *allowed, "sh", "-c", f"{child}; {again}"]
    command = *RUN, "--codec", "bfp:bits=8", "--trace", tmp_path / "trace", programs[language], *words
    result = run(mpiexec, "-n", 2, *command, **more)
    assert result.stdout.splitlines() == ["parent on 2: lossy", "child on 2: exact", "again on 2: lossy"]
    assert (result.returncode, result.stderr.count("in calls")) == (0, 1), result.stderr
    program = read(tmp_path / "trace")
    assert (program.notes, {rank.head["size"] for rank in program.ranks}) == ([], {2})
    assert program.ranks[0].head["command"][-3:] == words[-3:]


def test_a_wrapped_program_is_the_jobs(build):
    wrapper = ["taskset", "-c", "0", "env", "A=1", "sh", "-c", 'exec "$0" "$1"']
    result = accelerated(*wrapper, build("jobs.c", C_COMPILERS["mpich"][0]), "wrapped")
    assert (result.stdout, result.returncode) == ("wrapped on 2: exact\n", 0), result.stderr
    assert calls_accelerated(result) == 8


@pytest.mark.exhaustive
def test_other_preloads_stay(build):
    program = build("jobs.c", C_COMPILERS["mpich"][0])
    command = [program, "one", "sh", "-c", 'echo "$LD_PRELOAD"']
    result = run(*RUN, "-q", *command, LD_PRELOAD="libm.so.6 libdl.so.2")
    assert result.stdout.splitlines() == ["one on 1: exact", "libm.so.6:libdl.so.2"], result.stderr


@pytest.mark.parametrize(("mpi", "first"), list(zip(C_COMPILERS, ["C", "Python"], strict=False)))
@pytest.mark.exhaustive(but=1)
def test_ranks_in_c_and_in_python(jobs, mpi, first):
    programs, mpiexec, more = jobs(mpi)
    second = "Python" if first == "C" else "C"
    one, other = ((*RUN, "--codec", "lossless", programs[which], which) for which in (first, second))
    result = run(mpiexec, "-n", 1, *one, ":", "-n", 1, *other, COMPCOLL_TIMEOUT="20", **more)
    assert (result.stdout, result.returncode) == (f"{first} on 2: exact\n", 0), result.stderr
    assert (result.stderr.count("in calls"), calls_accelerated(result)) == (1, 8)


#: First rank's program, options of both ranks' commands, and a pattern of the error. A rank names the value
#: of the other rank first, and only the rank that ends first prints its error.
DIFFERING = {
    "nodes": ("C", [], [], "COMPCOLL_NODES = '0': not 2 whole numbers"),
    "codec": (
        "Python",
        ["--codec", "mpc"],
        ["--codec", "lossless"],
        "rank 1 has codec: 'lossless', and rank 0 has codec: 'mpc'"
        "|rank 0 has codec: 'mpc', and rank 1 has codec: 'lossless'",
    ),
    "n": ("C", ["-n", 2], ["-n", 3], "-n 3, but a launcher has started 2 ranks: leave -n out"),
}


@pytest.mark.parametrize(("first", "ours", "theirs", "says"), DIFFERING.values(), ids=DIFFERING)
@pytest.mark.exhaustive(but=1)
def test_ranks_in_c_and_in_python_that_do_not_begin(jobs, first, ours, theirs, says):
    programs, mpiexec, _ = jobs("mpich")
    second = "Python" if first == "C" else "C"
    one = mpiexec, "-n", 1, *RUN, *ours, programs[first], "one"
    nodes = {"COMPCOLL_NODES": "0"} if not ours else {}
    result = run(*one, ":", "-n", 1, *RUN, *theirs, programs[second], "other", COMPCOLL_TIMEOUT="20", **nodes)
    # MPICH's mpiexec may write there that a process has ended, but no program has printed its line.
    assert ("exact" in result.stdout, result.returncode != 0) == (False, True)
    assert re.search(says, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("interface", ["MPIF_H", "USE_MPI", "USE_F08"])
@pytest.mark.skipif(STANDARD, reason="mpi4py is for the standard ABI, and the program for Open MPI")
@pytest.mark.exhaustive(but=1)
def test_fortran_on_open_mpi(build, interface):
    program = build("fortran.F90", "mpif90.openmpi", f"-D{interface}", "-fallow-argument-mismatch")
    result = accelerated(program)
    assert (result.stdout, result.returncode) == ("0 wrong values on 2 ranks\n", 0), result.stderr
    assert calls_accelerated(result) == 28


@pytest.mark.skipif(STANDARD, reason="mpi4py is for the standard ABI, and the program for Open MPI")
@pytest.mark.exhaustive
def test_fortran_on_open_mpi_5(build):
    """Fortran's calls are left to Open MPI 5, and one line says so."""
    program = build("fortran.F90", "mpif90.openmpi", "-DMPIF_H", "-fallow-argument-mismatch")
    library = build("open_mpi_5.c", "mpicc.openmpi", "-shared", "-fPIC")
    result = accelerated(program, LD_PRELOAD=str(library))
    assert (result.stdout, result.returncode) == ("0 wrong values on 2 ranks\n", 0), result.stderr
    assert result.stderr == "compcoll: calls from Fortran are not accelerated with Open MPI 5 and later\n"


#: Program that loads Open MPI's Fortran functions after MPI_Init, as an extension module would.
LATER = """
import ctypes
import numpy as np
from mpi4py import MPI

fortran = ctypes.CDLL("libmpi_mpifh.so.40")
twin = MPI.COMM_WORLD.Dup()
n, error, x = 1 << 16, ctypes.c_int(-1), np.arange(1 << 16) + 1.0
arguments = [ctypes.c_int(i) for i in (n, MPI.DOUBLE.py2f(), 0, twin.py2f())]
x *= twin.rank == 0
fortran.mpi_bcast_(ctypes.c_void_p(x.ctypes.data), *map(ctypes.byref, [*arguments, error]))
print(error.value, (x != np.arange(n) + 1.0).sum())
"""


@pytest.mark.skipif(STANDARD, reason="mpi4py is for the standard ABI")
@pytest.mark.exhaustive
def test_fortran_in_a_library_that_is_loaded_later(tmp_path):
    if shutil.which("mpiexec.openmpi") is None:
        pytest.skip("mpiexec.openmpi is not there")
    (tmp_path / "later.py").write_text(LATER)
    command = *RUN, "--codec", "lossless", tmp_path / "later.py"
    result = run("mpiexec.openmpi", "-n", 2, *command, MPI4PY_MPIABI="openmpi")
    assert (result.stdout, result.returncode) == ("0 0\n0 0\n", 0), result.stderr
    assert calls_accelerated(result) == 2


@pytest.mark.parametrize("mistake", ["truncated", "root", "returns", "type"])
@pytest.mark.exhaustive(but=1)
def test_a_faulty_program_ends_as_without(build, mistake):
    compiler, mpiexec = C_COMPILERS["mpich"]
    program = build("faulty.c", compiler)
    plain = run(mpiexec, "-n", 2, program, mistake)
    ours = accelerated("-q", program, mistake)
    assert (ours.returncode == 0) == (plain.returncode == 0) == (mistake == "returns"), ours.stderr
    assert ours.stdout.replace("\n", "").startswith("an error code") == (mistake == "returns")


def test_functions_follow_from_the_table():
    """The library whose path is printed has all functions of each operation."""
    result = run(sys.executable, "-m", "compcoll", "info", "--preload")
    path = result.stdout.strip()
    assert environment()["LD_PRELOAD"].split(":")[0] == path
    library = ctypes.CDLL(path)
    for operation in OPERATIONS.values():
        functions = [f"MPI_{form}{suffix}" for form in operation.forms for suffix in ("", "_c")]
        assert [function for function in functions if not hasattr(library, function)] == []

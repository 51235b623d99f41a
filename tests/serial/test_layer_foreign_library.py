"""Code next to mpi4py in a Python program: tools that count calls, libraries in C, modules without hooks."""

import json
import shutil
import sys

import pytest
from test_preload import C_COMPILERS, run

from compcoll.preload import library_path

#: Tool on the profiling interface, like mpiP and Darshan: MPI_Pcontrol starts it, MPI_Finalize prints counts.
TOOL = """
#include <mpi.h>
#include <stdio.h>

static int seen[4];
#define WORDS(...) __VA_ARGS__
#define SEES(i, name, parameters, arguments) \\
  int MPI_##name(parameters) { seen[i]++; return PMPI_##name(arguments); }
#define ALL(suffix, COUNT) \\
  SEES(0, Allreduce##suffix, WORDS(const void* a, void* b, COUNT n, MPI_Datatype t, MPI_Op o, MPI_Comm c), \\
       WORDS(a, b, n, t, o, c)) \\
  SEES(1, Alltoall##suffix, WORDS(const void* a, COUNT n, MPI_Datatype t, void* b, COUNT m, MPI_Datatype u, \\
                                  MPI_Comm c), WORDS(a, n, t, b, m, u, c)) \\
  SEES(2, Bcast##suffix, WORDS(void* a, COUNT n, MPI_Datatype t, int root, MPI_Comm c), \\
       WORDS(a, n, t, root, c))
ALL(, int)
#if MPI_VERSION >= 4
ALL(_c, MPI_Count)
#endif
SEES(3, Barrier, MPI_Comm c, c)

int MPI_Pcontrol(const int level, ...) { for (int i = 0; i < 4; i++) seen[i] = 0; return 0; }

int MPI_Finalize(void) {
  int rank, all[4], error;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Reduce(seen, all, 4, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  error = PMPI_Finalize();
  if (rank == 0) printf("[%d, %d, %d, %d]\\n", all[0], all[1], all[2], all[3]), fflush(stdout);
  return error;
}
"""
#: Program with another number of calls of each kind on each communicator. Argument: how compcoll is loaded.
COUNTED = """
import sys
import numpy as np
from mpi4py import MPI

how, world = sys.argv[1], MPI.COMM_WORLD
if how == "Comm":
    import compcoll
    ours = compcoll.Comm(world, "lossless", min_nbytes=100_000)
else:
    ours = world.Dup()
wrapped = type(world).__module__ == "compcoll.comm.communicator" and "Comm" in type(world).__name__
assert wrapped == (how == "run")
small, large = np.ones((2, 10)), np.ones((2, 50_000))
MPI.Pcontrol(1)
for comm, more in (world, 0), (ours, 1):
    got, much = np.zeros_like(small), np.zeros_like(large)
    for _ in range(3 + more):
        comm.Allreduce(small, got)
    for _ in range(5 + more):
        comm.Alltoall(small, got)
        comm.Ialltoall(small, got).Wait()
    for _ in range(7 + more):
        comm.Bcast(small)
    for _ in range(9 + more):
        comm.Barrier()
    comm.Allreduce(large, much, MPI.MAX)
    assert (much == 1).all()
for _ in range(2):
    ours.Alltoall(large, much)
    assert (much == 1).all()
if how != "none" and ours.rank == 0:
    print(ours.calls_accelerated)
"""
#: Calls of both ranks together, without the two large Alltoalls.
EXPECTED = [2 * (3 + 4 + 2), 2 * (5 + 6), 2 * (7 + 8), 2 * (9 + 10)]
#: Aborts a process that calls dlopen inside dl_iterate_phdr, which holds the loader's lock: another dlopen
#: may hold the other lock and wait for this one.
WALKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

typedef int Look(struct dl_phdr_info*, size_t, void*);
struct walk { Look* look; void* data; };
static __thread int walking;

static int within(struct dl_phdr_info* info, size_t n, void* walk) {
  walking++;
  int result = ((struct walk*)walk)->look(info, n, ((struct walk*)walk)->data);
  walking--;
  return result;
}

int dl_iterate_phdr(Look* look, void* data) {
  int (*next)(Look*, void*) = dlsym(RTLD_NEXT, "dl_iterate_phdr");
  struct walk walk = {look, data};
  return next(within, &walk);
}

void* dlopen(const char* name, int flags) {
  void* (*next)(const char*, int) = dlsym(RTLD_NEXT, "dlopen");
  if (walking) fprintf(stderr, "%s is opened within a walk\\n", name), abort();
  return next(name, flags);
}
"""
#: A library in C that does not use Python.
LIBRARY = """
#include <mpi.h>

int sum(MPI_Comm comm, double* a, double* b, int n) {
  return MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, comm);
}
int swap(MPI_Comm comm, double* a, double* b, int n) {
  return MPI_Alltoall(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, comm);
}
"""
#: Program that calls this library with mpi4py's handles. Arguments: the library, and how compcoll is loaded.
CALLER = """
import ctypes, sys
import numpy as np
from mpi4py import MPI

library, how = ctypes.CDLL(sys.argv[1]), sys.argv[2]
world, n = MPI.COMM_WORLD, 65_536
if how == "Comm":
    import compcoll
    world = compcoll.Comm(world, "lossless", min_nbytes=1000)
Handle = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p

def call(function, a, b, count):
    at = [ctypes.c_void_p(x.ctypes.data) for x in (a, b)]
    assert function(Handle(MPI._handleof(world)), *at, count) == 0

def accelerated():
    return getattr(world, "calls_accelerated", 0)

parts = [np.arange(2.0 * n) % 97 + 100 * r for r in range(world.size)]
mine, got = parts[world.rank], np.zeros(2 * n)
before = accelerated()
call(library.sum, mine, got, 2 * n)
assert (got == sum(parts)).all()
call(library.swap, mine, got, n)
assert (got == np.concatenate([part[world.rank * n :][:n] for part in parts])).all()
counts = world.gather(accelerated() - before)
if counts is not None:
    print(counts)
"""
#: Starts that bypass the layer: each must fail, and MPI must still end.
STARTS = """
import ctypes
import numpy as np
from mpi4py import MPI
import compcoll

ours = compcoll.Comm(MPI.COMM_WORLD, "lossless", min_nbytes=0)
a, b = np.ones(2000), np.zeros(2000)
peer = 1 - ours.rank
makes = [lambda: ours.Alltoall_init(a, b), lambda: ours.Send_init(a, peer), lambda: ours.Recv_init(b, peer)]
requests = [make() for make in makes]
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line and ".so" in line}
libraries = [ctypes.CDLL(path) for path in sorted(paths)]
mpi = next(library for library in libraries if hasattr(library, "PMPI_Start"))
status, outcomes = MPI.Status(), []
for request in requests:
    done = ctypes.c_int()
    place = ctypes.c_void_p(MPI._addressof(request))
    failed = mpi.PMPI_Start(place) != 0
    for _ in range(20_000):
        if failed or done.value:
            break
        failed = mpi.PMPI_Test(place, ctypes.byref(done), ctypes.c_void_p(MPI._addressof(status))) != 0
    outcomes.append("an error" if failed else "success" if done.value else "neither")
assert not b.any()
ours.Alltoall(a, b)
assert b.all()
outcomes = MPI.COMM_WORLD.gather(outcomes)
if outcomes is not None:
    print(sorted({one for each in outcomes for one in each}), flush=True)
MPI.COMM_WORLD.Barrier()
"""


#: Waits that bypass the layer, for the layer's requests.
WAITS = """
import ctypes
import numpy as np
from mpi4py import MPI
import compcoll

ours, n = compcoll.Comm(MPI.COMM_WORLD, "lossless", min_nbytes=0), 200_000
peer = 1 - ours.rank
a, b = np.arange(n) + ours.rank, np.zeros(n, "i8")
want = np.arange(n) + peer
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line and ".so" in line}
libraries = [ctypes.CDLL(path) for path in sorted(paths)]
mpi = next(library for library in libraries if hasattr(library, "PMPI_Wait"))
right = 0
for _ in range(20):
    b[:] = 0
    requests, statuses = [ours.Irecv(b, peer, 3), ours.Isend(a, peer, 3)], [MPI.Status(), MPI.Status()]
    for request, status in zip(requests, statuses):
        places = [ctypes.c_void_p(MPI._addressof(x)) for x in (request, status)]
        assert mpi.PMPI_Wait(*places) == 0 and request == MPI.REQUEST_NULL
    right += (b == want).all() and statuses[0].Get_count(MPI.INT64_T) == n and statuses[0].tag == 3
print(right, flush=True) if ours.rank == 0 else None
"""


#: Messages and a sum by functions that ctypes finds in the MPI library: whether each value is right. A name
#: that MPI lacks is not found, though the layer exports it.
NAMED = """
import ctypes
import numpy as np
from mpi4py import MPI

paths = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line and ".so" in line}
libraries = [ctypes.CDLL(path) for path in sorted(paths)]
mpi = next(library for library in libraries if hasattr(library, "PMPI_Recv"))
world, n = MPI.COMM_WORLD, 100_000
a, b, total = np.arange(n) / 3, np.zeros(n), np.zeros(n)
Handle = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
comm, double, plus = (Handle(MPI._handleof(thing)) for thing in (world, MPI.DOUBLE, MPI.SUM))
at = lambda array: ctypes.c_void_p(array.ctypes.data)
right = [hasattr(mpi, "MPI_Isendrecv") != hasattr(mpi, "PMPI_Isendrecv")]
if world.rank == 0:
    world.Send(a, 1, 7)
    mpi.MPI_Send(at(a), n, double, 1, 8, comm)
else:
    status = MPI.Status()
    mpi.MPI_Recv(at(b), n, double, 0, 7, comm, ctypes.c_void_p(MPI._addressof(status)))
    right.append((a == b).all() and status.Get_count(MPI.DOUBLE) == n)
    world.Recv(b, 0, 8)
    right.append((a == b).all())
mpi.MPI_Allreduce(at(a), at(total), n, double, plus, comm)
right.append((total == 2 * a).all())
if world.rank == 1:
    print([int(one) for one in right], flush=True)
"""


#: `make test` tries the first one.
LIBRARIES = ["mpich", *[pytest.param(name, marks=pytest.mark.exhaustive) for name in [*C_COMPILERS][1:]]]


@pytest.fixture(scope="module", params=LIBRARIES)
def mpi(request):
    """Compiler and mpiexec of an MPI library, and the environment in which mpi4py uses it."""
    compiler, mpiexec = C_COMPILERS[request.param]
    if shutil.which(compiler) is None or shutil.which(mpiexec) is None:
        pytest.skip(f"{request.param} is not there")
    chosen = {}
    if request.param == "openmpi":
        chosen = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}
    if run(mpiexec, "-n", 1, sys.executable, "-c", "from mpi4py import MPI", **chosen).returncode:
        pytest.skip(f"mpi4py does not take {request.param}")
    return compiler, mpiexec, chosen


@pytest.fixture(scope="module")
def shared(mpi, tmp_path_factory):
    """Function that compiles a shared library, and returns its path."""
    compiler, *_ = mpi
    folder = tmp_path_factory.mktemp("libraries")

    def compiled(name, source):
        path = folder / f"lib{name}.so"
        if not path.exists():
            (folder / f"{name}.c").write_text(source)
            result = run(compiler, "-w", "-shared", "-fPIC", folder / f"{name}.c", "-o", path)
            if result.returncode:
                pytest.skip(f"{compiler} cannot compile: {result.stderr[-300:]}")
        return path

    return compiled


@pytest.fixture
def program(tmp_path):
    def written(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return written


def ranks(mpi, *command, **more):
    """Run a command on two ranks; return the result."""
    _, mpiexec, chosen = mpi
    words = [f"{key}={value}" for key, value in more.items()]
    return run(mpiexec, "-n", 2, "env", *words, *command, **chosen)


def launched(mpi, *command, **more):
    """Like `ranks`, for a program that `compcoll run` starts."""
    compcoll_run = [sys.executable, "-m", "compcoll", "run", "-q"]
    compcoll_run += ["--codec", "lossless", "--min-nbytes", 100_000]
    return ranks(mpi, *compcoll_run, *command, **more)


def lines(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- a tool that counts


def test_a_tool_counts_the_same_calls_with_and_without(mpi, shared, program):
    """A tool counts every call that is left to MPI, with compcoll or without, and no accelerated one."""
    tool, path = shared("tool", TOOL), program(COUNTED)
    (plain,) = lines(ranks(mpi, sys.executable, path, "none", LD_PRELOAD=tool))
    assert plain == [a + b for a, b in zip(EXPECTED, [0, 4, 0, 0], strict=True)]
    preloads = f"{tool} {shared('walks', WALKS)}"
    accelerated, seen = lines(ranks(mpi, sys.executable, path, "Comm", LD_PRELOAD=preloads))
    assert (accelerated, seen) == (2, EXPECTED)


def test_a_tool_behind_what_compcoll_run_preloads(mpi, shared, program):
    """A tool behind the preloaded library, which marks all communicators, counts the same calls."""
    try:
        library_path()
    except OSError as error:
        pytest.skip(str(error))
    preloads = f"{shared('tool', TOOL)} {shared('walks', WALKS)}"
    accelerated, seen = lines(launched(mpi, program(COUNTED), "run", LD_PRELOAD=preloads))
    assert (accelerated, seen) == (2, EXPECTED)


# -- a library in C


def test_calls_of_a_library_on_a_handle_of_mpi4pys(mpi, shared, program):
    """A C library's calls are accelerated under `compcoll run`, and left to MPI on a program's own `Comm`."""
    library, path = shared("foreign", LIBRARY), program(CALLER)
    assert lines(ranks(mpi, sys.executable, path, library, "Comm")) == [[0, 0]]
    assert lines(launched(mpi, path, library, "run")) == [[2, 2]]


def test_functions_that_a_program_finds_by_name_are_served(mpi, program):
    """`compcoll run` serves the functions of MPI that a program finds in the MPI library's file."""
    assert lines(launched(mpi, program(NAMED))) == [[0, 1, 1, 1]]


# -- persistent calls


def test_a_start_that_the_layer_does_not_see_is_an_error(mpi, program):
    """Starting a collective, a send or a receive past the layer fails, and MPI still ends."""
    result = ranks(mpi, "timeout", 10, sys.executable, program(STARTS))
    assert result.stdout == "['an error']\n", result.stderr
    assert result.returncode == 0, result.stderr


def test_waits_that_are_not_seen(mpi, program):
    result = ranks(mpi, "timeout", 30, sys.executable, program(WAITS))
    assert (result.stdout, result.returncode) == ("20\n", 0), result.stderr


# -- modules without hooks

#: Program in which mpi4py.MPI is a library without calls of MPI. Argument: the library's path.
UNHOOKED = """
import ctypes, sys
from mpi4py import MPI
ctypes.CDLL(sys.argv[1])
MPI.__file__ = sys.argv[1]
import compcoll
for _ in range(2):
    try:
        compcoll.Comm(MPI.COMM_WORLD, "lossless")
        print("no error")
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("lines_", "says"),
    [
        (["#include <stdlib.h>", "void* get(void) { return malloc(1); }"], "is linked with no MPI library"),
        (
            ["#include <mpi.h>", "int get(void) { return PMPI_Barrier(MPI_COMM_SELF); }"],
            "slots of functions, and none of MPI's",
        ),
    ],
    ids=["no MPI", "no calls of MPI"],
)
def test_an_extension_module_without_calls_of_mpi_is_named(shared, program, mpi, lines_, says):
    """Every attempt to make a communicator raises the same error, which names the module."""
    if mpi[2]:
        pytest.skip("of the MPI library that mpi4py takes by itself")
    library = shared(f"other{len(says)}", "\n".join([*lines_, ""]))
    result = run(sys.executable, program(UNHOOKED), library)
    first, second = result.stdout.splitlines()
    assert says in first, result.stderr
    assert str(library) in first
    assert second == first

"""What every test under MPI needs: ``mpiexec -n N python -m pytest tests/mpi`` with N = 1, 2, 3, 4."""

import atexit
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
from mpi4py import MPI

sys.path.append(str(Path(__file__).parents[1] / "serial"))
from executor import build

from compcoll.devices.finding import is_stand_in
from compcoll.engine import _engine

# A folder for each rank: pytest clears away what runs before have left, and ranks would race for it.
_FOLDER = tempfile.TemporaryDirectory(prefix="compcoll-tests-", ignore_cleanup_errors=True)
os.environ["PYTEST_DEBUG_TEMPROOT"] = _FOLDER.name
atexit.register(_FOLDER.cleanup)


def pytest_collection_modifyitems(items):
    """A rank that waits for one that failed prints its stack after a minute."""
    for item in items:
        if item.path.name.startswith("test_device_") and MPI.COMM_WORLD.size > 3:
            item.add_marker(pytest.mark.skip("the stand-in for devices is tried on up to 3 ranks"))
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture
def comm():
    """A communicator of all ranks whose messages meet no other test's."""
    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Free()


@pytest.fixture
def agree(comm):
    """``assert agree(ok)`` fails on all ranks where ``ok`` is false on one; collective."""
    return lambda ok: comm.allreduce(bool(ok), op=MPI.LAND)


@pytest.fixture
def nodes_of_one(comm, monkeypatch):
    """Each rank is taken for a node, and the messages between them for those of a network."""
    monkeypatch.setenv("COMPCOLL_NODES", ",".join(map(str, range(comm.size))))


@pytest.fixture(scope="session")
def library():
    """The executor of device code, compiled by one rank for all."""
    comm = MPI.COMM_WORLD
    library = error = None
    if comm.rank == 0:
        try:
            library = build()
        except Exception as problem:
            error = str(problem)
    built = comm.Ibarrier()
    while not built.Test():
        time.sleep(0.05)  # a rank that spins in MPI would keep the compiler from a core
    library, error = comm.bcast((library, error))
    assert error is None, error
    if library is None:
        pytest.skip("needs g++ on x86-64")
    return library


@pytest.fixture(autouse=True)
def _stand_ins(request):
    """Memory is asked whether it is a stand-in's in tests that have one, since Python answers that."""
    has_one = "library" in request.fixturenames
    if has_one:
        _engine.look_for_devices(is_stand_in)
    yield
    if has_one:
        _engine.look_for_devices()

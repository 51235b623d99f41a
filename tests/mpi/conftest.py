"""What every test under MPI needs: ``mpiexec -n N python -m pytest tests/mpi`` with N = 1, 2, 3, 4."""

from pathlib import Path

import pytest
from mpi4py import MPI


def pytest_collection_modifyitems(items):
    """A rank that waits for one that failed prints its stack after a minute."""
    for item in items:
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

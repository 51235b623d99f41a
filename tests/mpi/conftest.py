"""What every test under MPI needs: ``mpiexec -n N python -m pytest tests/mpi`` with N = 1, 2, 3, 4."""

import pytest
from mpi4py import MPI


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

"""What every test of the backend needs: ``mpiexec -n N python -m pytest tests/torch`` with N = 2, 3, 4."""

import atexit
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

dist = pytest.importorskip("torch.distributed")

import torch  # noqa: E402

torch.set_num_threads(1)

import compcoll.torch  # noqa: E402

# A folder for each rank: pytest clears away what runs before have left, and ranks would race for it.
_FOLDER = tempfile.TemporaryDirectory(prefix="compcoll-tests-", ignore_cleanup_errors=True)
os.environ["PYTEST_DEBUG_TEMPROOT"] = _FOLDER.name
atexit.register(_FOLDER.cleanup)


def pytest_collection_modifyitems(items):
    """A rank that waits for one that failed prints its stack after a minute."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(100))


@pytest.fixture(scope="session")
def world():
    """The default group, of our backend."""
    dist.init_process_group("compcoll", timeout=timedelta(seconds=60))
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def gloo(world):
    """The same ranks as a group of gloo: what all results are compared with."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=60))


@pytest.fixture(scope="session")
def ours(world):
    """A group that compresses whatever it can."""
    return dist.new_group(pg_options=compcoll.torch.Options("lossless", min_nbytes=0))


@pytest.fixture
def agree(world):
    """``assert agree(ok)`` fails on all ranks where ``ok`` is false on one; collective."""

    def ask(ok) -> bool:
        flag = torch.tensor([bool(ok)])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag)

    return ask

"""Fixtures of the backend's tests: ``mpiexec -n N python -m pytest tests/torch`` with N = 2, 3, 4."""

import atexit
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

dist = pytest.importorskip("torch.distributed")

import torch  # noqa: E402

torch.set_num_threads(1)

from mpi4py import MPI  # noqa: E402

sys.path.append(str(Path(__file__).parents[1] / "serial"))
import standin  # noqa: E402
from executor import compiler, make_by_one  # noqa: E402

#: Number of the stand-in's GPUs, some of which tests break.
N_DEVICES = 4
#: True if tests run on this machine's GPU, without the stand-in.
_REAL = "--gpu" in sys.argv

os.environ.setdefault("COMPCOLL_STANDIN_DEVICES", str(N_DEVICES))
# Load the stand-in for CUDA's driver before the engine looks for a driver.
if not _REAL:
    make_by_one(MPI.COMM_WORLD, standin.load)
_DRIVER = standin.load() if compiler() and not _REAL else None

import compcoll.torch  # noqa: E402
from compcoll.devices.memory import DeviceArray  # noqa: E402

os.environ.setdefault("COMPCOLL_CODEC", "lossless")  # auto would leave all calls inside one machine to MPI
# Each rank has its own folder: pytest removes the folders of earlier runs, and ranks would race to do so.
_FOLDER = tempfile.TemporaryDirectory(prefix="compcoll-tests-", ignore_cleanup_errors=True)
os.environ["PYTEST_DEBUG_TEMPROOT"] = _FOLDER.name
atexit.register(_FOLDER.cleanup)


def pytest_collection_modifyitems(items):
    """Limit each test to 100 s."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(100))


@pytest.fixture(scope="session")
def world():
    """Default group, of this backend."""
    dist.init_process_group("compcoll", timeout=timedelta(seconds=60))
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def gloo(world):
    """Group of the same ranks with gloo, whose results are the reference."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=60))


@pytest.fixture(scope="session")
def ours(world):
    """Group that compresses all that it can."""
    return dist.new_group(pg_options=compcoll.torch.Options("lossless", min_nbytes=0))


@pytest.fixture
def agree(world):
    """``assert agree(ok)`` fails on all ranks if ``ok`` is false on one; collective."""

    def ask(ok) -> bool:
        flag = torch.tensor([bool(ok)])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag)

    return ask


@pytest.fixture
def gpu(request, monkeypatch, world):
    """Device whose addresses must not reach MPI, and whose memory must not be taken for the host's.

    Its number may be a parameter, because the process cannot use a failed device again. With ``--gpu`` it is
    this machine's, which ranks may share, and tests that break a device are skipped.
    """
    import torch_device

    monkeypatch.setattr(DeviceArray, "__cuda_array_interface__", property(_refuse))
    monkeypatch.setattr(DeviceArray, "__array__", _refuse)
    if _REAL:
        if not torch.cuda.is_available() or hasattr(request, "param"):
            pytest.skip("breaks a GPU" if hasattr(request, "param") else "this torch finds no GPU")
        yield (gpu := torch_device.RealGpu(dist.get_rank() % torch.cuda.device_count()))
        gpu.finish()
        return
    if _DRIVER is None:
        pytest.skip("needs g++ on x86-64")
    import fake_torch

    gpu = torch_device.Gpu(getattr(request, "param", 0), dist.get_rank())
    with standin.installed(), fake_torch.installed(gpu):
        yield gpu
        gpu.finish()
    assert gpu.device.sound()


def _refuse(*args):
    raise AssertionError("memory of the device was taken for the host's")


@pytest.fixture(scope="session")
def lossy(world):
    return dist.new_group(pg_options=compcoll.torch.Options("zfp:rate=8", min_nbytes=0))


#: Nodes of ranks by number of ranks, and the number of levels.
PLACES = {2: [([0, 1], 1)], 3: [([0, 0, 1], 1)], 4: [([0, 0, 1, 1], 2), ([0, 1, 0, 1], 2), ([0, 0, 0, 1], 1)]}


@pytest.fixture(params=range(4), ids=["flat", "first", "second", "third"])
def place(request, world):
    """Nodes of all ranks, and the number of levels."""
    places = [([0] * dist.get_world_size(), 1), *PLACES[dist.get_world_size()]]
    if request.param >= len(places):
        pytest.skip("fewer places for so many ranks")
    return places[request.param]

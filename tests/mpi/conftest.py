"""Fixtures of the tests under MPI: ``mpiexec -n N python -m pytest tests/mpi`` with N = 1, 2, 3, 4."""

import atexit
import gc
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from mpi4py import MPI

sys.path.append(str(Path(__file__).parents[1] / "serial"))
import standin
from executor import build, compiler, make_by_one

# Load the stand-in for CUDA's driver before the engine looks for a driver.
make_by_one(MPI.COMM_WORLD, standin.load)
_DRIVER = standin.load() if compiler() else None

# Each rank has its own folder: pytest removes the folders of earlier runs, and ranks would race to do so.
_FOLDER = tempfile.TemporaryDirectory(prefix="compcoll-tests-", ignore_cleanup_errors=True)
os.environ["PYTEST_DEBUG_TEMPROOT"] = _FOLDER.name
atexit.register(_FOLDER.cleanup)

EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "0") != "0"
ON_MPICH = MPI.get_vendor()[0] == "MPICH"
#: Test files skipped in sample runs on three ranks of MPICH only: CI runs them on two and four.
ON_THREE = (
    "checkpoint|communicators|layer_check|layer_lifetime|policy|policy_auto|receives_one_buffer|requests|"
    * (MPI.COMM_WORLD.size == 3)
)
#: Test files skipped in sample runs. On more than two ranks of MPICH: files that test nothing more there than
#: on two ranks. On other libraries: files about code above MPI.
LEFT_OUT = re.compile(
    f"{ON_THREE}benchmarks_.*|codecs_shapes|datatypes|delta|devices_(?!operations).*|engine_damage"
    "|layer|layer_(arguments|first_messages|interrupts|small_calls)|objects|pointtopoint|probes|receives|summary"
    if ON_MPICH
    else "benchmarks_.*|codecs_.*|devices_(chunks|order|repeats|schedules)|engine_damage|policy_auto"
)


def pytest_collection_modifyitems(config, items):
    """Deselect tests in sample runs, compile kernels, and limit each test to a minute."""
    if (MPI.COMM_WORLD.size > 2 or not ON_MPICH) and not EXHAUSTIVE and not config.option.keyword:
        named = " ".join(config.args)
        left_out = {
            item
            for item in items
            if LEFT_OUT.fullmatch(item.path.stem.removeprefix("test_")) and item.path.name not in named
        }
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    # Kernels are compiled before the first test.
    if any("cupy" in getattr(item, "fixturenames", ()) for item in items):
        make_by_one(MPI.COMM_WORLD, build)
    for item in items:
        if item.path.name.startswith("test_devices_") and MPI.COMM_WORLD.size > 3:
            item.add_marker(pytest.mark.skip("the stand-in for devices is tried on up to 3 ranks"))
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))


def pytest_collection_finish():
    """Exempt the objects that exist before the first test from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def comm():
    """Communicator of all ranks, a new duplicate for each test."""
    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Free()


@pytest.fixture
def agree(comm):
    """``assert agree(ok)`` fails on all ranks if ``ok`` is false on one; collective."""
    return lambda ok: comm.allreduce(bool(ok), op=MPI.LAND)


@pytest.fixture
def nodes_of_one(comm, monkeypatch):
    """Treat each rank as a node of its own, so that all messages cross a network."""
    monkeypatch.setenv("COMPCOLL_NODES", ",".join(map(str, range(comm.size))))


@pytest.fixture
def cupy():
    """CuPy on the stand-in's GPUs."""
    if _DRIVER is None:
        pytest.skip("needs g++ on x86-64")
    with standin.installed() as module:
        yield module


@pytest.fixture
def device(cupy):
    """The first of these GPUs, whose streams run their work only when they are queried or waited for."""
    device = standin.Device(0, MPI.COMM_WORLD.rank)
    yield device
    assert device.sound()

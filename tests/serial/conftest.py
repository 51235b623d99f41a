"""Fixtures of the tests that need one process."""

import os
import sys

import pytest

from compcoll.core import _cpu

# If this is set, a printed line is two writes, between which another rank can write to the same pipe.
os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Load the stand-in for NVIDIA's driver, if tests need one, before the engine looks for a driver."""
    if config.getoption("gpu", False):
        return
    need = any({"cupy", "device"} & set(getattr(item, "fixturenames", ())) for item in items)
    if need or "standin_driver" in sys.modules:
        from standin_driver import compiler, load

        if compiler():
            load()


@pytest.fixture(params=_cpu.available_levels())
def level(request):
    """Use each instruction-set level of this processor in turn; return its name."""
    before = _cpu.level()
    _cpu.set_level(request.param)
    yield request.param
    _cpu.set_level(before)


@pytest.fixture
def run():
    """Run a command of the command line, and return its result."""
    from click.testing import CliRunner  # tests on other machines run without it

    from compcoll.cli import main

    def invoke(*arguments):
        return CliRunner().invoke(main, [str(a) for a in arguments])

    return invoke


@pytest.fixture
def outside(monkeypatch):
    """Remove the variables of process managers, as if none had started this process."""
    from compcoll import launch

    for mark in launch._MARKS:
        monkeypatch.delenv(mark, raising=False)


@pytest.fixture
def cupy(request):
    """This machine's CuPy with ``--gpu``, otherwise the stand-in."""
    if request.config.getoption("gpu", False):
        from compcoll.devices import cuda

        if not cuda.is_usable():
            pytest.skip("needs CuPy and an NVIDIA GPU")
        yield pytest.importorskip("cupy")
        return
    from executor import compiler, seeds
    from standin import Device, installed

    if not compiler():
        pytest.skip("needs g++ on x86-64")
    with installed() as module:
        device = Device(seed=next(seeds()))
        module.launches = lambda: sum(device.launches.values())
        yield module
        device.drain()
        assert device.sound()


@pytest.fixture
def device():
    """A GPU of the stand-in driver, which must be sound at the end."""
    from standin import Device, installed

    with installed():
        device = Device()
        yield device
        device.drain()
        assert device.sound()


@pytest.fixture(scope="module")
def comm():
    """A communicator of this process; starts the engine."""
    from mpi4py import MPI

    from compcoll.engine.start import start_engine

    start_engine()
    comm = MPI.COMM_SELF.Dup()
    yield comm
    comm.Free()

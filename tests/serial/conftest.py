"""Fixtures of the tests that need one process."""

import os
import sys

import pytest

from compcoll.core import _cpu

# With it a printed line is two writes, between which another rank writes to the same pipe.
os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Load the library that stands for NVIDIA's, where tests need one, before the engine looks for that."""
    if config.getoption("gpu", False):
        return
    need = any({"cupy", "device"} & set(getattr(item, "fixturenames", ())) for item in items)
    if need or "standin_driver" in sys.modules:
        from standin_driver import compiler, load

        if compiler():
            load()


@pytest.fixture(params=_cpu.available_levels())
def level(request):
    """Each instruction-set level of this processor in turn, as the one in use; its name."""
    before = _cpu.level()
    _cpu.set_level(request.param)
    yield request.param
    _cpu.set_level(before)


@pytest.fixture
def run():
    """Run a command of the command line, and return its result."""
    from click.testing import CliRunner  # which tests on other machines do without

    from compcoll.cli import main

    def invoke(*arguments):
        return CliRunner().invoke(main, [str(a) for a in arguments])

    return invoke


@pytest.fixture
def outside(monkeypatch):
    """As if no process manager had started this process."""
    from compcoll import launch

    for mark in launch._MARKS:
        monkeypatch.delenv(mark, raising=False)


@pytest.fixture
def cupy(request):
    """CuPy of this machine with ``--gpu``, or what stands for it."""
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
    """A GPU of the library that stands for NVIDIA's, which has to be sound in the end."""
    from standin import Device, installed

    with installed():
        device = Device()
        yield device
        device.drain()
        assert device.sound()


@pytest.fixture(scope="module")
def comm():
    """A communicator of this process, and an engine."""
    from mpi4py import MPI

    from compcoll.engine.start import start_engine

    start_engine()
    comm = MPI.COMM_SELF.Dup()
    yield comm
    comm.Free()

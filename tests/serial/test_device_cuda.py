"""What is written for CuPy, and the tests for a GPU, with a CuPy that works on the host in place of CuPy."""

import sys
from pathlib import Path

import numpy as np
import pytest
from executor import build
from fake_cupy import installed

import compcoll
from compcoll import codec
from compcoll.core import dtypes
from compcoll.devices.cuda import Device
from compcoll.devices.wrapping import wrap
from compcoll.engine.device.pool import Pool
from compcoll.engine.device.work import CudaWork

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import test_on_device as on_device

LIBRARY = build()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setattr(on_device, "SIZES", [1, 5, 129, 1100])
    monkeypatch.setattr(on_device, "LARGE", 1 << 10)
    with installed(LIBRARY) as module:
        yield module


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp", "lossless", "int4", "mpc:dim=3"])
@pytest.mark.parametrize("dtype", on_device.FLOATS, ids=str)
def test_bytes(cupy, spec, dtype):
    on_device.test_bytes_are_those_of_the_cpu(cupy, spec, dtype)


def test_the_rest(cupy):
    on_device.test_blocks_of_two_and_three_dimensions(cupy, 8, "f4", (5, 7))
    on_device.test_arrays_at_any_element(cupy, "zfp:rate=8")
    on_device.test_a_batch_of_many_chunks_in_one_launch(cupy)
    on_device.test_kernels_come_after_what_is_in_the_current_stream(cupy)
    on_device.test_values_that_are_not_finite_go_lossless(cupy)


@pytest.mark.parametrize("spec", ["zfp:rate=8", "lossless"])
@pytest.mark.parametrize("direct", [False, True])
def test_turns(cupy, spec, direct):
    on_device.test_what_a_collective_asks_for_in_one_turn(cupy, spec, direct)


@pytest.mark.parametrize("dtype", on_device.FLOATS, ids=str)
def test_values_are_finite(dtype):
    """Those of the tests on a GPU, which nobody sees here at full size."""
    for n in (100_003, 1 << 20):
        assert np.isfinite(on_device.values(dtype, n, n).view(dtypes.real_dtype(dtype))).all()


def test_arrays_of_another_device_than_the_current_one(cupy):
    """A fake pointer's device is the current one when it is wrapped."""
    array = on_device.values(np.dtype("f4"), 1000)
    with cupy.cuda.Device(1):
        memory = wrap(cupy.asarray(array))
    assert memory.device is Device.of(1)
    frame = codec("szp:abs=1e-2").encode(memory)
    assert frame.device is Device.of(1)
    assert on_device.same(frame, codec("szp:abs=1e-2").encode(array))
    assert on_device.same(compcoll.decode(frame), compcoll.decode(np.asarray(frame)))


def test_what_is_not_contiguous_is_copied(cupy):
    array = np.arange(24, dtype="f8").reshape(4, 6)
    assert wrap(cupy.asarray(array)[:, ::2]) is None
    frame = codec("lossless").encode(cupy.asarray(array)[:, ::2])
    assert np.array_equal(compcoll.decode(cupy.asnumpy(frame)), array[:, ::2])
    with pytest.raises(ValueError, match="has to be C-contiguous"):
        compcoll.decode(frame, cupy.asarray(array)[:, ::2])
    with pytest.raises(ValueError, match="has to be C-contiguous"):
        codec("lossless").encode(cupy.asarray(array), cupy.zeros(2000, np.uint8)[::2])


def test_cupy_arrays_of_bfloat16(cupy):
    array = on_device.values(dtypes.BFLOAT16, 500)
    frame = codec("zfp:rate=8").encode(cupy.asarray(array))
    assert on_device.same(cupy.asnumpy(frame), codec("zfp:rate=8").encode(array))
    values = compcoll.decode(frame)
    assert values.dtype == dtypes.BFLOAT16
    assert on_device.same(cupy.asnumpy(values), compcoll.decode(cupy.asnumpy(frame)))
    cupy.__version__ = "13.6.0"
    with pytest.raises(TypeError, match=r"CuPy 13\.6\.0 has no bfloat16"):
        compcoll.decode(frame)


@pytest.mark.parametrize("synchronize", [False, True])
def test_a_device_that_fails_is_an_error_and_no_hang(cupy, synchronize):
    device = Device.of(0)
    array = wrap(cupy.asarray(np.ones(1000, "f4")))
    work = CudaWork(codec("zfp:rate=8"), Pool())
    request = work.encode(array, 0.0)
    work.turn.begin()
    assert request.done
    cupy.cuda.runtime.eventQuery = lambda event: 700
    request = work.encode(array, 0.0)
    work.turn.begin()
    with pytest.raises(RuntimeError, match="700"):
        request.wait() if synchronize else request.poll()
    assert request.done
    assert len(device._streams) == 1  # it was given back

"""The stand-in for NVIDIA's driver reports the errors of programs, on which other tests rely."""

import ctypes
import gc
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from executor import compiler
from standin import Device, Event, Stream, installed, load

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")


@pytest.fixture
def device():
    device = Device(0)
    yield device
    device.lib.standin_fail_from(-1, 0)
    assert device.sound()


@contextmanager
def current(device):
    """Make a device's context current, as the library does for its calls."""
    device.call("cuInit", 0)
    device.lib.cuCtxPushCurrent_v2(device.context)
    try:
        yield device.lib
    finally:
        device.lib.cuCtxPopCurrent_v2(None)


def pinned(device, values):
    """Address and view of pinned memory with values."""
    address = device.made("cuMemHostAlloc", values.nbytes, 1)
    view = np.ndarray(values.shape, values.dtype, (ctypes.c_uint8 * values.nbytes).from_address(address))
    view[...] = values
    return address, view


def test_nothing_happens_before_somebody_asks(device):
    array = device.array(np.zeros(4))
    device.fill_later(array, np.ones(4))
    assert (array.layout == 0).all()
    event = device.current.event()
    assert not event.done
    assert (array.layout == 1).all()
    assert event.done
    target = device.array(np.zeros(32, "u1"))
    jobs = device.array(np.array([array.address, target.address, 32, 0, 0, 0, 0, 0], "u8"))
    with installed() as cupy, cupy.cuda.Device(0):
        cupy.RawModule(code="").get_function("raw_copy")((1, 1), (128,), (np.uint64(jobs.address),))
    assert device.launches == {"raw_copy": 1}
    assert not target.layout.any()
    assert np.array_equal(target.view("f8").get(), np.ones(4))


def test_a_wait_that_is_missing_shows(device):
    def late(waits, seed):
        device.lib.standin_set_seed(seed)
        array = device.array(np.zeros(1))
        first, second = Stream(device), Stream(device)
        with first:
            device.fill_later(array, np.ones(1))
        if waits:
            second.wait(first.event())
        with second:
            device.fill_later(array, np.full(1, 2.0))
        device.drain()
        return array.get()[0]

    assert {late(True, seed) for seed in range(20)} == {2}
    assert {late(False, seed) for seed in range(20)} == {1, 2}


def test_a_wait_runs_only_what_it_has_to(device):
    arrays = [device.array(np.zeros(1)) for _ in range(3)]
    streams = [Stream(device) for _ in range(3)]
    for array, stream in zip(arrays, streams, strict=True):
        with stream:
            device.fill_later(array, np.ones(1))
    streams[1].wait(streams[0].event())
    streams[1].synchronize()
    assert [array.layout[0] for array in arrays] == [1, 1, 0]
    device.synchronize()
    assert arrays[2].layout[0] == 1


def test_the_null_stream_comes_after_blocking_streams_and_before_them(device):
    order = []
    null, blocking, free = device.current, Stream(device, non_blocking=False), Stream(device)
    for k in range(3):
        blocking.call(lambda k=k: order.append(("blocking", k)))
        null.call(lambda k=k: order.append(("null", k)))
        free.call(lambda k=k: order.append(("free", k)))
    null.synchronize()
    assert [one for one in order if one[0] != "free"] == [
        (n, k) for k in range(3) for n in ("blocking", "null")
    ]
    assert ("free", 0) not in order
    device.drain()


def test_copies_with_memory_that_is_not_pinned_are_made_at_once(device):
    values = np.arange(100, dtype="u1")
    array, stream = device.empty(100), Stream(device)
    address, view = pinned(device, values)
    other = np.zeros(100, "u1")
    with current(device) as lib:
        assert lib.cuMemcpyHtoDAsync_v2(array.address, address, 100, stream.ptr) == 0
        assert array.layout[0] == 0xA5
        assert lib.cuMemcpyDtoHAsync_v2(other.ctypes.data, array.address, 100, stream.ptr) == 0
        assert np.array_equal(other, values)
        assert lib.cuMemcpyAsync(address, array.address + 50, 50, stream.ptr) == 0
        assert view[0] == 0
        stream.synchronize()
        assert np.array_equal(view[:50], values[50:])
        assert lib.cuMemcpyHtoDAsync_v2(array.address, address, 101, stream.ptr) == 1
        assert lib.cuMemFreeHost(address) == 0


def test_writes_where_none_may_be(device, capfd):
    array = device.empty(10)
    address = array.address
    ctypes.memset(address + 10, 0, 1)
    assert not device.sound()
    assert "its guards" in capfd.readouterr().err
    del array
    gc.collect()
    ctypes.memset(address, 0, 1)
    assert not device.sound()
    assert "after it was freed" in capfd.readouterr().err
    device.current.call(lambda: None)
    assert not device.sound()
    assert "1 operations left" in capfd.readouterr().err
    device.drain()


def test_contexts(device):
    other, lib = Device(1), device.lib
    stream, event = Stream(other), Event(None, other)
    mine = Stream(device)
    assert lib.cuStreamQuery(mine.ptr) == 201
    with current(device):
        assert lib.cuStreamQuery(stream.ptr) == 400
        assert lib.cuEventRecord(event.ptr, mine.ptr) == 400
        assert lib.cuEventRecord(event.ptr, stream.ptr) == 0
        assert lib.cuStreamWaitEvent(mine.ptr, event.ptr, 0) == 0
        mine.synchronize()
        assert lib.cuEventQuery(event.ptr) == 0
        assert lib.cuStreamSynchronize(event.ptr) == 400


def test_captures_forbid_what_is_unsafe(device):
    lib, stream, event = device.lib, Stream(device), Event(None, device)
    graph, address, mode = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int(2)
    with current(device):
        for relaxed in (True, False):
            assert lib.cuStreamBeginCapture_v2(stream.ptr, 1) == 0
            assert lib.cuEventRecord(event.ptr, stream.ptr) == 0
            if relaxed:
                assert lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
                assert lib.cuEventQuery(event.ptr) == 907
            assert lib.cuMemAlloc_v2(ctypes.byref(address), 10) == (0 if relaxed else 900)
            if relaxed:
                assert lib.cuMemFree_v2(address) == 0
                assert lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
            assert lib.cuStreamEndCapture(stream.ptr, ctypes.byref(graph)) == (0 if relaxed else 901)


PROGRAM = """
import ctypes, gc, sys
sys.path[:0] = {folder!r},
import numpy as np
import standin
from standin import *
def a_lock_that_is_held():
    ctypes.PyDLL(str(load().path)).cuInit(0)
def a_handle_that_is_destroyed():
    device = Device()
    event = Event(device.current)
    device.drain()
    device.call("cuEventDestroy_v2", event.ptr)
    device.lib.cuCtxPushCurrent_v2(device.context)
    device.lib.cuEventQuery(event.ptr)
def memory_that_is_freed_too_early():
    device = Device()
    array = device.empty(10)
    device.fill_later(array, np.zeros(10, "u1"))
    del array
    gc.collect()
    device.drain()
    assert not device.sound()
    sys.exit(1)
def a_job_elsewhere():
    device = Device()
    jobs = device.array(np.array([1 << 20, 0, 1, 1, 0, 0, 0, 0], "u8"))
    with installed() as cupy, cupy.cuda.Device(0):
        cupy.RawModule(code="").get_function("raw_copy")((1, 1), (128,), (np.uint64(jobs.address),))
        device.current.synchronize()
globals()[sys.argv[1]]()
"""
SAID = {
    "a_lock_that_is_held": "cuInit is called by a thread that has the interpreter's lock",
    "a_handle_that_is_destroyed": "cuEventQuery got the handle 0x200000010, which has been destroyed",
    "memory_that_is_freed_too_early": "a copy reads or writes memory that was freed before it ran",
    "a_job_elsewhere": "raw_copy: src of job 0 is not in memory that the device reaches",
}


@pytest.mark.parametrize("name", SAID)
def test_in_a_process_of_its_own(name):
    load()
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert SAID[name] in done.stderr

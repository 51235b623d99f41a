"""The stand-in for NVIDIA's driver: what tests of the library rely on."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from executor import compiler
from ml_dtypes import bfloat16
from standin import Array, Device, DriverError, Event, Memory, Stream, installed, load

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")


@pytest.fixture
def device():
    device = Device(0)
    yield device
    device.lib.standin_fail_from(-1, 0)
    assert device.sound()


@contextmanager
def current(device):
    """Have a device's context be the caller's, as the library has for its calls."""
    device.call("cuInit", 0)
    device.lib.cuCtxPushCurrent_v2(device.context)
    try:
        yield device.lib
    finally:
        device.lib.cuCtxPopCurrent_v2(None)


def pinned(device, values):
    """Pinned memory with values: the address, and a view."""
    address = device.made("cuMemHostAlloc", values.nbytes, 1)
    view = np.ndarray(values.shape, values.dtype, (ctypes.c_uint8 * values.nbytes).from_address(address))
    view[...] = values
    return address, view


def test_arrays(device):
    values = np.arange(20, dtype="f4")
    array = device.array(values)
    assert np.array_equal(np.asarray(array), values)
    assert array.address % 512 == 0
    assert np.array_equal(array[3:7].get(), values[3:7])
    assert array[3:7].address == array.address + 12
    assert np.array_equal(array.view("u4").get(), values.view("u4"))
    array[2:4] = [7, 8]
    assert array.get()[2:4].tolist() == [7, 8]
    about = device.array(np.zeros(3, bfloat16)).__cuda_array_interface__
    assert (about["version"], about["typestr"], about["shape"]) == (3, "<V2", (3,))
    assert device.empty(0).__cuda_array_interface__["data"] == (0, False)
    assert (device.empty(3).get() == 0xA5).all()


def test_nothing_happens_before_somebody_asks(device):
    array = device.array(np.zeros(4))
    device.fill_later(array, np.ones(4))
    assert (array.layout == 0).all()
    event = device.current.event()
    assert not event.done
    assert (array.layout == 1).all()
    assert event.done
    device.fill_later(array, np.full(4, 2.0))
    assert (array.get() == 2).all()


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


def test_held_operations(device):
    stream, done = Stream(device), []
    stream.hold()
    stream.call(lambda: done.append(1))
    event = stream.event()
    assert not any(event.done for _ in range(5))
    releasing = threading.Timer(0.2, stream.release)
    releasing.start()
    event.synchronize()
    releasing.join()
    assert done == [1]


def test_copies_with_memory_that_is_not_pinned_are_made_at_once(device):
    values = np.arange(100, dtype="u1")
    array, stream = device.empty(100), Stream(device)
    address, view = pinned(device, values)
    other = np.zeros(100, "u1")
    with current(device) as lib:
        assert lib.cuMemcpyHtoDAsync_v2(array.address, address, 100, stream.ptr) == 0
        assert array.layout[0] == 0xA5
        assert (device.copies, device.pageable) == (1, 0)
        assert lib.cuMemcpyDtoHAsync_v2(other.ctypes.data, array.address, 100, stream.ptr) == 0
        assert np.array_equal(other, values)
        assert (device.copies, device.pageable) == (2, 1)
        assert lib.cuMemcpyAsync(address, array.address + 50, 50, stream.ptr) == 0
        assert lib.cuMemsetD8Async(array.address, 3, 10, stream.ptr) == 0
        stream.synchronize()
        assert np.array_equal(view[:50], values[50:])
        assert (array.layout[:11] == [3] * 10 + [10]).all()
        assert lib.cuMemcpyHtoDAsync_v2(array.address, address, 101, stream.ptr) == 1
        assert lib.cuMemFreeHost(address) == 0


def test_kernels(device):
    values = np.random.default_rng(0).standard_normal(1000).astype("f4")
    source, target = device.array(values), device.array(np.zeros(4000, "u1"))
    jobs = device.array(np.array([source.address, target.address, 4000, 0, 0, 0, 0, 0], "u8"))
    with current(device) as lib, installed() as cupy:
        function = cupy.RawModule(code="").get_function("raw_copy").kernel.ptr
        before = device.counts["cuLaunchKernel"]
        address = ctypes.c_uint64(jobs.address)
        args = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        assert lib.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, None, args, None) == 0
        address.value = 0  # which has been read
        assert device.launches == {"raw_copy": 1}
        assert device.counts["cuLaunchKernel"] == before + 1
        assert lib.standin_launches(b"raw_copy") >= 1
        assert not target.layout.any()
        assert np.array_equal(target.view("f4").get(), values)
        lib.standin_fail_launch(b"raw_copy", 701)
        assert lib.cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, None, args, None) == 701
        lib.standin_fail_launch(b"raw_copy", 0)


def test_a_job_outside_of_the_devices_memory_is_a_fault(device, capfd):
    jobs = device.array(np.array([1 << 20, 0, 1, 1, 0, 0, 0, 0], "u8"))
    with installed() as cupy, cupy.cuda.Device(0):
        cupy.RawModule(code="").get_function("raw_copy")((1, 1), (128,), (np.uint64(jobs.address),))
        with pytest.raises(DriverError, match="700"):
            device.current.synchronize()
    device.lib.standin_clear_errors()
    assert not device.sound()
    assert "raw_copy: src of job 0 is not in memory that the device reaches" in capfd.readouterr().err


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


def test_memory_that_is_freed_too_early(device, capfd):
    array = device.empty(10)
    device.fill_later(array, np.zeros(10, "u1"))
    del array
    gc.collect()
    device.drain()
    device.lib.standin_clear_errors()
    assert not device.sound()
    assert "memory that was freed before it ran" in capfd.readouterr().err


def test_pointer_attributes(device):
    array, lib = device.empty(10), device.lib
    address, _ = pinned(device, np.zeros(10, "u1"))
    managed = device.made("cuMemAllocManaged", 10, 1)
    values = [ctypes.c_uint64() for _ in range(4)]
    pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))
    which = (ctypes.c_int * 4)(1, 2, 8, 9)

    def about(where):
        assert lib.cuPointerGetAttributes(4, which, pointers, where) == 0
        return [values[0].value, *(ctypes.c_int.from_buffer(v).value for v in values[1:])]

    assert about(array.address + 9) == [device.context, 2, 0, 0]
    assert about(address) == [device.context, 1, 0, 0]
    assert about(managed) == [device.context, 2, 1, 0]
    assert about(ctypes.addressof(pointers)) == [0, 0, 0, -2]
    assert about(array.address + 10) == [0, 0, 0, -2]
    other = Device(1).empty(5)
    assert about(other.address)[1:] == [2, 0, 1]
    assert lib.cuPointerGetAttribute(pointers[1], 2, ctypes.addressof(pointers)) == 1
    device.call("cuMemFreeHost", address)
    device.call("cuMemFree_v2", managed)


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
    foreign, index = ctypes.c_void_p(), ctypes.c_int(-1)
    with current(other):
        assert lib.cuCtxCreate_v2(ctypes.byref(foreign), 0, 1) == 0
        assert foreign.value != other.context
        assert lib.cuCtxGetDevice(ctypes.byref(index)) == 0
        assert index.value == 1
        assert lib.cuStreamQuery(stream.ptr) == 400  # it is the primary context's
        assert lib.cuCtxDestroy_v2(foreign) == 0
        assert lib.cuStreamQuery(stream.ptr) == 0


def test_calls_that_wait_for_the_device(device):
    stream, lib = Stream(device), device.lib
    address, stalls = ctypes.c_uint64(), lib.standin_stalls()
    done = []
    with current(device):
        stream.call(lambda: done.append(1))
        assert lib.cuMemAlloc_v2(ctypes.byref(address), 100) == 0
        assert done == [1]
        stream.call(lambda: done.append(2))
        assert lib.cuMemFree_v2(address) == 0
        assert done == [1, 2]
        stream.call(lambda: done.append(3))
        Memory(device, 10)  # a test's own
        assert done == [1, 2]
    assert lib.standin_stalls() == stalls + 2
    device.drain()


def test_calls_that_fail(device):
    lib, address = device.lib, ctypes.c_uint64()
    with current(device):
        lib.standin_fail_from(1, 999)
        assert lib.cuMemAlloc_v2(ctypes.byref(address), 100) == 0
        assert lib.cuMemFree_v2(address) == 999
        assert device.array(np.ones(3)).get().tolist() == [1, 1, 1]  # a test's own
        lib.standin_fail_from(-1, 0)
        assert lib.cuMemFree_v2(address) == 0
        lib.standin_budget(1, lib.standin_live(9) + 1000)
        assert lib.cuMemHostAlloc(ctypes.byref(address), 1001, 1) == 2
        assert lib.cuMemHostAlloc(ctypes.byref(address), 1000, 1) == 0
        assert lib.cuMemFreeHost(address.value) == 0
        lib.standin_budget(1, -1)


def test_captures(device):
    lib, stream, event = device.lib, Stream(device), Event(None, device)
    status, graph, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    with current(device):
        assert lib.cuStreamBeginCapture_v2(stream.ptr, 1) == 0
        assert lib.cuStreamIsCapturing(stream.ptr, ctypes.byref(status)) == 0
        assert status.value == 1
        assert lib.cuEventRecord(event.ptr, stream.ptr) == 0
        mode = ctypes.c_int(2)
        assert lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        assert lib.cuEventQuery(event.ptr) == 907
        assert lib.cuMemAlloc_v2(ctypes.byref(address), 10) == 0
        assert lib.cuMemFree_v2(address) == 0
        assert lib.cuStreamEndCapture(stream.ptr, ctypes.byref(graph)) == 0
        assert lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        assert mode.value == 2
        assert lib.cuStreamBeginCapture_v2(stream.ptr, 1) == 0
        assert lib.cuMemAlloc_v2(ctypes.byref(address), 10) == 900
        assert lib.cuStreamEndCapture(stream.ptr, ctypes.byref(graph)) == 901


def test_threads(device):
    """Each with streams of its own, which nobody else waits for, and functions that need the interpreter."""
    arrays = [device.array(np.zeros(1, "i8")) for _ in range(6)]

    def work(array):
        streams = [Stream(device) for _ in range(2)]
        for k in range(1, 60):
            stream = streams[k % 2]
            stream.wait(streams[1 - k % 2].event())
            with stream:
                if k % 3:
                    device.fill_later(array, np.array([k]))
                else:
                    stream.call(lambda k=k: array.layout.fill(k))
                if k % 7 == 0:
                    assert array.get() == k
                if k % 11 == 0:
                    streams[1 - k % 2].event().synchronize()
        streams[1].synchronize()

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(array.get()[0]) for array in arrays] == [59] * 6


def test_eager_and_stub(device):
    lib, stream, array = device.lib, Stream(device), device.array(np.zeros(3))
    lib.standin_eager(1)
    device.fill_later(array, np.ones(3))
    lib.standin_eager(0)
    assert (array.layout == 1).all()
    lib.standin_stub(1)
    device.fill_later(array, np.zeros(3))
    assert stream.event().done
    lib.standin_stub(0)
    assert (array.layout == 1).all()


def test_cupy(device):
    with installed() as cupy:
        assert sys.modules["cupy"] is cupy
        assert cupy.cuda.runtime.getDevice() == 0
        with cupy.cuda.Device(1):
            assert cupy.cuda.runtime.getDevice() == 1
            array = cupy.asarray(np.arange(6).reshape(2, 3))
            with cupy.cuda.Stream(non_blocking=True) as stream:
                assert cupy.cuda.get_current_stream().ptr == stream.ptr
            assert cupy.cuda.get_current_stream().ptr == 0
        assert array.device.id == 1
        assert isinstance(array, cupy.ndarray)
        assert cupy.asarray(device.array(np.ones(2))).get().tolist() == [1, 1]
        assert not cupy.asarray(Foreign(array)).layout[:, ::2].flags.c_contiguous
        assert cupy.asnumpy(cupy.ascontiguousarray(array[:, ::2])).tolist() == [[0, 2], [3, 5]]
        assert cupy.empty((2, 5), "f4").nbytes == 40
        assert cupy.ones(3, "f4").get().tolist() == [1, 1, 1]


class Foreign:
    def __init__(self, array: Array):
        self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__


PROGRAM = """
import ctypes, os, sys
sys.path[:0] = {folder!r},
import numpy as np
import standin
from standin import *
def before():
    lib = load().lib
    n = ctypes.c_int()
    assert lib.cuDeviceGetCount(ctypes.byref(n)) == 3
    assert lib.cuPointerGetAttribute(ctypes.byref(n), 2, 100) == 3
    assert ctypes.CDLL("libcuda.so.1")._handle == lib._handle
def fork():
    device = Device()
    array = device.array(np.ones(3))
    child = os.fork()
    if not child:
        n = ctypes.c_int()
        os._exit(device.lib.cuInit(0) + device.lib.cuDeviceGetCount(ctypes.byref(n)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
def reset():
    device = Device()
    stream, array = Stream(device), device.array(np.ones(3))
    stream.call(lambda: None)
    event = stream.event()
    assert device.lib.cuDevicePrimaryCtxReset_v2(0) == 0
    device.lib.cuCtxPushCurrent_v2(device.context)
    assert device.lib.cuEventQuery(event.ptr) == 709
    device.made("cuDevicePrimaryCtxRetain", 0)
    assert device.lib.cuEventQuery(event.ptr) == 400
    assert device.sound()
def locked():
    ctypes.PyDLL(str(load().path)).cuInit(0)
def held():
    device = Device()
    device.lib.standin_patience(0.1)
    device.current.hold()
    device.lib.cuCtxPushCurrent_v2(device.context)
    device.lib.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), 100)
def destroyed():
    device = Device()
    event = Event(device.current)
    device.drain()
    device.call("cuEventDestroy_v2", event.ptr)
    device.lib.cuCtxPushCurrent_v2(device.context)
    device.lib.cuEventQuery(event.ptr)
def old():
    load().lib.cuMemAlloc(None, 0)
globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("before", None),
        ("fork", None),
        ("reset", None),
        ("locked", "cuInit is called by a thread that has the interpreter's lock"),
        ("held", "cuMemAlloc_v2 would wait for ever: an operation of a stream is held"),
        ("destroyed", "cuEventQuery got the handle 0x200000010, which has been destroyed"),
        ("old", "cuMemAlloc is the function of old versions: cuMemAlloc_v2 is wanted"),
    ],
)
def test_in_a_process_of_its_own(name, message):
    load()
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", program, name], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode == 0) == (message is None), done.stderr
    assert message is None or message in done.stderr

"""What a GPU would do wrong without a word, on stand-ins: late values, other contexts, addresses, memory."""

import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest
from executor import Device as StandIn
from executor import library_path
from fake_cupy import installed
from floats import same, values
from mpi4py import MPI

import compcoll
from compcoll import codec, inspect, marked
from compcoll.devices import arrays, checks, cuda, nvrtc, pinned, preparation, queue
from compcoll.devices.cuda import Device
from compcoll.devices.finding import is_stand_in
from compcoll.devices.pinned import PinnedPool
from compcoll.devices.wrapping import wrap
from compcoll.engine import _engine
from compcoll.engine.device.launches import Frame
from compcoll.engine.device.run import DeviceOperations
from compcoll.engine.device.work import CudaWork
from compcoll.schedule.graph import NONE
from compcoll.schedule.trace import trace

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")


@pytest.fixture
def cupy():
    with installed(LIBRARY) as module:
        yield module


@pytest.fixture
def device():
    device = StandIn(LIBRARY)
    yield device
    assert device.sound()


@pytest.fixture
def comm():
    comm = MPI.COMM_SELF.Dup()
    yield comm
    comm.Free()


# -- values that come late


@pytest.mark.parametrize("call", ["Sendrecv", "Isend", "Scan", "Allgather"])
def test_mpi_gets_device_memory_when_its_values_are_there(comm, device, monkeypatch, call):
    """An MPI that takes it, in calls that are not compressed."""
    monkeypatch.setattr(marked, "reported", lambda: True)
    _engine.look_for_devices(is_stand_in)
    mine = compcoll.Comm(comm, codec="none")
    sent = device.array(np.zeros(1000, "f4"))
    got, expected = np.zeros(1000, "f4"), values(np.dtype("f4"), 1000)
    device.fill_later(sent, expected)
    if call == "Sendrecv":
        mine.Sendrecv(sent, 0, 0, got, 0, 0)
    elif call == "Isend":
        MPI.Request.Waitall([mine.Irecv(got, 0, 0), mine.Isend(sent, 0, 0)])
    else:
        getattr(mine, call)(sent, got)
    assert same(got, expected)
    mine.Free()


# -- kernels that are not there


def test_kernels_are_loaded_when_a_communicator_is_made(cupy, comm):
    compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    found = Device.of(0)
    begun = len(fake_cupy.RawModule.compiled)
    assert {"zfp", "mpc", "float", "frame", "raw"} <= set(found._modules)
    work = CudaWork(codec("zfp:rate=8"))
    array = values(np.dtype("f4"), 1000)
    array[5] = np.nan
    for chosen in (array[:5], array):  # one that the codec takes, and one that it refuses
        future = work.encode(wrap(cupy.asarray(chosen)), 0.0)
        while not future.done:
            work.batcher.launch()
        future.result()
    assert len(fake_cupy.RawModule.compiled) == begun


def test_a_program_without_gpu_arrays_loads_nothing(comm, monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(preparation.driver, "has_gpu", lambda: True)
    compcoll.Comm(comm, codec="zfp:rate=8")
    assert "cupy" not in sys.modules


async def nothing(rt, send, recv):
    pass


def test_a_call_loads_kernels_before_it_begins(device):
    block = device.array(np.zeros(10, "f4"))
    schedule = trace(nothing, 0, 1, [10], [10], 10)
    DeviceOperations(schedule, codec("bfp:bits=7"), block.dtype, [block, block], inside=codec("raw"))
    assert device.prepared == {"bfp", "lossless", "raw"}


def test_a_module_that_cannot_be_loaded_is_compiled(cupy, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPCOLL_CUBINS", str(tmp_path))
    for name in ("zfp", "frame"):
        nvrtc.cubin_path(tmp_path, name, "sm_90").write_bytes(b"of another GPU")
    array = values(np.dtype("f4"), 1000)
    with pytest.warns(RuntimeWarning, match=r"zfp-sm_90-\w+\.cubin cannot be loaded .*NO_BINARY_FOR_GPU"):
        frame = codec("zfp:rate=8").encode(cupy.asarray(array))
    assert same(frame.get(), codec("zfp:rate=8").encode(array))


# -- memory


def test_pinned_memory_is_of_the_device_s_context(cupy):
    """Whatever device is the thread's: each context takes half a gigabyte of a GPU."""
    fake_cupy.PinnedMemory.made.clear()
    Device.of(1).host(10_000)
    assert [index for index, _ in fake_cupy.PinnedMemory.made] == [1]


def test_a_slab_of_frames_pins_no_more_than_it_needs():
    made = []
    pool = PinnedPool(lambda nbytes: made.append(nbytes) or bytearray(nbytes))
    need = 16 * ((16 << 10) + 80)
    slab = pool.take(need)
    assert slab.size == need
    assert made[0] - need < 4096
    rooms = [slab[i : i + 100] for i in range(0, 1000, 100)]
    del slab
    gc.collect()
    assert pool.take(need).ctypes.data != rooms[0].ctypes.data  # of which rooms are left
    address = rooms[0].ctypes.data
    del rooms
    gc.collect()
    again = pool.take(need - 5000)
    assert len(made) == 2
    assert again.flags.writeable
    assert address in (again.ctypes.data, pool.take(need).ctypes.data)


def test_pinned_memory_that_nobody_needs_is_freed(monkeypatch):
    monkeypatch.setattr(pinned, "KEPT_NBYTES", 100 << 10)

    class Piece(bytearray):
        pass

    made = []

    def allocate(nbytes):
        piece = Piece(nbytes)
        made.append(weakref.ref(piece))
        return piece

    pool = PinnedPool(allocate)
    for i in range(1, 40):
        pool.take(i * 16384)
        gc.collect()
    kept = [len(piece()) for piece in made if piece() is not None]
    assert sum(kept[:-1]) <= 100 << 10
    assert len(kept) < len(made) > 10


def test_scratch_is_torch_s_where_torch_has_the_gpu(cupy, monkeypatch):
    torch = pytest.importorskip("torch")
    held, streams = {}, []

    def alloc(nbytes, index, stream):
        memory = np.full(nbytes, 0xA5, np.uint8)
        held[memory.ctypes.data] = memory
        streams.append((index, stream))
        return memory.ctypes.data

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", alloc)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", held.pop)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=0))
    array = values(np.dtype("f4"), 1000)
    work = CudaWork(codec("szp:abs=1e-3"))
    future = work.encode(wrap(cupy.asarray(array)), 0.0)
    work.batcher.launch()
    assert future.done
    assert same(future.result().data, codec("szp:abs=1e-3").encode(array))
    assert set(streams) == {(0, Device.of(0)._private.ptr)}
    del future, work
    gc.collect()
    assert held == {}


def test_frames_and_values_for_torch_are_torch_s_memory(cupy, monkeypatch):
    """Whose allocator then knows the streams that read them."""
    torch = pytest.importorskip("torch")

    class OnGpu(torch.Tensor):
        is_cuda = True
        device = property(lambda self: torch.device("cuda", 0))

    empty, made = torch.empty, []

    def on_gpu(*args, device, **more):
        made.append(device)
        return empty(*args, **more).as_subclass(OnGpu)

    monkeypatch.setattr(torch, "empty", on_gpu)
    array = values(np.dtype("f4"), 1000)
    tensor = torch.tensor(array).as_subclass(OnGpu)
    frame = codec("bfp:bits=9").encode(tensor)
    out = compcoll.decode(frame)
    assert made == [tensor.device] * 2
    expected = codec("bfp:bits=9").encode(array)
    assert same(frame.detach().as_subclass(torch.Tensor).numpy(), expected)
    assert same(out.detach().as_subclass(torch.Tensor).numpy(), compcoll.decode(expected))
    assert out.dtype == torch.float32


# -- addresses, sizes and copies


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "bfp", "int8", "mpc", "float"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_elements_between_their_addresses_are_coded_on_the_host(device, spec, dtype):
    array = values(np.dtype(dtype), 1000)
    block, out = (
        device.array(np.full(array.nbytes + 1, 7, np.uint8))[1:].view(array.dtype) for _ in range(2)
    )
    block.owner.data[1:] = array.view(np.uint8)
    work = CudaWork(codec(spec))
    frame = finished(work, work.encode(block, 0.0))
    assert same(frame.data, codec(spec).encode(array))
    finished(work, work.decode(frame, out))
    assert same(np.asarray(out), compcoll.decode(frame.data))
    assert not device.launches
    assert finished(work, work.copy(out, block)) == 0.0
    assert not device.launches


def finished(work, future):
    while not future.done:
        work.batcher.launch()
    return future.result()


def test_arrays_between_their_addresses_by_codec_and_decode(cupy):
    array = values(np.dtype("f4"), 500)
    bytes_ = wrap(cupy.zeros(array.nbytes + 1, np.uint8))
    block = bytes_[1:].view(array.dtype)
    with block.device.queue() as ours:
        ours.to_device(block.address, array.view(np.uint8))
    frame = codec("zfp:rate=8").encode(block)
    assert same(np.asarray(frame), codec("zfp:rate=8").encode(array))
    compcoll.decode(frame, block)
    assert same(np.asarray(block), compcoll.decode(np.asarray(frame)))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "int8", "bfp", "szp:abs=1e-3", "mpc", "float", "raw"])
def test_kernels_decode_no_more_than_they_can_count(spec):
    info = inspect(codec(spec).encode(np.cumsum(np.ones(3000, "f4"))))
    assert info.codec == spec.partition(":")[0]
    assert checks.size_is_sound(info)
    n = (1 << 36) // 4 + 128  # whose blocks, or words, more than 32 bits would have to count
    payload = checks.payload_nbytes(info.codec, info.dtype, n, info.params)
    large = replace(info, shape=(n,), nbytes=4 * n, payload_nbytes=max(payload, 1 << 30))
    assert not checks.size_is_sound(large)


@pytest.mark.parametrize(("n", "limit"), [(1, queue._MAX_PITCH), (3, 100)])
def test_rows_far_apart_are_copied_one_by_one(cupy, monkeypatch, n, limit):
    monkeypatch.setattr(queue, "_MAX_PITCH", limit)
    monkeypatch.setattr(cupy.cuda.runtime, "memcpy2DAsync", None)
    found, rows = Device.of(0), np.arange(n * 40, dtype=np.uint8).reshape(n, 40)
    target, back = found.scratch(n * 1000), np.zeros((n, 64), np.uint8)
    with found.queue() as ours:
        ours.rows_to_device(target.address, 1000, rows)
        ours.rows_to_host(back[:, :40], target.address, 1000)
    assert np.array_equal(back[:, :40], rows)
    assert not back[:, 40:].any()


def pinned_frame(operations, data):
    return Frame(operations._pinned(data), inspect(data))


def test_frames_of_the_engine_are_copied_from_pinned_memory(device):
    """A copy from other memory waits for the stream, and the engine with it."""
    array = values(np.dtype("f4"), 1000)
    frame, block = codec("zfp:rate=8").encode(array), device.array(np.zeros_like(array))
    schedule = trace(nothing, 0, 1, [1000], [1000], 1000)
    operations = DeviceOperations(schedule, codec("zfp:rate=8"), array.dtype, [block, block])
    operations._begun.append((NONE, NONE, operations._work.decode(pinned_frame(operations, frame), block)))
    lent = operations._frames
    lent.append(None)
    operations._work.batcher.launch()
    second = operations._frame(0, frame.ctypes.data, frame.size)
    finished(operations._work, operations._work.decode(second, block))
    frame[:] = 0  # which its owner may do from here on
    while operations.step([], []) == []:
        pass
    assert device.copies == 2
    assert device.pageable == 0
    assert same(np.asarray(block), compcoll.decode(codec("zfp:rate=8").encode(array)))


def test_cuda_is_asked_for_all_channels_before_it_is_used():
    code = (
        "import os; os.environ.pop('CUDA_DEVICE_MAX_CONNECTIONS', None); from compcoll.devices import driver;"
        "driver.has_gpu(); print(os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "32\n"
    assert cuda.available.__wrapped__ is not None
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as some programs need it
    try:
        arrays.driver.ask_for_channels()
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    finally:
        del os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]

"""What is written for CuPy, and the tests for a GPU, with a CuPy that works on the host in place of CuPy."""

import sys
from collections import Counter
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
from executor import library_path
from fake_cupy import installed

import compcoll
from benchmarks import gpu_host
from compcoll import codec
from compcoll.core import dtypes
from compcoll.devices.cuda import Device
from compcoll.devices.queue import Queue
from compcoll.devices.wrapping import wrap
from compcoll.engine.device.work import CudaWork

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import test_on_device as on_device

LIBRARY = library_path()
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


def test_a_device_that_fails_is_an_error_and_no_hang(cupy):
    device = Device.of(0)
    array = wrap(cupy.asarray(np.ones(1000, "f4")))
    work = CudaWork(codec("zfp:rate=8"))
    future = work.encode(array, 0.0)
    work.batcher.launch()
    assert future.done
    cupy.cuda.runtime.eventQuery = lambda event: 700
    future = work.encode(array, 0.0)
    work.batcher.launch()
    assert future.done
    with pytest.raises(RuntimeError, match="700"):
        future.result()
    assert len(device._streams) == 1  # it was given back


class Described:
    """Memory of a device whose owner names the stream that its values come from."""

    def __init__(self, array, stream):
        self.array, self.stream = array, stream

    @property
    def __cuda_array_interface__(self):
        about = {k: v for k, v in self.array.__cuda_array_interface__.items() if k != "stream"}
        return about if self.stream is ... else {**about, "stream": self.stream}


def test_the_stream_that_values_come_from_is_waited_for(cupy):
    """Version 3 of the interface: 1 is the default stream, no stream at all is nothing to wait for."""
    array = cupy.asarray(np.ones(100, "f4"))
    for handle, waits in ((77, [77]), (1, [1]), (None, []), (..., [])):
        with cupy.cuda.Stream(non_blocking=True) as mine:
            memory = wrap(Described(array, handle))
            assert getattr(mine, "after", []) == waits
            assert mine.ptr in Device.of(0).current_streams()
        assert same_values(memory, array)
    for handle in (1, 0):  # the caller's stream is that one
        null = cupy.cuda.get_current_stream()
        wrap(Described(array, handle))
        assert getattr(null, "after", []) == []
    with cupy.cuda.Stream(non_blocking=True) as mine:
        wrap(Described(array, mine.ptr))
        assert not hasattr(mine, "after")


def same_values(memory, array):
    return np.array_equal(np.asarray(memory), array.get())


def test_scratch_memory_comes_from_one_arena_whatever_the_stream(cupy):
    array = wrap(cupy.asarray(on_device.values(np.dtype("f4"), 5000)))
    device = Device.of(0)
    fake_cupy.Memory.arenas.clear()
    queues = [device.queue() for _ in range(3)]
    for queue in queues:
        queue.scratch(100), queue.control(200)
        assert queue.stream is not device._private
    for queue in queues:
        queue.close()
    work = CudaWork(codec("szp:abs=1e-3"))
    on_device.results(work, [work.encode(array, 0.0)])
    assert set(fake_cupy.Memory.arenas) == {id(device._private)}


def begun(work, blocks):
    asked = [work.encode(block, 0.0) for block in blocks]
    work.batcher.launch()
    return asked


def test_an_event_is_asked_once_for_all_that_wait_for_it(cupy, monkeypatch):
    blocks = [wrap(cupy.asarray(np.ones(1000, "f4"))) for _ in range(8)]
    work = CudaWork(codec("zfp:rate=8"))
    asked, runtime = begun(work, blocks), cupy.cuda.runtime
    assert len({future.event for future in asked}) == 1
    queries = []
    monkeypatch.setattr(
        runtime, "eventQuery", lambda event: queries.append(event) or (0 if len(queries) > 1 else 600)
    )
    assert not asked[0].done
    assert all(future.done for future in asked)
    assert len(queries) == 2


def test_events_are_used_again(cupy):
    device = Device.of(0)
    with device.queue() as queue:
        first = queue.event()
        assert first.done
    assert first.done  # whatever becomes of what it was made of
    with device.queue() as queue:
        assert queue.event()._event is first._event
    assert len(device._events) == 1


def test_a_queue_whose_stream_has_failed_gives_it_back(cupy, monkeypatch):
    device = Device.of(0)

    def fail(stream):
        raise RuntimeError("an illegal address")

    queue = device.queue()
    event, stream = queue.event(), queue.stream
    stream.done = False
    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda.Stream, "synchronize", fail)
        with pytest.raises(RuntimeError, match="illegal address"):
            queue.close()
    queue.close()  # once is enough
    assert device._streams == [stream]
    assert device._events == []  # its event may never come
    with pytest.raises(RuntimeError, match="illegal address"):
        _ = event.done


@pytest.mark.parametrize("spec", ["zfp:rate=8", "zfp:rate=11", "int8", "szp:abs=1e-3", "mpc"])
def test_a_batch_is_one_launch_and_one_copy_either_way(cupy, monkeypatch, spec):
    """Frames of known sizes; what depends on values is copied frame by frame when sizes are known."""
    blocks = [wrap(cupy.asarray(np.arange(1024, dtype="f4") + k)) for k in range(6)]
    counted = Counter()
    count_calls(cupy, monkeypatch, counted)
    work = CudaWork(codec(spec))
    asked = begun(work, blocks)
    frames = on_device.results(work, asked)
    fixed = spec.startswith(("zfp", "int"))
    assert counted["launch"] == 1
    assert counted["to device"] == 1  # what kernels have to know
    assert counted["to host"] == (1 if fixed else 1 + len(blocks))
    for frame, block in zip(frames, blocks, strict=True):
        assert on_device.same(frame.data, codec(spec).encode(np.asarray(block)))
    counted.clear()
    outs = [wrap(cupy.asarray(np.zeros(1024, "f4"))) for _ in blocks]
    on_device.results(work, [work.decode(frame, out) for frame, out in zip(frames, outs, strict=True)])
    own = spec in ("zfp:rate=8", "int8")  # whose decoders form the checksum
    assert counted["launch"] == (1 if own else 2)
    assert counted["to device"] == (2 if fixed else 1 + len(blocks))
    assert counted["to host"] == 1
    for frame, out in zip(frames, outs, strict=True):
        assert on_device.same(out, compcoll.decode(frame.data))


def count_calls(cupy, monkeypatch, counted):
    runtime, names = cupy.cuda.runtime, {1: "to device", 2: "to host", 3: "on the device"}
    copy, rows, launch = runtime.memcpyAsync, runtime.memcpy2DAsync, Queue.launch

    def count(name, call, *args):
        counted[name] += 1
        return call(*args)

    monkeypatch.setattr(runtime, "memcpyAsync", lambda *a: count(names[a[3]], copy, *a))
    monkeypatch.setattr(runtime, "memcpy2DAsync", lambda *a: count(names[a[6]], rows, *a))
    monkeypatch.setattr(Queue, "launch", lambda *a: count("launch", launch, *a))


@pytest.mark.parametrize("direct", [False, True])
def test_refusals_among_frames_of_known_sizes(cupy, direct):
    """They show by their headers, which memory that was used before must not hide."""
    arrays = [on_device.values(np.dtype("f4"), 2000, seed) for seed in range(5)]
    blocks = [wrap(cupy.asarray(array)) for array in arrays]
    work = CudaWork(codec("zfp:rate=8"), direct)
    for bad in (None, 2):
        if bad is not None:
            arrays[bad][7] = np.nan
            blocks[bad] = wrap(cupy.asarray(arrays[bad]))
        frames = on_device.results(work, begun(work, blocks))
        assert [frame.info.fallback for frame in frames] == [k == bad for k in range(5)]
        for frame, array in zip(frames, arrays, strict=True):
            assert on_device.same(frame.data, codec("zfp:rate=8").encode(array))


def test_conversions_are_one_launch(cupy, monkeypatch):
    counted = Counter()
    count_calls(cupy, monkeypatch, counted)
    halves = [wrap(cupy.asarray(np.arange(500, dtype="f2") + k)) for k in range(4)]
    wide = [wrap(cupy.asarray(np.zeros(500, "f4"))) for _ in halves]
    work = CudaWork(codec("zfp:rate=8"))
    asked = [work.copy(into, block) for into, block in zip(wide, halves, strict=True)]
    assert counted["launch"] == 0
    assert on_device.results(work, asked) == [0.0] * 4
    assert counted["launch"] == 1
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(wide, halves, strict=True))


def test_host_time_is_measured_without_a_gpu():
    rows = gpu_host.measure((1, 4), repeats=2)
    assert [row["chunks"] for row in rows] == [1, 4]
    assert all(row["encode us"] > 0 and row["decode us"] > 0 for row in rows)
    assert rows[1]["encode calls"] < rows[0]["encode calls"] / 3

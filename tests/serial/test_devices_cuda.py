"""CuPy's arrays, and the rules of NVIDIA's driver, on the stand-in driver."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from executor import compiler
from floats import same, values
from standin import Device, RawModule, Stream

import compcoll
from benchmarks import gpu_host
from compcoll import codec
from compcoll.core import _gpu, dtypes
from compcoll.devices import cuda, nvrtc
from compcoll.devices.kernels import MODULES
from compcoll.devices.memory import wrap

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")


def test_arrays_of_another_device_than_the_current_one(cupy):
    array = values(np.dtype("f4"), 1000)
    memory = wrap(Device(1).array(array))
    assert memory.gpu == 1
    frame = codec("szp:abs=1e-2").encode(memory)
    assert frame.gpu == 1
    assert same(frame, codec("szp:abs=1e-2").encode(array))
    assert same(compcoll.decode(frame), compcoll.decode(np.asarray(frame)))


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
    array = values(dtypes.BFLOAT16, 500)
    frame = codec("zfp:rate=8").encode(cupy.asarray(array))
    assert same(cupy.asnumpy(frame), codec("zfp:rate=8").encode(array))
    decoded = compcoll.decode(frame)
    assert decoded.dtype == dtypes.BFLOAT16
    assert same(cupy.asnumpy(decoded), compcoll.decode(cupy.asnumpy(frame)))
    cupy.__version__ = "13.6.0"
    with pytest.raises(TypeError, match=r"CuPy 13\.6\.0 has no bfloat16"):
        compcoll.decode(frame)


class Described:
    """Device memory with changes to its ``__cuda_array_interface__``."""

    def __init__(self, array, **changes):
        self.array, self.changes = array, changes

    @property
    def __cuda_array_interface__(self):
        about = {k: v for k, v in self.array.__cuda_array_interface__.items() if k not in ("stream", "descr")}
        return {**about, **self.changes}


@pytest.mark.parametrize("typestr", ["<M8[s]", "|V3", ">f4", "|b1"])
def test_types_that_frames_do_not_hold(typestr):
    array, shape = Device().array(np.zeros(24, "u1")), (24 // np.dtype(typestr).itemsize,)
    assert wrap(Described(array.view("u1"), typestr=typestr, shape=shape)) is None


def test_types_of_torch_that_frames_do_not_hold():
    torch = pytest.importorskip("torch")
    assert wrap(torch.zeros(3, dtype=torch.float8_e4m3fn)) is None


def test_the_stream_that_values_come_from_is_waited_for(cupy):
    """Encoding waits for the interface's stream: 1 is the default stream, None means no wait."""
    device, late = Device(), np.arange(1000, dtype="f4")
    host, other = codec("bfp").encode(late), Stream(device)
    codec("bfp").encode(device.array(late))  # all kernels are loaded from here on
    with Stream(device, non_blocking=True), other:
        array = device.array(np.zeros_like(late))
        device.fill_later(array, late)
    assert same(codec("bfp").encode(Described(array, stream=other.ptr)).get(), host)
    with other:
        array = device.array(np.zeros_like(late))
        with Stream(device, 0):
            device.fill_later(array, late)
        assert same(codec("bfp").encode(Described(array, stream=1)).get(), host)
    other.hold()
    for changes in ({"stream": None}, {}):
        assert same(codec("bfp").encode(Described(array, **changes)).get(), host)
    other.release()


def test_a_stream_that_is_captured_is_an_error(cupy):
    device, stream = Device(), Stream(Device())
    array = device.array(np.ones(1000, "f4"))
    codec("bfp").encode(array)
    with stream:
        device.call("cuStreamBeginCapture_v2", stream.ptr, 1)
        with pytest.raises(RuntimeError, match="captured into a graph"):
            codec("bfp").encode(array)
        device.call("cuStreamEndCapture", stream.ptr, ctypes.byref(ctypes.c_void_p()))
        assert same(codec("bfp").encode(array).get(), codec("bfp").encode(np.ones(1000, "f4")))


def test_the_gpu_of_an_address():
    device, host = Device(), np.zeros(10)
    array, other = device.array(np.zeros(10)), Device(1).array(np.zeros(10))
    pinned, managed = device.made("cuMemHostAlloc", 80, 1), device.made("cuMemAllocManaged", 80, 1)
    freed = device.made("cuMemAlloc_v2", 80)
    device.call("cuMemFree_v2", freed)
    addresses = {
        "none": (0, _gpu.NO_GPU),
        "host": (host.ctypes.data, _gpu.NO_GPU),
        "pinned": (pinned, _gpu.NO_GPU),
        "managed": (managed, _gpu.NO_GPU),
        "freed": (freed, _gpu.NO_GPU),
        "device": (array.address, 0),
        "inside": (array.address + 79, 0),
        "behind": (array.address + 80, _gpu.NO_GPU),
        "another device": (other.address + 8, 1),
    }
    assert {name: _gpu.gpu_of(at) for name, (at, _) in addresses.items()} == {
        name: gpu for name, (_, gpu) in addresses.items()
    }
    device.call("cuMemFreeHost", pinned)
    device.call("cuMemFree_v2", managed)


def test_a_module_that_cannot_be_loaded_is_compiled(cupy, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "_LOADED", {})
    monkeypatch.setenv("COMPCOLL_CUBINS", str(tmp_path))
    for name in ("zfp", "frame"):
        nvrtc.cubin_path(tmp_path, name, "sm_90").write_bytes(b"of another GPU")
    array, begun = values(np.dtype("f4"), 1000), len(RawModule.compiled)
    with pytest.warns(RuntimeWarning) as found:
        frame = codec("zfp:rate=8").encode(cupy.asarray(array))
    said = [str(one.message) for one in found]
    assert len(said) == 2
    assert all("cubin cannot be loaded (cuModuleLoad: error 209)" in one for one in said)
    assert same(frame.get(), codec("zfp:rate=8").encode(array))
    assert len(RawModule.compiled) > begun


def test_frames_and_values_for_torch_are_torch_s_memory(cupy, monkeypatch):
    """torch's allocator owns frames and decoded values, so that it knows the streams that read them."""
    torch = pytest.importorskip("torch")
    device, made = Device(), []

    class OnGpu(torch.Tensor):
        is_cuda = True
        device = property(lambda self: torch.device("cuda", 0))

    def tensor(given):
        array = device.array(given)
        kept.append(array)
        return torch.from_numpy(array.layout).as_subclass(OnGpu)

    def empty(n, device, dtype):
        made.append(device)
        return tensor(np.zeros(n, np.uint8))

    kept = []
    monkeypatch.setattr(torch, "empty", empty)
    array = values(np.dtype("f4"), 1000)
    frame = codec("bfp:bits=9").encode(given := tensor(array))
    out = compcoll.decode(frame)
    assert made == [given.device] * 2
    expected = codec("bfp:bits=9").encode(array)
    assert same(frame.detach().as_subclass(torch.Tensor).numpy(), expected)
    assert same(out.detach().as_subclass(torch.Tensor).numpy(), compcoll.decode(expected))
    assert out.dtype == torch.float32


def test_sources_are_one_text():
    for name in MODULES:
        text = nvrtc.source(name)
        assert '#include "' not in text
        assert text.count("struct Job {") == 1


def test_host_time_is_measured_without_a_gpu():
    rows = gpu_host.measure((1, 4), repeats=2)
    assert [row["chunks"] for row in rows] == [1, 4] * 3
    assert all(row["encode us"] > 0 for row in rows)


PROGRAM = """
import ctypes, os, sys
sys.path[:0] = {paths!r}
import standin
driver = standin.load()
lib = driver.lib
import numpy as np
from mpi4py import MPI
import compcoll
from compcoll import codec
comm = compcoll.Comm(MPI.COMM_WORLD, codec="bfp:bits=7", min_nbytes=0)
x, y = np.ones(100000, "f4"), np.zeros(100000, "f4")
comm.Allreduce(x, y), comm.Bcast(x), comm.Iallreduce(x, y).Wait(), comm.Sendrecv(x, 0, 0, y, 0, 0)
compcoll.Comm(MPI.COMM_SELF).Free()
assert "cupy" not in sys.modules

def nothing_begins():
    counts = driver.listed()
    assert not [name for name in counts if name == "cuInit" or "Ctx" in name], counts
    child = os.fork()
    if not child:
        n = ctypes.c_int()
        code = lib.cuInit(0) + lib.cuDeviceGetCount(ctypes.byref(n))
        os._exit(code or n.value != 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def contexts():
    def retained():
        return driver.listed()["cuDevicePrimaryCtxRetain"]
    with standin.installed():
        comm.Allreduce(x, y)
        assert retained() == 0 and lib.standin_live(3) == 0
        for n, index in enumerate((2, 3), 1):
            device = standin.Device(index)
            a, b = device.array(x), device.array(y)
            assert retained() == n - 1
            for _ in range(2):
                comm.Allreduce(a, b)
                codec("bfp").encode(a)
                assert retained() == n
        flags, active = ctypes.c_uint(), ctypes.c_int()
        for index in (0, 1):
            assert lib.cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active)) == 0
            assert not active.value

def empty():
    with standin.installed() as cupy:
        array = cupy.zeros(0, "f4")
        before = driver.listed()
        frame = codec("bfp").encode(array)
        assert codec("bfp").encode(np.zeros(0, "f4")).tolist() == frame.get().tolist()
        begun = [name for name in driver.listed() - before if "Launch" in name or "Ctx" in name]
        assert not begun, begun
        assert compcoll.decode(frame).shape == (0,)

def without_cupy():
    sys.modules["cupy"] = None
    device = standin.Device()
    a, b = device.array(x), device.array(y)
    comm.Allreduce(a, b)
    assert (b.get() == comm.size).all() and not device.launches

def kernels_that_cannot_be_had():
    import warnings
    with standin.installed() as cupy:
        def fail(*args, **more):
            raise RuntimeError("no compiler")
        cupy.RawModule = fail
        device = standin.Device()
        a = device.array(x)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            frame = codec("zfp:rate=8").encode(a)
        said = [str(one.message) for one in found]
        assert any("kernels of zfp" in one and "host codes instead: no compiler" in one for one in said), said
        assert np.array_equal(frame.get(), codec("zfp:rate=8").encode(x)) and not device.launches

def a_frame_on_another_device():
    with standin.installed():
        one, other = standin.Device(1), standin.Device(0)
        frame, out = codec("szp:abs=1e-2").encode(one.array(x)), other.array(y)
        compcoll.decode(frame, out)
        assert (out.get() == compcoll.decode(frame.get())).all()
        assert other.sound()

for name in sys.argv[1:]:
    globals()[name]()
print("all is right", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "what",
    [
        ("nothing_begins", "contexts", "empty", "a_frame_on_another_device"),
        ("without_cupy",),
        ("kernels_that_cannot_be_had",),
    ],
    ids=str,
)
def test_in_a_process_of_its_own(what):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(paths=[str(here), str(here.parents[1])]), *what],
        env={**os.environ, "COMPCOLL_STANDIN_DEVICES": "4"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "all is right\n", done.stderr

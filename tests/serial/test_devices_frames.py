"""Codecs on arrays of a GPU: the frames are those of the host, and each side decodes the other's."""

from dataclasses import replace

import numpy as np
import pytest
from executor import Executor, Memory, library_path
from floats import same
from test_devices_code import place

import compcoll
from benchmarks.kernel_jobs import Batch
from compcoll import codec, inspect
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import dtypes
from compcoll.devices import kernels
from compcoll.frame import HEADER_NBYTES, pack_header

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
DTYPES = sorted(dtypes.CODES, key=dtypes.code_of)
SPECS = [
    "zfp:rate=8",
    "zfp:rate=11.5",
    "int8",
    "bfp:bits=6",
    "int4:block=32",
    "fp8",
    "szp:abs=1e-3",
    "mpc",
    "mpc:dim=3",
    "mpc:dim=32",
]
SPECS += ["lossless", "raw", "float"]


def values(dtype, n):
    return (50 * np.sin(np.arange(n) / 30)).astype(dtype)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_frames_are_those_of_the_host(device, spec, dtype):
    for n in (0, 1, 5, 257, 1000, 5003):
        array = values(dtype, n)
        ours, host = codec(spec).encode(device.array(array)), codec(spec).encode(array)
        assert same(ours, host)
        assert same(compcoll.decode(ours), compcoll.decode(host))
        assert same(compcoll.decode(host, device.array(np.zeros(n, dtype))), compcoll.decode(host))
        assert same(compcoll.decode(ours, np.zeros(n, dtype)), compcoll.decode(host))
        total = np.ones(n, accumulator_dtype(dtype))
        assert same(decode_add(ours, device.array(total)), decode_add(host, total.copy()))


def test_frames_that_carry_an_error_and_have_no_checksum(device):
    array = values(np.float32, 300)
    options = {"carried": 0.25, "checksum": False}
    ours = codec("zfp:rate=8").encode(device.array(array), **options)
    assert same(ours, codec("zfp:rate=8").encode(array, **options))
    assert inspect(np.asarray(ours)).checksum is None


@pytest.mark.parametrize("shift", [0, 1, 8])
def test_frames_at_any_address(device, shift):
    array = values(np.float32, 300)
    host = codec("int8").encode(array)
    room = device.empty(array.nbytes + 400)[shift:]
    assert same(codec("int8").encode(device.array(array), room), host)
    assert same(compcoll.decode(room), compcoll.decode(host))


def test_what_does_not_fit_is_refused(device):
    array = device.array(values(np.float32, 300))
    frame = codec("zfp:rate=8").encode(array)
    with pytest.raises(ValueError, match="out has 1200 bytes"):
        codec("zfp:rate=8").encode(array, device.empty(1200))
    with pytest.raises(ValueError, match="out has 299 elements"):
        compcoll.decode(frame, array[:299])
    with pytest.raises(TypeError, match="float64"):
        compcoll.decode(frame, device.array(values(np.float64, 300)))
    with pytest.raises(compcoll.FrameError, match="truncated"):
        compcoll.decode(frame[: frame.size - 1])


def test_damage_is_noticed(device):
    frame = codec("zfp:rate=8").encode(values(np.float32, 300))
    frame[200] ^= 1
    with pytest.raises(compcoll.FrameError, match="damaged"):
        compcoll.decode(device.array(frame))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "int8", "int4:block=32", "fp8", "bfp", "szp:abs=1", "mpc"])
def test_sizes_that_no_encoder_writes_are_the_host_s(device, spec):
    """Kernels rely on them."""
    array = values(np.float32, 2049)
    frame = codec(spec).encode(array)
    info = inspect(frame)
    assert info.codec == spec.partition(":")[0]
    kept = 64 if info.codec in ("szp", "mpc") else info.payload_nbytes - 4
    sizes = (kept, info.params), (info.payload_nbytes, (info.params[0] + 1000, 7))
    for size, params in sizes[: 1 if info.codec == "szp" else 2]:  # which kernels do not ask
        changed = frame[: HEADER_NBYTES + size].copy()
        pack_header(changed, replace(info, params=params, payload_nbytes=size))
        device.reset()
        with pytest.raises(compcoll.FrameError, match="payload"):
            compcoll.decode(changed, device.array(np.zeros_like(array)))
        assert not device.launches


@pytest.mark.parametrize("dtype", [np.dtype("f2"), dtypes.BFLOAT16], ids=str)
def test_16_bit_floats_in_accumulators(dtype):
    """Every one of them widened, and what lies between and beside them rounded."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = halves.astype("f4")
    assert same(converted(halves, np.dtype("f4")), wide)
    steps = [-0x1001, -0x1000, -0xFFF, -1, 0, 1, 0xFFF, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xDEAD]
    near = wide.view(np.uint32).astype(np.int64)[:, None] + steps
    floats = (near.ravel() & 0xFFFFFFFF).astype(np.uint32).view("f4")
    nan = np.isnan(floats)
    found = converted(floats, dtype)
    with np.errstate(over="ignore"):
        assert same(found[~nan], floats[~nan].astype(dtype))
    assert np.isnan(found[nan].astype("f4")).all()
    assert same(np.signbit(found), np.signbit(floats))


def converted(array, dtype):
    """The same at an aligned address and behind one."""
    device, found = Executor(LIBRARY), []
    (kernel,) = kernels.converters(array.dtype, dtype)
    for first in (0, 1):
        source = place(array[first:], first * array.itemsize)
        out = Memory(source.data.size // array.itemsize * dtype.itemsize, first * dtype.itemsize)
        batch = Batch(device, 1)
        batch.jobs["src"], batch.jobs["dst"], batch.jobs["n"] = (
            source.address,
            out.address,
            array.size - first,
        )
        batch.upload()
        batch.launch(kernel)
        batch.finish()
        assert out.untouched()
        found.append(out.data.view(dtype))
    assert same(found[0][1:], found[1])
    return found[0]

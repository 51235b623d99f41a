"""Codecs on arrays of a device: the frames are those of the host, and each side decodes the other's.

The device is the executor of the tests.
"""

import numpy as np
import pytest
from executor import Device, library_path

import compcoll
from compcoll import codec, inspect
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import dtypes
from compcoll.devices import kernels, operations

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


@pytest.fixture(scope="module")
def device():
    return Device(LIBRARY)


def values(dtype, n):
    return (50 * np.sin(np.arange(n) / 30)).astype(dtype)


def same(a, b):
    return np.array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))


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
    assert device.open == 0


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
    assert device.open == 0


def test_damage_is_noticed(device):
    frame = codec("zfp:rate=8").encode(values(np.float32, 300))
    frame[200] ^= 1
    with pytest.raises(compcoll.FrameError, match="damaged"):
        compcoll.decode(device.array(frame))
    assert device.open == 0


def test_the_device_of_the_tests_shows_a_missing_wait(device):
    array, out = device.array(np.zeros(4, np.uint8)), np.zeros(4, np.uint8)
    device.fill_later(array, np.arange(4, dtype=np.uint8))
    with device.queue(after=[]) as queue:
        queue.to_host(out, array.address)
    assert out.tolist() == [0, 0, 0, 0]
    with device.queue() as queue:
        queue.to_host(out, array.address)
        assert out.tolist() == [0, 0, 0, 0]
    assert out.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [np.dtype("f2"), dtypes.BFLOAT16], ids=str)
def test_16_bit_floats_in_accumulators(device, dtype):
    """Every one of them widened, and what lies between and beside them rounded."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = halves.astype("f4")
    assert same(converted(device, halves, np.dtype("f4")), wide)
    steps = [-0x1001, -0x1000, -0xFFF, -1, 0, 1, 0xFFF, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xDEAD]
    near = wide.view(np.uint32).astype(np.int64)[:, None] + steps
    floats = (near.ravel() & 0xFFFFFFFF).astype(np.uint32).view("f4")
    nan = np.isnan(floats)
    found = converted(device, floats, dtype)
    with np.errstate(over="ignore"):
        assert same(found[~nan], floats[~nan].astype(dtype))
    assert np.isnan(found[nan].astype("f4")).all()
    assert same(np.signbit(found), np.signbit(floats))


def converted(device, array, dtype):
    """The same at an aligned address and behind one."""
    found = []
    for first in (0, 1):
        source = device.array(array)[first:]
        out = device.empty(array.size * dtype.itemsize).view(dtype)[first:]
        with device.queue() as queue:
            kernel = kernels.converter(array.dtype, dtype)
            operations.convert(queue, kernel, [out.size], [source.address], [out.address])
        assert out.owner.untouched()
        found.append(np.asarray(out))
    assert same(found[0][1:], found[1])
    return found[0]

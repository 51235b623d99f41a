"""zfp in 2 and 3 dimensions on a device, run by the executor: bytes and values are those of the CPU."""

import numpy as np
import pytest
from executor import Executor, library_path
from floats import same
from standin import Device, installed
from test_devices_code import decode, encode

import compcoll
from compcoll import codec, inspect
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
FLOATS = sorted(dtypes.FLOATS, key=dtypes.code_of)
SHAPES = [(1, 1), (4, 4), (5, 7), (9, 130), (1, 1, 1), (4, 4, 4), (3, 5, 6), (2, 9, 41)]
RATES = [0.25, 1, 3, 5.5, 8, 11.3, 16, 32]


@pytest.fixture(scope="module")
def device():
    return Executor(LIBRARY)


def field(dtype, shape, seed=0):
    """Smooth and noisy parts, and a corner of zeros."""
    rng = np.random.default_rng(seed)
    real = dtypes.real_dtype(dtype)
    full = (*shape[:-1], shape[-1] * (2 if dtype.kind == "c" else 1))
    x = np.sin(sum(np.indices(full)) / 5) + rng.standard_normal(full) * 2.0 ** rng.integers(-12, 2, full)
    x[tuple(slice(0, 4) for _ in shape)] *= len(shape) == 2
    return np.ascontiguousarray(x.astype(real)).view(dtype).reshape(shape)


def check(device, name, array, shift=0):
    frames, _ = encode(device, name, [array], shift)
    expected = codec(name).encode(array)
    if inspect(expected).codec != "zfp":
        assert isinstance(frames[0], int)
        return
    assert same(frames[0], expected), (name, array.dtype, array.shape)
    decoded, problems = decode(device, [expected], shift=shift)
    assert problems == [None]
    assert same(decoded[0], compcoll.decode(expected).reshape(-1))
    start = np.linspace(-3, 5, array.size).astype(accumulator_dtype(array.dtype))
    sums, _ = decode(device, [expected], [start], shift)
    assert same(sums[0], decode_add(expected, start.reshape(array.shape).copy()).reshape(-1))


@pytest.mark.parametrize("rate", [*RATES, 64])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bytes_are_those_of_the_cpu(device, rate, dtype):
    if rate > 32 and dtypes.real_dtype(dtype).itemsize != 8:
        pytest.skip("a rate of float64")
    for shape in SHAPES:
        check(device, f"zfp:rate={rate}", field(dtype, shape))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_any_address(device, dtype):
    dtype = np.dtype(dtype)
    for shape in ((8, 12), (6, 5, 9)):
        check(device, "zfp:rate=7", field(dtype, shape), shift=dtype.itemsize)


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_random_bit_patterns(device, ndim, dtype):
    """Values of every exponent side by side, subnormals too."""
    rng = np.random.default_rng(ndim)
    real = np.dtype(dtype)
    x = rng.integers(0, 2**64, 4096, np.uint64, endpoint=False).astype(f"u{real.itemsize}").view(real)
    x = np.where(np.isfinite(x), x, real.type(1)).reshape((64, 64) if ndim == 2 else (16, 16, 16))
    x.reshape(-1)[:: 4 if ndim == 2 else 2] = 1e-20  # no block is too small
    check(device, "zfp:rate=9", x)
    check(device, "zfp:rate=32", np.clip(x, -1e30, 1e30))


def test_values_that_are_not_finite_are_refused(device):
    array = field(np.dtype("f4"), (9, 9, 9))
    array[5, 6, 7] = np.nan
    frames, _ = encode(device, "zfp:rate=8", [array])
    assert frames[0] < 0


@pytest.mark.parametrize("shape", [(15, 22), (8, 8, 9)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_any_payload_is_decoded_as_on_the_cpu(device, shape, dtype):
    """`encode` and `decode` of the tests look for what is written outside."""
    rng = np.random.default_rng(1)
    for rate in (3, 8, 11.3):
        frame = codec(f"zfp:rate={rate}").encode(field(np.dtype(dtype), shape, 1), checksum=False)
        assert inspect(frame).codec == "zfp"
        payload = frame[HEADER_NBYTES:]
        payload[:] = rng.integers(0, 256, payload.size, np.uint8)
        decoded, _ = decode(device, [frame])
        assert same(decoded[0], compcoll.decode(frame).reshape(-1))


def test_frames_take_their_dimensions_from_the_array():
    device, array = Device(), field(np.dtype("f4"), (6, 10, 14))
    host = codec("zfp:rate=8").encode(array)
    assert inspect(host).shape == array.shape
    with installed():
        assert same(codec("zfp:rate=8").encode(device.array(array)).get(), host)
        flat = device.array(np.zeros(array.size, "f4"))
        assert same(compcoll.decode(host, flat).get(), compcoll.decode(host).reshape(-1))
    assert device.sound()

"""int8, int4 and fp8: every block has a scale of its own, and finite values stay finite."""

import ml_dtypes
import numpy as np
import pytest
from floats import FLOATS, arrays, bits, encode, finite, reals, top
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_checks import (
    agreed,
    check_capacity,
    check_refused,
    check_wave,
    field,
    roundtrip,
    status_of,
)

import compcoll
from compcoll.codecs.specs import codec as make
from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES, inspect

NAMES = ["int8", "int4", "fp8"]
LIMIT = {"int8": 127, "int4": 7, "fp8": 448}
specs = st.builds(
    "{}:block={},rounding={},seed={}".format,
    st.sampled_from(NAMES),
    st.sampled_from([32, 64, 128, 256]),
    st.sampled_from(["nearest", "stochastic"]),
    st.integers(0, 2**64 - 1),
)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def payload_nbytes(codec, n, dtype):
    count = n * (2 if dtype.kind == "c" else 1)
    scale = 8 if dtypes.real_dtype(dtype).itemsize == 8 else 4
    codes = -(-count // 2) if codec.name == "int4" else count
    return -(-count // codec.block) * scale + codes


@settings(max_examples=150, deadline=None)
@given(specs, arrays(finite_only=True))
def test_bound_and_size(spec, array):
    codec = make(spec)
    need = payload_nbytes(codec, array.size, array.dtype)
    payload, decoded, bound = roundtrip(codec, array)
    if need > array.nbytes:
        assert payload == _cpu.TOO_LARGE
        return
    assert payload.size == need
    assert finite(decoded).all()
    if array.size and reals(array).any():
        share = (2 if codec.rounding == "stochastic" else 1) * (
            1 / 28 if codec.name == "fp8" else 0.5 / LIMIT[codec.name]
        )
        assert bound <= top(array) * (share * 1.001 + 2.0**-7.9) + 2.0**-21
    largest = np.abs(reals(array).astype(np.longdouble)).max(initial=0)
    assert np.abs(reals(decoded).astype(np.longdouble)).max(initial=0) <= largest


@settings(max_examples=60, deadline=None)
@given(specs, arrays())
def test_non_finite_arrays_are_left_alone(spec, array):
    codec = make(spec)
    if finite(array).all() or payload_nbytes(codec, array.size, array.dtype) > array.nbytes:
        return
    assert agreed(encode, codec, array)[0] == _cpu.NONFINITE
    frame = codec.encode(array)
    assert inspect(frame).fallback
    assert bits(compcoll.decode(frame)).tobytes() == bits(array).tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes(name, dtype):
    for n in (0, 1, 31, 63, 64, 65, 127, 130, 20_003):
        check_wave(make(name), dtype, n)


def quantise(name, v):
    """Decoded codes of scaled values, as NumPy and ml_dtypes round them."""
    if name == "fp8":
        return v.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.rint(v)


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.kind != "c"], ids=str)
def test_nearest_against_numpy_and_ml_dtypes(name, dtype):
    rng = np.random.default_rng(2)
    array = (rng.standard_normal(64 * 500) * 10.0 ** rng.uniform(-4, 3, 64 * 500)).astype(dtype)
    payload, decoded, _ = roundtrip(make(name), array)
    block = array.astype(np.float64).reshape(-1, 64)
    scale = np.abs(block).max(axis=1, keepdims=True)
    expected = quantise(name, block * (LIMIT[name] / scale)) * (scale / LIMIT[name])
    if dtype.itemsize == 2:
        expected = expected.astype(np.float32)
    expected = np.clip(expected, -scale, scale).astype(dtype)
    assert np.array_equal(decoded, expected.reshape(-1))
    stored = payload[:4000].view("f8") if dtype.itemsize == 8 else payload[:2000].view("f4")
    assert np.array_equal(stored, scale.reshape(-1))


def test_fp8_hits_every_code_and_every_tie():
    codes = np.arange(256, dtype=np.uint8)
    values = codes[(codes & 127) != 127].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    ordered = np.unique(values)
    middles = (ordered[1:] + ordered[:-1]) / 2
    near = np.concatenate([middles, np.nextafter(middles, 9e9), np.nextafter(middles, -9e9), values])
    near = np.resize(near.astype(np.float32), (-(-near.size // 63), 63))
    array = np.insert(near, 0, 448, axis=1).reshape(-1)
    payload, decoded, _ = roundtrip(make("fp8"), array)
    assert np.array_equal(decoded, quantise("fp8", array.astype(np.float64)))
    assert not np.isin(payload[-array.size :], (0x7F, 0xFF)).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extreme_blocks(name, dtype):
    real = dtypes.real_dtype(dtype)
    limits = ml_dtypes.finfo(real)
    tiny = float(limits.smallest_subnormal)
    for value in (float(limits.max), float(limits.tiny), 40 * tiny, tiny, 0.0):
        array = (np.linspace(-1, 1, 256) * value).astype(real)
        array[3], array[70], array[131], array[199] = value, -value, value, -value
        array = array.view(dtype)
        _, decoded, bound = roundtrip(make(name), array)
        assert finite(decoded).all()
        assert reals(decoded)[3] == reals(array)[3]
        assert reals(decoded)[70] == reals(array)[70]
        if value == 0:
            assert bound == 0
        if value == tiny:
            assert np.array_equal(decoded, array)


def test_small_blocks_beside_huge_ones_keep_their_own_scale(name):
    array = np.tile(np.linspace(-1, 1, 64), 4).reshape(4, 64) * [[1e38], [1e-38], [1e-44], [1]]
    array = array.astype(np.float32)
    _, decoded, _ = roundtrip(make(name), array.reshape(-1))
    error = np.abs(array.astype(float) - decoded.reshape(4, 64)).max(axis=1)
    assert (error <= np.abs(array).max(axis=1) * 0.0725 + 1e-45).all()
    assert error[1] < 1e-39


def test_stochastic_rounding_is_unbiased(name):
    # Blocks are equal; only their positions differ.
    array = np.tile(np.linspace(-0.93, 0.97, 32, dtype=np.float32), (20_000, 1))
    array[:, 0] = 1
    _, decoded, bound = roundtrip(make(f"{name}:rounding=stochastic,block=32"), array.reshape(-1))
    error = decoded.reshape(-1, 32)[:, 1:].astype(float) - array[:, 1:]
    deviation = error.std(axis=0)
    assert (abs(error.mean(axis=0)) <= 5 * deviation / np.sqrt(len(error)) + 1e-7).all()
    assert 0 < deviation.max() <= bound * 0.51
    for shift in (1, 31, 32):
        flat = (error / deviation).reshape(-1)
        assert abs(np.mean(flat[shift:] * flat[:-shift])) <= 5 / np.sqrt(flat.size)


def test_stochastic_rounding_depends_on_seed_and_scale_alone(name):
    array = np.random.default_rng(1).standard_normal(6400).astype(np.float32)
    spec = f"{name}:rounding=stochastic,seed="
    one = encode(make(spec + "1"), array)[0]
    assert np.array_equal(one, encode(make(spec + "1"), array.copy())[0])
    assert not np.array_equal(one, encode(make(spec + "2"), array)[0])
    assert not np.array_equal(one, encode(make(spec + str(1 + 2**40)), array)[0])
    scaled = encode(make(spec + "1"), array * 4)[0]
    assert not np.array_equal(one[400:], scaled[400:])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_bytes_are_safe(name, dtype):
    rng = np.random.default_rng(7)
    codec, n = make(name), 200
    params = codec.params(dtype, (n,))
    need = payload_nbytes(codec, n, dtype)
    for trial in range(60):
        payload = np.frombuffer(rng.bytes(need), np.uint8).copy()
        if trial % 2:
            payload[: need // 4].view("u1")[:] = 1  # sound scales
        assert status_of(codec, params, payload, dtype, n) in (0, _cpu.BAD_STREAM)
    for length in {0, 1, need // 2, need - 1, need + 1}:
        assert status_of(codec, params, np.zeros(length, np.uint8), dtype, n) == _cpu.BAD_STREAM
    payload = np.zeros(need, np.uint8)
    for word in (0, 1, 16, 48, 512, 64 | 1 << 33, 2**64 - 1):
        assert status_of(codec, (word, 0), payload, dtype, n) == _cpu.BAD_STREAM
    for scale in (np.nan, np.inf, -1.0):
        payload[:8] = np.frombuffer(
            np.array([scale] * 2, "f8" if dtype in (np.float64, np.complex128) else "f4"), np.uint8
        )[:8]
        assert status_of(codec, params, payload, dtype, n) == _cpu.BAD_STREAM


def test_damaged_frames_raise(level, name):
    frame = make(name).encode(np.sin(np.arange(1000, dtype=np.float32)), checksum=False)
    frame[HEADER_NBYTES : HEADER_NBYTES + 4] = 255
    check_refused(frame)


def test_encoder_keeps_to_its_capacity(name):
    check_capacity(make(name), np.ones(1000, np.float32))


def test_options(name):
    for options, message in (
        ("block=16", "block=16 is not one of 32, 64, 128, 256"),
        ("block=64.0", r"block=64\.0 is not one of"),
        ("rounding=up", "rounding='up' is not one of nearest, stochastic"),
        ("seed=-1", "seed=-1 is not an integer from 0"),
        ("seed=1.5", r"seed=1\.5 is not"),
    ):
        with pytest.raises(ValueError, match=message):
            make(f"{name}:{options}")
    for spec in (name, f"{name}:block=128,rounding=stochastic,seed=7"):
        assert make(spec).spec == spec


@pytest.mark.parametrize("data", ["vorticity.512_512", "transformer_gradients.f32"])
def test_fields(name, data):
    array = field(data)
    frame = make(name).encode(array)
    assert inspect(frame).codec == name
    assert np.abs(array.astype(float) - compcoll.decode(frame)).max() <= inspect(frame).bound

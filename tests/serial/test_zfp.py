"""``zfp``: the zfp library's own bytes, in both directions, and an error bound that holds."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import zfpy
from hypothesis import given, settings
from hypothesis import strategies as st

import compcoll
from compcoll import _cpu, dtypes
from compcoll.codecs.zfp import ZFP
from compcoll.frame import inspect

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CLAMP = {np.dtype(np.float32): 9, np.dtype(np.float64): 12}
WORD = {np.dtype(np.float32): 32, np.dtype(np.float64): 64}
SLACK = 64


def encode(a, rate):
    """(payload or status, bound, header words), with the bytes behind the payload checked."""
    codec = ZFP(rate)
    bits = codec.block_bits(a.dtype, a.ndim)
    real = a.view(dtypes.real_dtype(a.dtype)) if a.dtype.kind == "c" else a
    capacity = (int(np.prod([-(-n // 4) for n in real.shape])) * bits + 63) // 64 * 8
    dst = np.full(capacity + SLACK, 0xA5, np.uint8)
    n, bound, params = codec.encode_payload(a, dst[:capacity])
    assert (dst[capacity:] == 0xA5).all()
    if n < 0:
        return n, bound, params
    assert n == capacity
    return dst[:n], bound, params


def decode(payload, dtype, shape, params):
    """Decoded array or status, with the bytes behind the array checked."""
    size = int(np.prod(shape))
    dst = np.full(size * dtype.itemsize + SLACK, 0xA5, np.uint8)
    out = dst[: size * dtype.itemsize]
    status = _cpu.decode(ZFP._index, dtypes.code_of(dtype), shape, params, payload, out)
    assert (dst[size * dtype.itemsize :] == 0xA5).all()
    return out.view(dtype).reshape(shape) if status == 0 else status


def reference(a, rate):
    """The zfp library's stream, and what it decodes to."""
    stream = zfpy.compress_numpy(a, rate=rate, write_header=False)
    return stream, zfpy._decompress(stream, zfpy.dtype_to_ztype(a.dtype), a.shape, out=None, rate=rate)


def check(a, rate):
    payload, bound, params = encode(a, rate)
    stream, values = reference(a, rate)
    assert payload.tobytes() == stream, (a.shape, rate)
    out = decode(payload, a.dtype, a.shape, params)
    assert out.tobytes() == values.tobytes(), (a.shape, rate)
    error = np.abs(out.astype(np.longdouble) - a.astype(np.longdouble)).max()
    assert error <= bound, (a.shape, rate)
    assert bound / 12 <= np.abs(a).max()


def field(rng, shape, dtype):
    """Smooth, noisy, sparse, or of wild exponents."""
    kind = rng.integers(5)
    x = rng.standard_normal(shape)
    if kind == 1:
        x = np.cumsum(x, axis=-1)
    elif kind == 2:
        x = x * 2.0 ** rng.integers(-60, 60, shape)
    elif kind == 3:
        x = np.where(rng.random(shape) < 0.2, np.rint(3 * x), 0.0) * 2.0 ** rng.integers(-60, 60)
    elif kind == 4:
        x = np.sin(np.arange(x.size).reshape(shape) * 0.03) + 1e-3 * x
    return np.ascontiguousarray(x.astype(dtype))


def rates(rng, dtype, ndim):
    low, high = CLAMP[np.dtype(dtype)] / 4**ndim, WORD[np.dtype(dtype)]
    return [
        low,
        low + rng.random(),
        float(rng.uniform(low, high)),
        *rng.choice([8, 12, 16, 24, high - 1, high], 2),
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
class TestAgainstLibrary:
    def test_every_small_size(self, level, dtype):
        rng = np.random.default_rng(1)
        for n in range(1, 131):
            for rate in rates(rng, dtype, 1):
                check(field(rng, n, dtype), rate)

    @pytest.mark.parametrize("rate", [3, 4, 6.3, 8, 11.25, 16, 20, 24, 31.9, 32])
    def test_large(self, level, dtype, rate):
        rng = np.random.default_rng(2)
        for n in (1023, 1024, 4097, 100_003):
            check(field(rng, n, dtype), max(rate, CLAMP[np.dtype(dtype)] / 4))

    @pytest.mark.parametrize("ndim", [2, 3])
    def test_shapes(self, level, dtype, ndim):
        rng = np.random.default_rng(3)
        longest = {2: 90, 3: 24}[ndim]
        for _ in range(150):
            shape = tuple(int(n) for n in rng.integers(1, longest, ndim))
            for rate in rates(rng, dtype, ndim)[:3]:
                check(field(rng, shape, dtype), rate)

    @pytest.mark.parametrize("shape", [(4, 400), (130, 129), (1, 1, 999), (7, 9, 300), (64, 64, 64)])
    def test_rows_of_whole_blocks(self, level, dtype, shape):
        rng = np.random.default_rng(4)
        for rate in rates(rng, dtype, len(shape)):
            check(field(rng, shape, dtype), rate)

    @pytest.mark.parametrize("shape", [(36, 1000), (8, 20, 164), (12, 12, 200)])
    @pytest.mark.parametrize("rate", [1, 1.5, 2, 3, 4.5, 6, 8, 10])
    def test_low_rates_of_smooth_grids(self, level, dtype, shape, rate):
        """Blocks with few planes and few coefficients, beside some that have more, and some of zeros."""
        rng = np.random.default_rng(6)
        x = sum(np.sin(i / 9) for i in np.indices(shape)) + 1e-7 * rng.standard_normal(shape)
        x[..., 400:500] += rng.standard_normal(x[..., 400:500].shape)
        x[..., 100:132] = 0
        for scale in (1, np.finfo(dtype).tiny * 2.0**70):
            check((x * scale).astype(dtype), rate)

    def test_zeros(self, level, dtype):
        a = np.zeros(100, dtype)
        a[1::2] = -0.0
        payload, bound, _ = encode(a, 8)
        assert not payload.any()
        assert bound == 0
        check(a, 8)

    def test_no_elements(self, level, dtype):
        for shape in ((0,), (0, 5), (3, 0, 2)):
            payload, bound, params = encode(np.empty(shape, dtype), 8)
            assert payload.size == 0
            assert bound == 0
            assert decode(payload, np.dtype(dtype), shape, params).shape == shape

    def test_wild_bits(self, level, dtype):
        """Foreign streams of any bits give the library's values, where its own arithmetic is defined."""
        rng = np.random.default_rng(5)
        dtype = np.dtype(dtype)
        for shape, rate, ones in product(
            ((123,), (33, 18), (9, 10, 11)), (4, 8, 21), ("few", "half", "many")
        ):
            bits = ZFP(rate).block_bits(dtype, len(shape))
            nbytes = (int(np.prod([-(-n // 4) for n in shape])) * bits + 63) // 64 * 8
            payload, more = rng.integers(0, 256, (2, nbytes), np.uint8)
            if ones != "half":
                payload = payload & more if ones == "few" else payload | more
            with np.errstate(over="ignore"):
                theirs = zfpy._decompress(
                    payload.tobytes(), zfpy.dtype_to_ztype(dtype), shape, out=None, rate=rate
                )
            ours = decode(payload, dtype, shape, (bits, 0))
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("dtype", "tiny", "top"), [(np.float32, 2.0**-98, 125), (np.float64, 2.0**-962, 1021)]
)
@pytest.mark.parametrize("ndim", [1, 2, 3])
class TestLimits:
    def test_nonfinite(self, level, dtype, tiny, top, ndim):
        for value in (np.nan, np.inf, -np.inf):
            for place in (0, 17, 342):
                a = np.ones(343, dtype)
                a[place] = value
                assert encode(a.reshape({1: (343,), 2: (7, 49), 3: (7, 7, 7)}[ndim]), 8)[0] == _cpu.NONFINITE

    def test_smallest(self, level, dtype, tiny, top, ndim):
        a = np.zeros((9,) * ndim, dtype)
        a.flat[-1] = tiny
        check(a, 16)
        a.flat[-1] = np.nextafter(dtype(tiny), dtype(0))
        assert encode(a, 16)[0] == _cpu.UNREPRESENTABLE
        a.flat[-1] = np.finfo(dtype).smallest_subnormal
        assert encode(a, 16)[0] == _cpu.UNREPRESENTABLE
        a.flat[0] = 1
        assert encode(a, 16)[0] == _cpu.UNREPRESENTABLE

    def test_largest(self, level, dtype, tiny, top, ndim):
        a = np.ones((9,) * ndim, dtype)
        a.flat[-1] = -np.nextafter(dtype(2.0**top), dtype(0))
        check(a, 16)
        a.flat[-1] = 2.0**top
        assert encode(a, 16)[0] == _cpu.UNREPRESENTABLE

    def test_never_nonfinite(self, level, dtype, tiny, top, ndim):
        rng = np.random.default_rng(6)
        for rate in (3, 3.5, 4, 5, 8):
            a = (rng.uniform(-1, 1, (16,) * ndim) * 2.0**top).astype(dtype)
            check(a, rate)
            payload, _, params = encode(a, rate)
            assert np.isfinite(decode(payload, a.dtype, a.shape, params)).all()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bound(data):
    """No value is off by more than the bound, whatever the exponents, the rate and the shape."""
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.float16, BFLOAT16]).map(np.dtype))
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)))
    word = CLAMP.get(dtype, 9)
    rate = data.draw(st.floats(word / 4**ndim, WORD.get(dtype, 32)))
    low, high = data.draw(
        st.tuples(*2 * [st.integers(-24 if dtype == np.float16 else -80, 15 if dtype == np.float16 else 80)])
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    exponents = rng.integers(min(low, high), max(low, high) + 1, shape)
    a = (rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1, shape) * 2.0**exponents).astype(dtype)
    payload, bound, params = encode(a, rate)
    out = decode(payload, dtype, shape, params)
    assert np.isfinite(out.astype(np.float64)).all()
    assert np.abs(out.astype(np.longdouble) - a.astype(np.longdouble)).max() <= bound


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("rate", [3, 4, 5.5, 8, 16])
def test_bound_of_adversaries(level, ndim, rate):
    """Blocks of +-1, and of the patterns that the inverse transform amplifies most."""
    rng = np.random.default_rng(7)
    blocks = rng.choice([-1.0, 0.0, 1.0, 1 - 2.0**-24, 2.0**-12], (4**ndim * 3000,)).astype(np.float32)
    shape = {1: (-1,), 2: (4, -1), 3: (4, 4, -1)}[ndim]
    check(blocks.reshape(shape), rate)
    near = (1 + rng.uniform(-1, 1, blocks.size) * 2.0 ** rng.integers(-23, 0, blocks.size)).astype(np.float32)
    check(near.reshape(shape), rate)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=str)
class TestSixteenBits:
    @pytest.mark.parametrize("shape", [(1,), (63,), (1001,), (13, 130), (5, 6, 97)])
    def test_is_the_float32_stream(self, level, dtype, shape):
        rng = np.random.default_rng(8)
        for rate in (3, 6, 8, 15.5):
            a = (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)).astype(dtype)
            a.flat[::7] = (rng.standard_normal(a.flat[::7].shape) * 2.0**-18).astype(dtype)
            wide = a.astype(np.float32)
            payload, bound, params = encode(a, rate)
            stream, values = reference(wide, rate)
            assert payload.tobytes() == stream
            out = decode(payload, a.dtype, shape, params)
            expected = np.clip(values, -float(ml_dtypes.finfo(dtype).max), float(ml_dtypes.finfo(dtype).max))
            assert out.tobytes() == expected.astype(dtype).tobytes()
            assert np.abs(out.astype(np.float64) - wide.astype(np.float64)).max() <= bound

    def test_every_pattern_widens_exactly(self, level, dtype):
        a = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        wide = a.astype(np.float32)
        a = a[np.isfinite(wide) & ((np.abs(wide) >= 2.0**-98) | (wide == 0)) & (np.abs(wide) < 2.0**125)]
        assert encode(a, 32)[0].tobytes() == reference(a.astype(np.float32), 32)[0]

    def test_saturates(self, level, dtype):
        largest = float(ml_dtypes.finfo(dtype).max)
        if dtype == np.float16:
            wide = np.array([1e5, -1e5, 7e4, 6.6e4], np.float32)
            stream = zfpy.compress_numpy(wide, rate=32, write_header=False)
        else:  # 1.75 * 2^127 with the exponent one higher
            wide = np.array([0.875, -0.875, 0.875, -0.875], np.float32) * np.float32(2.0**127)
            stream = bytearray(zfpy.compress_numpy(wide, rate=32, write_header=False))
            assert (stream[0] | stream[1] << 8) & 0x1FF == 2 * 254 + 1
            stream[0] += 2
            stream = bytes(stream)
        out = decode(np.frombuffer(stream, np.uint8), np.dtype(dtype), (4,), (128, 0)).astype(np.float64)
        assert np.isfinite(out).all()
        assert (np.abs(out) == largest).all() == (dtype == np.float16)

    def test_not_finite(self, level, dtype):
        for value in (np.nan, np.inf, -np.inf):
            a = np.ones(77, dtype)
            a[50] = value
            assert encode(a, 8)[0] == _cpu.NONFINITE


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_is_real_with_the_last_axis_doubled(level, dtype):
    rng = np.random.default_rng(9)
    for shape in ((3,), (701,), (5, 77), (3, 5, 21)):
        a = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        real = a.view(dtypes.real_dtype(a.dtype))
        payload, bound, params = encode(a, 10)
        stream, values = reference(real, 10)
        assert payload.tobytes() == stream
        out = decode(payload, a.dtype, shape, params)
        assert out.tobytes() == values.tobytes()
        assert np.abs(values.astype(np.float64) - real).max() <= bound


@pytest.mark.parametrize(
    "dtype", [np.float16, BFLOAT16, np.float32, np.float64, np.complex64, np.complex128], ids=str
)
def test_decode_add(level, dtype):
    rng = np.random.default_rng(10)
    dtype = np.dtype(dtype)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    for shape in ((1,), (130,), (5003,), (30, 77), (9, 10, 111)):
        a = rng.standard_normal(shape).astype(dtype)
        payload, _, params = encode(a, 9)
        start = rng.standard_normal(shape).astype(wide)
        dst = start.copy()
        args = ZFP._index, dtypes.code_of(dtype), shape, params, payload, dst.reshape(-1).view(np.uint8)
        assert _cpu.decode_add(*args, dtypes.code_of(wide)) == 0
        expected = start + decode(payload, dtype, shape, params).astype(wide)
        assert dst.tobytes() == expected.tobytes()


class TestFrames:
    @pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64, np.complex64], ids=str)
    def test_any_bits_survive(self, level, dtype):
        """Random patterns hold NaN: the frame is lossless, and says so."""
        dtype = np.dtype(dtype)
        raw = np.random.default_rng(11).integers(0, 256, 4096 * dtype.itemsize, np.uint8)
        frame = ZFP(8).encode(raw.view(dtype))
        assert inspect(frame).fallback
        assert inspect(frame).bound == 0
        assert ZFP(8).decode(frame).tobytes() == raw.tobytes()

    def test_lossy(self, level):
        a = np.random.default_rng(12).standard_normal((20, 30, 40)).astype(np.float32)
        frame = ZFP(8).encode(a)
        info = inspect(frame)
        assert (info.codec, info.params, info.fallback) == ("zfp", (512, 0), False)
        assert info.payload_nbytes == 5 * 8 * 10 * 64
        assert 0 < np.abs(ZFP().decode(frame) - a).max() <= info.bound

    def test_scalar(self):
        frame = ZFP(8).encode(np.float32(3.25))
        assert ZFP(8).decode(frame).shape == ()
        assert abs(ZFP(8).decode(frame) - 3.25) <= inspect(frame).bound

    def test_padding_never_expands(self):
        a = np.ones((100, 1, 1), np.float32)
        frame = ZFP(16).encode(a)
        assert inspect(frame).codec != "zfp"
        assert ZFP(16).decode(frame).tobytes() == a.tobytes()

    def test_integers_go_lossless(self):
        a = np.arange(100)
        assert inspect(ZFP(8).encode(a)).bound == 0
        assert (ZFP(8).decode(ZFP(8).encode(a)) == a).all()


class TestDamage:
    def test_wrong_size(self, level):
        a = np.random.default_rng(13).standard_normal(1000).astype(np.float32)
        payload, _, params = encode(a, 7)
        longer = np.append(payload, np.zeros(8, np.uint8))
        for bad in (payload[:0], payload[:1], payload[:-1], payload[:-8], longer):
            assert decode(bad, a.dtype, a.shape, params) == _cpu.BAD_STREAM
        assert decode(payload, a.dtype, (1008,), params) == _cpu.BAD_STREAM

    @pytest.mark.parametrize("params", [(0, 0), (8, 0), (129, 0), (2**63, 0), (2**64 - 1, 0), (32, 1)])
    def test_wrong_words(self, level, params):
        assert decode(np.zeros(4000, np.uint8), np.dtype(np.float32), (1000,), params) == _cpu.BAD_STREAM

    def test_room(self, level):
        a = np.ones(1000, np.float32)
        n, _, _ = ZFP(8).encode_payload(a, np.empty(992, np.uint8))
        assert n == _cpu.TOO_LARGE

    def test_flipped_bits_stay_inside(self, level):
        rng = np.random.default_rng(14)
        for dtype in (np.float32, np.float64, np.float16):
            for shape in ((999,), (37, 29), (11, 12, 13)):
                payload, _, params = encode(rng.standard_normal(shape).astype(dtype), 6.5)
                for _ in range(20):
                    bad = payload.copy()
                    bad[rng.integers(0, bad.size, 9)] ^= rng.integers(1, 256, 9, np.uint8)
                    assert decode(bad, np.dtype(dtype), shape, params).shape == shape


class TestParameters:
    @pytest.mark.parametrize("rate", [0, -1, 64.5, float("nan"), float("inf"), "much"])
    def test_bad_rate(self, rate):
        with pytest.raises(ValueError, match=f"rate = {rate!r}.*64"):
            ZFP(rate)

    def test_more_than_the_dtype(self):
        for dtype in (np.float16, np.float32, np.complex64):
            with pytest.raises(ValueError, match=r"rate = 33 .* 32"):
                ZFP(33).encode(np.ones(8, dtype))
        assert ZFP(33).params(np.dtype(np.float64), (8,)) == (132, 0)
        assert ZFP(33).params(np.dtype(np.complex128), (8,)) == (132, 0)

    @pytest.mark.parametrize(
        ("rate", "spec"),
        [(8, "zfp:rate=8"), (8.0, "zfp:rate=8"), (5.25, "zfp:rate=5.25"), (16, "zfp:rate=16")],
    )
    def test_spec(self, rate, spec):
        assert ZFP(rate).spec == spec
        assert compcoll.codec(spec) == ZFP(rate)

    def test_clamp(self):
        assert ZFP(0.1).params(np.dtype(np.float32), (8,)) == (9, 0)
        assert ZFP(0.1).params(np.dtype(np.float64), (8, 8)) == (12, 0)
        assert ZFP(0.1).params(np.dtype(np.float16), (8, 8)) == (9, 0)
        payload, bound, params = encode(np.full(9, 3.0, np.float32), 0.1)
        assert np.abs(decode(payload, np.dtype(np.float32), (9,), params) - 3).max() <= bound

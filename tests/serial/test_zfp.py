"""``zfp``: the zfp library's own bytes, in both directions, and an error bound that holds."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import zfpy
from hypothesis import given, settings
from hypothesis import strategies as st
from zfp_checks import BFLOAT16, check, decode, encode, reference

from compcoll.codecs.zfp import ZFP
from compcoll.core import _cpu, dtypes

CLAMP = {np.dtype(np.float32): 9, np.dtype(np.float64): 12}
WORD = {np.dtype(np.float32): 32, np.dtype(np.float64): 64}


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

    @pytest.mark.parametrize("shape", [(160, 164), (158, 163), (20, 24, 100), (13, 18, 97)])
    def test_wild_bits_at_low_rates(self, level, dtype, shape):
        """Blocks that end anywhere, so many that tables are worth while, in rows that no vector ends with."""
        rng = np.random.default_rng(9)
        dtype = np.dtype(dtype)
        for bits in (13, 16, 20, 21) if len(shape) == 2 else (48, 64, 100, 128, 200):
            nbytes = (int(np.prod([-(-n // 4) for n in shape])) * bits + 63) // 64 * 8
            payload, more = rng.integers(0, 256, (2, nbytes), np.uint8)
            for stream in (payload, payload & more, payload | more):
                rate = bits / 4 ** len(shape)
                with np.errstate(over="ignore"):
                    theirs = zfpy._decompress(
                        stream.tobytes(), zfpy.dtype_to_ztype(dtype), shape, out=None, rate=rate
                    )
                ours = decode(stream, dtype, shape, (bits, 0))
                np.testing.assert_array_equal(ours, theirs)

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

    @pytest.mark.parametrize("shape", [(160, 164), (158, 163)])
    def test_blocks_of_few_bits(self, level, dtype, shape):
        rng = np.random.default_rng(10)
        for scale in (1, 1e-5, 1e-7):
            a = (scale * rng.standard_normal(shape)).astype(dtype)
            payload, _, params = encode(a, 1)
            values = reference(a.astype(np.float32), 1)[1]
            assert decode(payload, a.dtype, shape, params).tobytes() == values.astype(dtype).tobytes()

    def test_every_pattern_widens_exactly(self, level, dtype):
        a = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        with np.errstate(invalid="ignore"):  # of signalling NaN, on some machines
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

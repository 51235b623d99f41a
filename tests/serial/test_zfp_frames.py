"""``zfp``: additions, frames with their way out where values do not fit, damage, and parameters."""

import numpy as np
import pytest
from zfp_checks import BFLOAT16, decode, encode

import compcoll
from compcoll.codecs.zfp import ZFP
from compcoll.core import _cpu, dtypes
from compcoll.frame import inspect


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

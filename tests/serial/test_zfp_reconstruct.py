"""``zfp``: encoding that gives the decoded values on the way gives those of `decode`, bit for bit."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import zfpy
from hypothesis import given, settings
from hypothesis import strategies as st

from compcoll import codec
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode
from compcoll.codecs.zfp import ZFP
from compcoll.core import _cpu, dtypes
from compcoll.frame import inspect

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WORD = {np.dtype(np.float32): 32, np.dtype(np.float64): 64}
CLAMP = {32: 9, 64: 12}
DTYPES = [np.dtype(c) for c in ("f2", "f4", "f8", "c8", "c16")] + [BFLOAT16]


def reconstruct(a, bits, values):
    """(payload or status, error bound), with the bytes behind both outputs checked."""
    n_values = a.size * (2 if a.dtype.kind == "c" else 1)
    capacity = (-(-n_values // 4) * bits + 63) // 64 * 8
    dst = np.full(capacity + SLACK, 0xA5, np.uint8)
    src, into = a.view(np.uint8), values.view(np.uint8)
    code = dtypes.code_of(a.dtype)
    n, bound, _ = _cpu.reconstruct(ZFP._index, code, a.shape, (bits, 0), src, dst[:capacity], into)
    assert (dst[capacity:] == 0xA5).all()
    return (dst[:n] if n >= 0 else n), bound


def encoded(a, bits):
    capacity = (-(-a.size * (2 if a.dtype.kind == "c" else 1) // 4) * bits + 63) // 64 * 8
    dst = np.empty(capacity, np.uint8)
    code = dtypes.code_of(a.dtype)
    n, bound, _ = _cpu.encode(ZFP._index, code, a.shape, (bits, 0), a.view(np.uint8), dst)
    return (dst if n >= 0 else n), bound


def decoded(payload, like, bits):
    out = np.empty_like(like)
    code = dtypes.code_of(like.dtype)
    assert _cpu.decode(ZFP._index, code, like.shape, (bits, 0), payload, out.view(np.uint8)) == 0
    return out


def check(a, bits):
    """In place and elsewhere, with what stands behind the values untouched."""
    payload, bound = encoded(a, bits)
    expected = decoded(payload, a, bits)
    room = np.full(a.size + 16, 7).astype(a.dtype)
    room[: a.size] = a
    for src, values in ((a, room[: a.size]), (room[: a.size], room[: a.size])):
        values[...] = a
        ours, error = reconstruct(src, bits, values)
        assert ours.tobytes() == payload.tobytes()
        assert error == bound
        assert values.tobytes() == expected.tobytes(), (a.dtype, bits)
        assert (room[a.size :] == np.asarray(7).astype(a.dtype)).all()
    return expected


def kinds(rng, n, dtype):
    """Noise, wild exponents, sparse integers, and random bit patterns."""
    word = WORD[np.dtype(dtype)]
    patterns = rng.integers(0, 2**word, n, np.uint64).astype(f"u{word // 8}").view(dtype)
    sound = np.isfinite(patterns) & (np.abs(patterns) < 2.0**120) & (np.abs(patterns) > 2.0**-90)
    yield rng.standard_normal(n).astype(dtype)
    yield (rng.standard_normal(n) * 2.0 ** rng.integers(-60, 60, n)).astype(dtype)
    yield np.where(rng.random(n) < 0.3, np.rint(3 * rng.standard_normal(n)), 0).astype(dtype)
    yield np.where(sound, patterns, 0).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_size_of_a_block(level, dtype):
    """Between all of them, `level` sees every way in which the bits can run out."""
    rng = np.random.default_rng(1)
    word = WORD[np.dtype(dtype)]
    for bits in range(CLAMP[word], 4 * word + 1):
        for a in kinds(rng, 263, dtype):
            check(a, bits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_the_library(level, dtype):
    rng = np.random.default_rng(2)
    a = np.cumsum(rng.standard_normal(5003)).astype(dtype)
    for rate in (*range(3, WORD[a.dtype] + 1), 3.25, 7.75, 11.5, 30.25):
        stream = zfpy.compress_numpy(a, rate=rate, write_header=False)
        values = zfpy._decompress(stream, zfpy.dtype_to_ztype(a.dtype), a.shape, out=None, rate=rate)
        assert check(a, int(4 * rate)).tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_and_sizes(level, dtype):
    rng = np.random.default_rng(3)
    for n, bits in product((1, 2, 3, 4, 5, 63, 64, 65, 130, 1001), (13, 32, 37, 64, 70, 128)):
        check((rng.standard_normal(n) * 2.0 ** rng.integers(-9, 9, n)).astype(dtype), bits)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_block(data):
    """Blocks near the points where bits run out: short planes, zeros, signs."""
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8"])))
    word = WORD[dtype]
    bits = data.draw(st.integers(CLAMP[word], 4 * word))
    values = st.integers(-(2**20), 2**20).map(lambda i: i * 2.0 ** data.draw(st.integers(-20, 20)))
    check(np.array(data.draw(st.lists(values, min_size=1, max_size=12)), dtype), bits)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.float32, v) for v in (np.nan, -np.inf, 2.0**-99, 2.0**126)]
    + [(np.float64, v) for v in (np.nan, -np.inf, 2.0**-963, 2.0**1022)],
)
def test_a_source_that_cannot_be_represented_is_not_touched(level, dtype, value):
    a = np.random.default_rng(4).standard_normal(999).astype(dtype)
    for place in (0, 500, 998):
        bad = a.copy()
        bad[place // 4 * 4 : place // 4 * 4 + 4] = 0
        bad[place] = value
        before = bad.tobytes()
        expected, _ = encoded(bad, 32)
        status, _ = reconstruct(bad, 32, bad)
        assert status == expected
        assert status in (_cpu.NONFINITE, _cpu.UNREPRESENTABLE)
        assert bad.tobytes() == before
        assert reconstruct(bad, 32, np.empty_like(bad))[0] == expected


def test_what_has_no_kernel():
    a = np.ones((8, 8), np.float32)
    assert not codec("mpc").coding(a.dtype).reconstruct(a, None, a)[1]
    assert not ZFP(8).coding(a.dtype).reconstruct(a, None, a)[1]


class TestFrames:
    def both(self, made, a, values):
        """(frame, whether the values are known)."""
        return made.coding(a.dtype).reconstruct(a, None, values)

    @pytest.mark.parametrize("rate", [4, 8, 16, 32])
    def test_the_frame_is_that_of_encode(self, level, rate):
        a = np.random.default_rng(5).standard_normal(3001).astype(np.float32)
        expected = ZFP(rate).encode(a)
        frame, known = self.both(ZFP(rate), a, a)
        assert frame.tobytes() == expected.tobytes()
        if inspect(expected).codec == "zfp":
            assert known
        else:  # a last block that is padded would make the frame larger than the values
            assert not known
        assert a.tobytes() == decode(expected).tobytes()

    def test_a_fallback_leaves_the_source(self):
        a = np.random.default_rng(6).standard_normal(4096).astype(np.float32)
        a[4000] = np.nan
        before = a.tobytes()
        frame, known = self.both(ZFP(8), a, a)
        assert not known
        assert inspect(frame).fallback
        assert a.tobytes() == before == decode(frame).tobytes()

    def test_nothing_is_asked_of_exact_codecs(self):
        a = np.arange(1000.0)
        a.flags.writeable = False
        for name in ("raw", "lossless", "mpc"):
            assert not self.both(codec(name), a, a)[1]

"""szp: bounds for any bit pattern, integer sums, damage, capacity, options."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from floats import FLOATS, arrays, bits, decode_guarded, encode, exact, finite, limited, reals, top
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_checks import (
    FLOAT32,
    agreed,
    check_capacity,
    check_refused,
    check_wave,
    field,
    roundtrip,
    status_of,
)

import compcoll
from compcoll.codecs.szp import SZP
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, inspect

SETTINGS = settings(max_examples=150, deadline=None)


def check(codec, array, limit=None):
    """Encode, decode and add on every level, compare; returns the payload or the status."""
    payload, decoded, bound = roundtrip(codec, array)
    if decoded is None:
        assert payload in (_cpu.TOO_LARGE, _cpu.UNREPRESENTABLE)
        return payload
    if limit is not None:
        assert exact(bound) <= limit
    hard = ~finite(array)
    assert bits(reals(array)[hard]).tobytes() == bits(reals(decoded)[hard]).tobytes()
    return payload


def span(array):
    values = reals(array)[finite(array)].tolist()
    return exact(max(values)) - exact(min(values)) if values else Fraction(0)


@SETTINGS
@given(arrays(), st.floats(2.0**-35, 2.0), st.booleans(), st.integers(-140, 120))
def test_absolute_bound(array, fraction, relative_to_values, exponent):
    bound = limited(fraction * (top(array) if relative_to_values else 2.0**exponent))
    check(SZP(abs=bound), array, exact(bound))


@SETTINGS
@given(arrays(), st.floats(1e-9, 1.0))
def test_relative_bound(array, rel):
    check(SZP(rel=rel), array, exact(rel) * span(array))


def test_rounding_to_float32_sends_no_block_out_unchanged():
    array = np.random.default_rng(3).standard_normal(32_000).astype(np.float32)
    for rel in (1e-2, 1e-3, 1e-4, 2e-5):
        assert 255 not in check(SZP(rel=rel), array)[:1000]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ties(dtype):
    # Multiples of half a step, and their neighbours.
    step = 2 - 2.0**-6
    base = (np.arange(-64, 64) * step / 2).astype(dtypes.real_dtype(dtype))
    array = np.stack([base, *(np.nextafter(base, np.array(s * np.inf, base.dtype)) for s in (-1, 1))])
    check(SZP(abs=1), array.reshape(-1).view(dtype), 1)


def test_large_values_escape_alone():
    array = np.ones(320, np.float32)
    array[100] = 3e38
    payload, decoded, _ = roundtrip(SZP(abs=1e-3), array)
    assert list(payload[:10]).count(255) == 1
    assert decoded[100] == array[100]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_values_do_not_become_infinite(dtype):
    real = dtypes.real_dtype(dtype)
    array = np.linspace(-1, 1, 640).astype(real) * ml_dtypes.finfo(real).max
    for rel in (0.4, 1e-2, 1e-5):
        decoded = roundtrip(SZP(rel=rel), array.view(dtype))[1]
        assert decoded is None or finite(decoded).all()


def test_zero_blocks_cost_their_width_byte():
    assert check(SZP(abs=1e-3), np.zeros(32 * 1000, np.float32)).size == 1000
    assert check(SZP(), np.zeros(32 * 1000, np.float64)).size == 1000


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_equal_values_are_exact(dtype):
    for value in (1.0, -3.75e-5, 6e4):
        array = np.full(1000, value).astype(dtypes.real_dtype(dtype)).view(dtype)
        _, decoded, bound = roundtrip(SZP(), array)
        assert bound == 0
        assert np.array_equal(decoded, array)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes(dtype):
    for n in (0, 1, 2, 31, 32, 33, 64, 127, 20_003):
        bound = check_wave(SZP(abs=0.01), dtype, n)
        assert 0.01 * (1 - 2**-49) <= bound <= 0.01 if n > 64 else bound <= 0.01
        assert bound == 0.01 or dtype.kind == "c" or n <= 64


@pytest.mark.parametrize("name", ["vorticity.512_512", "transformer_gradients.f32"])
def test_fields(name):
    array = field(name)
    frame = SZP().encode(array)
    error = np.abs(array.astype(float) - compcoll.decode(frame)).max()
    assert error <= 1e-3 * float(array.max() - array.min())
    assert frame.nbytes < array.nbytes / 3


def add(params, a, b, dtype, n):
    out = np.empty(n * dtype.itemsize + 64, np.uint8)
    nbytes, bound, after = _cpu.add(SZP._index, dtypes.code_of(dtype), (n,), params, a, b, out)
    assert after == params
    return (nbytes if nbytes < 0 else out[:nbytes].copy()), bound


@SETTINGS
@given(st.data(), st.integers(-12, 6))
def test_add(data, exponent):
    dtype = data.draw(st.sampled_from(FLOATS))
    a = data.draw(arrays(dtype))
    b = np.resize(data.draw(arrays(dtype)), a.size) if a.size else a
    if b.size < a.size:
        b = a[::-1].copy()
    codec = SZP(abs=limited(top(a) * 2.0**exponent))
    (pa, bound, params), (pb, _, _) = encode(codec, a), encode(codec, b)
    if isinstance(pa, int) or isinstance(pb, int):
        return
    total, more = agreed(add, params, pa, pb, dtype, a.size)
    if isinstance(total, int):
        assert total == _cpu.TOO_LARGE
        return
    if math.isinf(more):  # the sum is too large for its type
        return
    decoded, status = decode_guarded(codec, params, total, dtype, a.size)
    assert status == 0
    known, both = finite(decoded), finite(a) & finite(b)
    assert (both | ~known).all()
    x, y, z = (reals(part)[known].astype(np.longdouble) for part in (a, b, decoded))
    limit = 2 * exact(bound) + exact(more)
    error, magnitude = np.abs(z - x - y), np.maximum(np.abs(x), np.maximum(np.abs(y), np.abs(z)))
    # Exact arithmetic decides where rounding leaves a doubt.
    for k in np.flatnonzero(~(error + magnitude * 2.0**-60 <= float(limit) * (1 - 2.0**-50))):
        assert abs(exact(z[k]) - exact(x[k]) - exact(y[k])) <= limit


def test_add_stays_on_the_integers():
    rng = np.random.default_rng(1)
    terms = [np.cumsum(rng.standard_normal(10_016)).astype(np.float32) for _ in range(8)]
    codec = SZP(abs=0.01)
    encoded = [encode(codec, t) for t in terms]
    params = encoded[0][2]
    total, carried = encoded[0][0], encoded[0][1]
    for payload, bound, _ in encoded[1:]:
        total, more = add(params, total, payload, FLOAT32, 10_016)
        carried += bound + more
    decoded, _ = decode_guarded(codec, params, total, FLOAT32, 10_016)
    error = np.abs(decoded.astype(float) - np.sum(terms, axis=0, dtype=float)).max()
    assert error <= carried
    assert carried < 8 * 0.01 * 1.02
    assert 255 not in total[: 10_016 // 32]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_bytes_are_safe(dtype):
    rng = np.random.default_rng(7)
    codec = SZP()
    array = np.sin(np.arange(200) / 9).astype(dtypes.real_dtype(dtype)).view(dtype)
    sound, _, params = encode(codec, array)
    n = array.size
    for trial in range(150):
        payload = sound.copy()
        if trial % 3 == 0:
            payload = np.frombuffer(rng.bytes(rng.integers(0, n * dtype.itemsize + 1)), np.uint8)
        elif trial % 3 == 1:
            payload = payload[: rng.integers(0, payload.size)]
        else:
            payload[rng.integers(0, 12)] = rng.integers(0, 256)
        status = status_of(codec, params, payload, dtype, n)
        assert status in (0, _cpu.BAD_STREAM)
        total, _ = agreed(add, params, sound, payload, dtype, n)
        assert isinstance(total, np.ndarray) or total in (_cpu.BAD_STREAM, _cpu.TOO_LARGE)
        if trial % 3 == 1:
            assert status == _cpu.BAD_STREAM
    for word in (0, 1, 0x7FF0000000000000, 0xFFFFFFFFFFFFFFFF, 0xBFF0000000000000):
        assert status_of(codec, (word, 0), sound, dtype, n) == _cpu.BAD_STREAM


def test_damaged_frames_raise(level):
    frame = SZP().encode(np.sin(np.arange(1000, dtype=np.float32)), checksum=False)
    for at in (HEADER_NBYTES, HEADER_NBYTES + 10):
        bad = frame.copy()
        bad[at] = 200
        check_refused(bad)
    bad = SZP().encode(np.sin(np.arange(1000, dtype=np.float32)))
    bad[-1] ^= 1
    with pytest.raises(FrameError, match="checksum"):
        compcoll.decode(bad)


def test_encoder_keeps_to_its_capacity(level):
    array = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    whole, _, params = encode(SZP(), array)
    check_capacity(SZP(), array)
    for capacity in range(0, whole.size + 40, 7):
        room = np.full(capacity + 300, 0xA5, np.uint8)
        n, _, _ = _cpu.add(SZP._index, 11, (1000,), params, whole, whole, room[:capacity])
        assert n == _cpu.TOO_LARGE or n <= capacity
        assert (room[capacity:] == 0xA5).all()
    noise = np.frombuffer(np.random.default_rng(0).bytes(4000), np.float32)
    frame = SZP(abs=1e-9).encode(noise)
    assert inspect(frame).codec != "szp"
    assert bits(compcoll.decode(frame)).tobytes() == bits(noise).tobytes()


def test_options():
    for options, message in (
        ({"abs": 0}, "abs=0 is not between"),
        ({"abs": -1.0}, "abs=-1.0 is not"),
        ({"rel": math.nan}, "rel=nan"),
        ({"rel": math.inf}, "rel=inf"),
        ({"abs": 1e-320}, "abs=1e-320"),
        ({"abs": "x"}, "not a number"),
        ({"abs": 1.0, "rel": 1.0}, "both abs=1.0 and rel=1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            SZP(**options)
    assert SZP().spec == "szp:rel=0.001"
    for spec in ("szp:abs=0.001", "szp:rel=0.01"):
        assert compcoll.codec(spec).spec == spec

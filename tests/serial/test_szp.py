"""szp: the bound holds for every value, whatever the bits; sums without floats, damage, room, options."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from floats import (
    FLOATS,
    arrays,
    bits,
    decode_guarded,
    encode,
    exact,
    finite,
    largest_error,
    limited,
    reals,
    top,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_checks import (
    FLOAT32,
    agreed,
    check_decode_add,
    check_refused,
    check_wave,
    decode_everywhere,
    encode_everywhere,
    field,
    nbytes_within,
    status_of,
)

import compcoll
from compcoll.codecs.szp import SZP
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, inspect

pytestmark = pytest.mark.usefixtures("level")


def check(codec, array, limit=None):
    """Encode, decode, compare; returns the payload or the status."""
    payload, bound, params = encode(codec, array)
    if isinstance(payload, int):
        assert payload in (_cpu.TOO_LARGE, _cpu.UNREPRESENTABLE)
        return payload
    decoded, status = decode_guarded(codec, params, payload, array.dtype, array.size)
    assert status == 0
    assert payload.size <= array.nbytes
    assert largest_error(array, decoded) <= exact(bound)
    if limit is not None:
        assert exact(bound) <= limit
    hard = ~finite(array)
    assert bits(reals(array)[hard]).tobytes() == bits(reals(decoded)[hard]).tobytes()
    return payload


def span(array):
    values = reals(array)[finite(array)].tolist()
    return exact(max(values)) - exact(min(values)) if values else Fraction(0)


# Levels are compared inside, so the autouse fixture's repetition is only of use where it is not.
SETTINGS = settings(max_examples=150, deadline=None)


@SETTINGS
@given(arrays(), st.floats(2.0**-35, 2.0), st.booleans(), st.integers(-140, 120))
def test_absolute_bound(array, fraction, relative_to_values, exponent):
    bound = limited(fraction * (top(array) if relative_to_values else 2.0**exponent))
    check(SZP(abs=bound), array, exact(bound))


@SETTINGS
@given(arrays(), st.floats(1e-9, 1.0))
def test_relative_bound(array, rel):
    check(SZP(rel=rel), array, exact(rel) * span(array))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_levels_give_the_same_bytes(dtype):
    rng = np.random.default_rng(5)
    for n in (1, 31, 33, 1000, 4097):
        count = n * (2 if dtype.kind == "c" else 1)
        array = np.cumsum(rng.standard_normal(count)).astype(dtypes.real_dtype(dtype)).view(dtype)
        array[n // 2] = np.nan
        for codec in (SZP(), SZP(rel=1e-7), SZP(abs=0.25)):
            encode_everywhere(codec, array)


@SETTINGS
@given(arrays(), st.integers(-40, 40))
def test_levels_give_the_same_bytes_for_any_bits(array, exponent):
    codec = SZP(abs=2.0**exponent / 3)
    payload, _, params = encode_everywhere(codec, array)
    if not isinstance(payload, int):
        decode_everywhere(codec, params, payload, array)


@pytest.mark.parametrize("rel", [1e-2, 1e-3, 1e-4, 2e-5])
def test_rounding_to_float32_sends_no_block_out_unchanged(rel):
    array = np.random.default_rng(3).standard_normal(32_000).astype(np.float32)
    payload, bound, params = encode(SZP(rel=rel), array)
    decoded, _ = decode_guarded(SZP(), params, payload, FLOAT32, array.size)
    assert np.abs(decoded.astype(float) - array).max() <= bound
    assert 255 not in payload[:1000]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ties(dtype):
    # Multiples of half a step, and what lies next to them.
    step = 2 - 2.0**-6
    base = (np.arange(-64, 64) * step / 2).astype(dtypes.real_dtype(dtype))
    array = np.stack([base, *(np.nextafter(base, np.array(s * np.inf, base.dtype)) for s in (-1, 1))])
    check(SZP(abs=1), array.reshape(-1).view(dtype), 1)


def test_large_values_escape_alone():
    array = np.ones(320, np.float32)
    array[100] = 3e38
    payload, _, params = encode(SZP(abs=1e-3), array)
    assert list(payload[:10]).count(255) == 1
    decoded, _ = decode_guarded(SZP(), params, payload, FLOAT32, 320)
    assert decoded[100] == array[100]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rel", [0.4, 1e-2, 1e-5])
def test_the_largest_values_do_not_become_infinite(dtype, rel):
    real = dtypes.real_dtype(dtype)
    most = ml_dtypes.finfo(real).max
    array = np.linspace(-1, 1, 3200).astype(real) * most
    codec = SZP(rel=rel)
    payload, bound, params = encode(codec, array.view(dtype))
    if not isinstance(payload, int):
        decoded, _ = decode_guarded(codec, params, payload, dtype, array.view(dtype).size)
        assert finite(decoded).all()
        assert largest_error(array, decoded) <= exact(bound)


def test_zero_blocks_cost_their_width_byte():
    payload = check(SZP(abs=1e-3), np.zeros(32 * 1000, np.float32))
    assert payload.size == 1000
    assert check(SZP(), np.zeros(32 * 1000, np.float64)).size == 1000


@pytest.mark.parametrize("value", [1.0, -3.75e-5, 6e4])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_equal_values_are_exact(dtype, value):
    array = np.full(1000, value).astype(dtypes.real_dtype(dtype)).view(dtype)
    payload, bound, params = encode(SZP(), array)
    assert bound == 0
    assert np.array_equal(decode_guarded(SZP(), params, payload, dtype, array.size)[0], array)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 64, 127, 100_003])
def test_sizes(dtype, n):
    bound = check_wave(SZP(abs=0.01), dtype, n)
    assert 0.01 * (1 - 2**-49) <= bound <= 0.01 if n > 64 else bound <= 0.01
    assert bound == 0.01 or dtype.kind == "c" or n <= 64


def test_incompressible_arrays_go_out_raw():
    array = np.frombuffer(np.random.default_rng(0).bytes(4000), np.float32)
    frame = SZP(abs=1e-9).encode(array)
    assert inspect(frame).codec != "szp"
    assert bits(compcoll.decode(frame)).tobytes() == bits(array).tobytes()


@pytest.mark.parametrize("name", ["vorticity.512_512", "transformer_gradients.f32"])
def test_fields(name):
    array = field(name)
    frame = SZP().encode(array)
    error = np.abs(array.astype(float) - compcoll.decode(frame)).max()
    assert error <= 1e-3 * float(array.max() - array.min())
    assert frame.nbytes < array.nbytes / 3


@SETTINGS
@given(arrays(), st.integers(-20, 20))
def test_decode_add_is_decode_then_add(array, exponent):
    codec = SZP(abs=2.0**exponent)
    payload, _, params = encode(codec, array)
    if not isinstance(payload, int):
        check_decode_add(codec, params, payload, array)


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
    total, more = agreed(lambda: add(params, pa, pb, dtype, a.size))
    if isinstance(total, int):
        assert total == _cpu.TOO_LARGE
        return
    if math.isinf(more):  # the sum is too large for its type
        return
    decoded, status = decode_guarded(codec, params, total, dtype, a.size)
    assert status == 0
    x, y, z = reals(a), reals(b), reals(decoded)
    limit = 2 * exact(bound) + exact(more)
    for u, v, w in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        if math.isfinite(u) and math.isfinite(v) and math.isfinite(w):
            assert abs(exact(w) - exact(u) - exact(v)) <= limit
        elif math.isfinite(w):
            pytest.fail(f"{u} + {v} became {w}")


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
    for trial in range(600):
        payload = sound.copy()
        if trial % 3 == 0:
            payload = np.frombuffer(rng.bytes(rng.integers(0, n * dtype.itemsize + 1)), np.uint8)
        elif trial % 3 == 1:
            payload = payload[: rng.integers(0, payload.size)]
        else:
            payload[rng.integers(0, 12)] = rng.integers(0, 256)
        status = status_of(codec, params, payload, dtype, n)
        assert status in (0, _cpu.BAD_STREAM)
        total, _ = add(params, sound, payload, dtype, n)
        assert isinstance(total, np.ndarray) or total in (_cpu.BAD_STREAM, _cpu.TOO_LARGE)
        if trial % 3 == 1:
            assert status == _cpu.BAD_STREAM
    for word in (0, 1, 0x7FF0000000000000, 0xFFFFFFFFFFFFFFFF, 0xBFF0000000000000):
        assert status_of(codec, (word, 0), sound, dtype, n) == _cpu.BAD_STREAM


def test_damaged_frames_raise():
    frame = SZP().encode(np.sin(np.arange(1000, dtype=np.float32)), checksum=False)
    for at in (HEADER_NBYTES, HEADER_NBYTES + 10):
        bad = frame.copy()
        bad[at] = 200
        check_refused(bad)
    bad = SZP().encode(np.sin(np.arange(1000, dtype=np.float32)))
    bad[-1] ^= 1
    with pytest.raises(FrameError, match="checksum"):
        compcoll.decode(bad)


def test_encoder_keeps_to_its_capacity():
    array = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    whole, _, params = encode(SZP(), array)
    for capacity in range(0, whole.size + 40, 7):
        n = nbytes_within(SZP(), array, capacity)
        assert n == (whole.size if capacity >= whole.size else _cpu.TOO_LARGE)
        room = np.full(capacity + 300, 0xA5, np.uint8)
        n, _, _ = _cpu.add(SZP._index, 11, (1000,), params, whole, whole, room[:capacity])
        assert n == _cpu.TOO_LARGE or n <= capacity
        assert (room[capacity:] == 0xA5).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"abs": 0}, "abs=0 is not between"),
        ({"abs": -1.0}, "abs=-1.0 is not"),
        ({"rel": math.nan}, "rel=nan"),
        ({"rel": math.inf}, "rel=inf"),
        ({"abs": 1e-320}, "abs=1e-320"),
        ({"abs": "x"}, "not a number"),
        ({"abs": 1.0, "rel": 1.0}, "both abs=1.0 and rel=1.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        SZP(**options)


def test_spec():
    assert SZP().spec == "szp:rel=0.001"
    for spec in ("szp:abs=0.001", "szp:rel=0.01"):
        assert compcoll.codec(spec).spec == spec

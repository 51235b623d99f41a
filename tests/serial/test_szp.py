"""szp: the bound holds for every value, whatever the bits."""

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
from lossy_checks import FLOAT32, check_wave, decode_everywhere, encode_everywhere, field

import compcoll
from compcoll.codecs.szp import SZP
from compcoll.core import _cpu, dtypes
from compcoll.frame import inspect

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
    assert bound == 0.01 if n > 64 else bound in (0, 0.01)


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

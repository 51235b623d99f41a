"""szp: sums that need no floats, damage, room, and options."""

import math

import numpy as np
import pytest
from floats import FLOATS, arrays, decode_guarded, encode, exact, limited, reals, top
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_checks import FLOAT32, agreed, check_decode_add, check_refused, nbytes_within, status_of

import compcoll
from compcoll.codecs.szp import SZP
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES

pytestmark = pytest.mark.usefixtures("level")
SETTINGS = settings(max_examples=150, deadline=None)


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

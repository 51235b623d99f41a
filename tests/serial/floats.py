"""Helpers of the lossy codecs' tests: float arrays of every kind, exact errors, guarded decoding."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES, SLACK, inspect, pack_header

FLOATS = sorted(dtypes.FLOATS, key=dtypes.code_of)
GUARD = 256


def reals(array):
    """Flat view of an array, with complex numbers as pairs of real ones."""
    return array.reshape(-1).view(dtypes.real_dtype(array.dtype))


def finite(array):
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.isfinite(reals(array))


def values(dtype, n, seed=0):
    """Values of many magnitudes, zeros and blocks of them, and subnormals beside what zfp just carries."""
    rng = np.random.default_rng(seed)
    real = dtypes.real_dtype(dtype)
    count = n * (2 if dtype.kind == "c" else 1)
    scale = 2.0 ** np.repeat(rng.integers(-6, 6, -(-count // 64)), 64)[:count]
    x = np.cumsum(rng.standard_normal(count)) * scale
    x[rng.random(count) < 0.1] = 0
    x[8:16] = 0
    if count > 1000 and real.itemsize >= 4:
        x[512:640] = rng.standard_normal(128) * 2.0 ** rng.integers(-149, -120, 128)
        x[512:640:4] = 2.0**-98
    with np.errstate(over="ignore"):
        return x.astype(real).view(dtype)


def same(a, b):
    """True if two arrays have the same bytes."""
    return np.array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))


def exact(value):
    return Fraction(float(value))


def largest_error(array, decoded):
    """Exact largest error of finite values, from those whose rounded error is close to the largest."""
    mask = finite(array)
    x, y = reals(array)[mask], reals(decoded)[mask]
    rounded = np.abs(x.astype(np.longdouble) - y.astype(np.longdouble))
    largest = rounded.max(initial=0)
    if largest == 0:
        return Fraction(0)
    close = ~(rounded < largest * (1 - 2.0**-50))  # all of them if one is NaN
    return max(abs(exact(u) - exact(v)) for u, v in zip(x[close].tolist(), y[close].tolist(), strict=True))


def top(array):
    """Largest finite magnitude, at least the smallest float64 that szp takes for a bound."""
    return max([abs(float(v)) for v in reals(array)[finite(array)].tolist()] + [2.0**-1022])


def limited(bound):
    """The nearest bound that szp takes."""
    return min(max(bound, 2.0**-1022), 2.0**1020)


def bits(array):
    return array.reshape(-1).view(np.uint8)


@st.composite
def arrays(draw, dtype=None, finite_only=False, max_size=130):
    """Random bit patterns, or values of one magnitude with a few such patterns among them."""
    dtype = draw(st.sampled_from(FLOATS)) if dtype is None else dtype
    n = draw(st.integers(0, max_size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    wild = np.frombuffer(rng.bytes(n * dtype.itemsize), dtype)
    kind = draw(st.sampled_from(["bits", "normal", "smooth", "constant", "mixed"]))
    real = dtypes.real_dtype(dtype)
    count = reals(wild).size
    limits = np.finfo(real) if real.kind == "f" else np.finfo(np.float32)
    low, high = np.log2(float(limits.tiny)) - 8, np.log2(float(limits.max)) - 3
    scale = 2.0 ** draw(st.floats(low, high))
    base = rng.standard_normal(count)
    if kind == "smooth":
        base = np.sin(np.arange(count) / 9)
    if kind == "constant":
        base = np.ones(count)
    with np.errstate(over="ignore", under="ignore"):
        tame = (base * scale).astype(real).view(dtype)
    array = wild.copy() if kind == "bits" else tame
    if kind == "mixed" and n:
        at = draw(st.integers(0, n - 1))
        array[at : at + 2] = wild[at : at + 2]
    if finite_only:
        reals(array)[~finite(array)] = 1
    return array


def decode_guarded(codec, params, payload, dtype, n):
    """Decode, check that the bytes around the output are untouched, and return the array and the status."""
    nbytes = n * dtype.itemsize
    room = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
    dst = room[GUARD : GUARD + nbytes]
    status = _cpu.decode(codec._index, dtypes.code_of(dtype), (n,), params, payload, dst)
    assert (room[:GUARD] == 0xA5).all()
    assert (room[GUARD + nbytes :] == 0xA5).all()
    return dst.view(dtype), status


def decode_add_guarded(codec, params, payload, dtype, start):
    """Like `decode_guarded`, but adds to a copy of ``start``, which has the accumulator's dtype.

    The status is None, and the copy is unchanged, if the codec has no fused addition.
    """
    room = np.full(start.nbytes + 2 * GUARD, 0xA5, np.uint8)
    dst = room[GUARD : GUARD + start.nbytes]
    dst[:] = bits(start)
    code, acc = dtypes.code_of(dtype), dtypes.code_of(start.dtype)
    status = _cpu.decode_add(codec._index, code, (start.size,), params, payload, dst, acc)
    assert (room[:GUARD] == 0xA5).all()
    assert (room[GUARD + start.nbytes :] == 0xA5).all()
    return dst.view(start.dtype), status


def encode(codec, array):
    """Payload (or the negative status), bound of real numbers, and params; the capacity is a frame's."""
    out = np.empty(array.nbytes + 64, np.uint8)
    nbytes, bound, params = _cpu.encode(*codec._arguments(array), bits(array), out)
    return (nbytes if nbytes < 0 else out[:nbytes].copy()), bound, params


def on_every_level(f, *args):
    """f(*args) at each instruction-set level of this processor."""
    before = _cpu.level()
    try:
        results = []
        for name in _cpu.available_levels():
            _cpu.set_level(name)
            results.append(f(*args))
        return results
    finally:
        _cpu.set_level(before)


def sum_of_frames(a, b):
    """Sum of two frames, as a frame, if the codec adds them without decoding; otherwise None."""
    first, second = inspect(a), inspect(b)
    index, code, shape = _cpu.index(first.codec), dtypes.code_of(first.dtype), first.shape or (1,)
    alike = (first.codec, first.shape, first.params) == (second.codec, second.shape, second.params)
    if not alike or not _cpu.can_add(index):
        return None
    out = np.empty(HEADER_NBYTES + first.nbytes + SLACK, np.uint8)
    payloads = a[HEADER_NBYTES:], b[HEADER_NBYTES:]
    nbytes, bound, params = _cpu.add(index, code, shape, first.params, *payloads, out[HEADER_NBYTES:])
    assert nbytes != _cpu.BAD_STREAM
    if not 0 <= nbytes <= first.nbytes:
        return None
    if first.dtype.kind == "c":
        bound *= float.fromhex("0x1.6a09e667f3bcep+0")
    bound += first.bound + second.bound
    info = replace(first, params=params, payload_nbytes=nbytes, bound=bound)
    pack_header(out, info)
    return out[: info.frame_nbytes]

"""Checks that `szp` and the codecs with a scale for each block share."""

import numpy as np
import pytest
from floats import (
    bits,
    decode_add_guarded,
    decode_guarded,
    encode,
    exact,
    largest_error,
    on_every_level,
    reals,
)
from shared_data import shared

import compcoll
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import _cpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES, inspect

FLOAT32 = np.dtype(np.float32)


def agreed(f, *args):
    """f(*args), a payload (or the negative status) and more, all of which must be equal on every level."""
    first, *others = on_every_level(f, *args)
    for other in others:
        assert np.array_equal(other[0], first[0])
        assert other[1:] == first[1:]
    return first


def encode_everywhere(codec, array):
    """Payload (or the negative status), bound and params, which must be equal on every level."""
    return agreed(encode, codec, array)


def decode_everywhere(codec, params, payload, array):
    """Values of a valid payload, which must be equal on every level, also if they are added."""
    results = on_every_level(decoded_and_added, codec, params, payload, array)
    assert len({bits(decoded).tobytes() for decoded in results}) == 1
    return results[0]


def decoded_and_added(codec, params, payload, array):
    """Values of a valid payload; checks that a fused addition equals decoding and adding."""
    decoded, status = decode_guarded(codec, params, payload, array.dtype, array.size)
    assert status == 0
    acc = accumulator_dtype(array.dtype)
    start = np.full(reals(decoded).size, 0.3).astype(dtypes.real_dtype(acc))
    with np.errstate(all="ignore"):
        expected = start + reals(decoded).astype(start.dtype)
    total, status = decode_add_guarded(codec, params, payload, array.dtype, start.view(acc))
    if status is not None:
        assert status == 0
        assert np.array_equal(reals(total), expected, equal_nan=True)
    return decoded


def roundtrip(codec, array):
    """Payload (or the negative status), decoded values within the bound (or None), and the bound."""
    payload, bound, params = encode_everywhere(codec, array)
    if isinstance(payload, int):
        return payload, None, bound
    decoded = decode_everywhere(codec, params, payload, array)
    assert payload.size <= array.nbytes
    assert largest_error(array, decoded) <= exact(bound)
    return payload, decoded, bound


def status_of(codec, params, payload, dtype, n):
    """Status of decoding any bytes, which must be equal on every level and for a fused addition."""

    def answer():
        decoded, status = decode_guarded(codec, params, payload, dtype, n)
        start = np.zeros(n, accumulator_dtype(dtype))
        assert decode_add_guarded(codec, params, payload, dtype, start)[1] in (status, None)
        return status, bits(decoded).tobytes() if status == 0 else b""

    first, *others = on_every_level(answer)
    assert all(other == first for other in others)
    return first[0]


def check_wave(codec, dtype, n):
    """Check the size and the errors of a frame of n values; return its bound."""
    count = n * (2 if dtype.kind == "c" else 1)
    array = np.sin(np.arange(count) / 50).astype(dtypes.real_dtype(dtype)).view(dtype)
    frame, *others = on_every_level(codec.encode, array)
    assert all(np.array_equal(other, frame) for other in others)
    assert frame.nbytes <= array.nbytes + HEADER_NBYTES
    if n > 64:
        assert inspect(frame).codec == codec.name
    for decoded in on_every_level(compcoll.decode, frame):
        assert decoded.dtype == dtype
        error = np.abs(reals(decoded).astype(float) - reals(array).astype(float)).max(initial=0)
        assert error <= inspect(frame).bound
    return inspect(frame).bound


def check_refused(frame):
    """Check that a damaged payload without a checksum is refused."""
    with pytest.raises(FrameError, match="not a stream of this codec"):
        compcoll.decode(frame)
    with pytest.raises(FrameError, match="not a stream of this codec"):
        decode_add(frame, np.zeros(inspect(frame).shape, inspect(frame).dtype))


def nbytes_within(codec, array, capacity):
    """Size, or status, of encoding with a capacity; checks that the bytes after it are untouched."""
    room = np.full(capacity + 300, 0xA5, np.uint8)
    code, asked = dtypes.code_of(array.dtype), codec.params(array.dtype, array.shape)
    n, _, _ = _cpu.encode(codec._index, code, array.shape, asked, bits(array), room[:capacity])
    assert (room[capacity:] == 0xA5).all()
    return n


def check_capacity(codec, array):
    """Check on every level that encoding succeeds with the payload's size as capacity, and not with less."""
    need = encode(codec, array)[0].size
    for capacity in (0, 1, need - 1, need, need + 7):
        expected = need if capacity >= need else _cpu.TOO_LARGE
        assert set(on_every_level(nbytes_within, codec, array, capacity)) == {expected}


def field(name):
    """The values of a float32 data set."""
    return np.fromfile(shared("data") / name, FLOAT32)

"""Behaviour that all codecs share: specs, the registry, frames, errors."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product

import floats
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compcoll
from compcoll import FrameError, codec, codecs, decode, inspect
from compcoll.codecs import base, decoding, registry
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES

SPECS = [
    "raw",
    "lossless",
    "mpc",
    "mpc:dim=3",
    "float",
    "zfp:rate=8",
    "zfp:rate=12.5",
    "szp:abs=0.001",
    "szp:rel=0.01",
    "int8",
    "int4",
    "fp8",
    "bfp",
    "bfp:rel=0.01",
    "int8:block=128",
]
VALUES = np.sin(np.arange(1000) * 0.01).astype("f4")


def test_every_codec_is_in_the_list():
    ours = {
        name for name in compcoll.codecs() if registry.codec_class(name).__module__.startswith("compcoll.")
    }
    assert {spec.partition(":")[0] for spec in SPECS} == ours - {"delta"}


@pytest.mark.parametrize("spec", SPECS)
def test_spec_makes_an_equal_codec(spec):
    made = codec(spec)
    assert codec(made.spec) == made
    assert hash(codec(made.spec)) == hash(made)
    assert codec(made) is made
    assert made.name in codecs()
    assert made.spec in repr(made)


@pytest.mark.parametrize("spec", SPECS)
def test_shapes_and_dtypes_come_back(spec):
    made = codec(spec)
    for dtype, shape in product(
        dtypes.CODES, [(), (0,), (5,), (48,), (3, 0, 2), (6, 8), (2, 4, 6), (10, 100)]
    ):
        array = np.rint(np.sin(np.arange(math.prod(shape)) / 7) * 9).reshape(shape)
        array = (abs(array) if dtype.kind == "u" else array).astype(dtype)
        frame = made.encode(array)
        info, decoded = inspect(frame), decode(frame)
        assert (info.dtype, info.shape, info.nbytes, info.size) == (dtype, shape, array.nbytes, array.size)
        assert frame.dtype == np.uint8
        assert info.payload_offset == HEADER_NBYTES
        assert info.frame_nbytes == frame.size <= made.max_nbytes(array.size, dtype)
        assert made.max_nbytes(array.size, dtype) == HEADER_NBYTES + array.nbytes
        assert (decoded.dtype, decoded.shape) == (dtype, shape)
        if made.lossless or dtype.kind in "iu" or codec(info.codec).lossless:
            assert decoded.tobytes() == array.tobytes()
            assert info.bound == 0
        else:
            assert not info.fallback
            assert np.abs(decoded.astype(complex) - array.astype(complex)).max(initial=0) <= info.bound


@pytest.mark.parametrize("spec", SPECS)
def test_decode_add_adds(spec):
    """decode_add adds a frame's values to a float32 array, also if they are float16."""
    for dtype, start in (("f4", 1), ("f2", 1000)):
        array, into = VALUES.astype(dtype), np.full(VALUES.size, start, "f4")
        frame = codec(spec).encode(array)
        expected = into + decode(frame).astype("f4")
        assert decoding.decode_add(frame, into) is into
        np.testing.assert_array_equal(into, expected)


LOSSY = ["zfp:rate=8", "szp:abs=0.001", "szp:rel=0.01", "int8", "int4", "fp8", "bfp:bits=6", "bfp:rel=0.01"]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]


def largest_square(array, decoded):
    """Exact largest |x - x'|^2 of finite x, from values whose rounded error is close to the largest."""
    finite = np.isfinite(array)
    x, y = array[finite], decoded[finite]
    rounded = np.abs(x.astype(np.clongdouble) - y.astype(np.clongdouble))
    close = ~(rounded < rounded.max(initial=0) * (1 - 2.0**-50))
    parts = [
        (Fraction(a.real) - Fraction(b.real), Fraction(a.imag) - Fraction(b.imag))
        for a, b in zip(x[close].tolist(), y[close].tolist(), strict=True)
    ]
    return max((a * a + b * b for a, b in parts), default=Fraction(0))


@pytest.mark.parametrize("spec", LOSSY)
@settings(max_examples=25, deadline=None)
@given(array=floats.arrays(COMPLEX[0]) | floats.arrays(COMPLEX[1]), carried=st.sampled_from([0.0, 0.25]))
def test_bound_of_complex_numbers(spec, array, carried):
    """A frame's bound limits |x - x'| of complex numbers, for any bit pattern."""
    made = codec(spec)
    frame = made.encode(array, carried=carried)
    bound = inspect(frame).bound
    room = Fraction(bound) * (1 + bool(carried) * Fraction(1, 2**50)) - Fraction(
        carried
    )  # the sum is rounded
    assert largest_square(array, decode(frame)) <= room**2
    if spec == "szp:abs=0.001":
        assert bound <= 0.001 + carried


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("spec", LOSSY)
def test_both_parts_are_off_by_nearly_the_largest_error(spec, dtype):
    """Equal errors of both parts, which together exceed one part's bound, stay within the frame's bound."""
    part = np.random.default_rng(3).uniform(-1, 1, 20_000)
    part[::64] = 1
    array = (np.repeat(part, 2)).astype(dtypes.real_dtype(dtype)).view(dtype)
    frame = codec(spec).encode(array)
    info, error = inspect(frame), float(np.abs(decode(frame) - array).max())
    assert info.codec == codec(spec).name
    assert (0.2 if "zfp" in spec else 0.75) * info.bound < error <= info.bound
    if "szp" in spec:
        asked = 0.001 if "abs" in spec else 0.01 * (part.max() - part.min())
        assert 0.97 * asked < error <= info.bound <= asked
    into = np.ones_like(array)
    decoding.decode_add(frame, into)
    most = float(np.abs(array).max()) + 1
    assert np.abs(into - 1 - array).max() <= info.bound + 2 * np.finfo(dtype).eps * most


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_sums_of_complex_frames_keep_their_bound(dtype):
    made, rng = codec("szp:abs=0.01"), np.random.default_rng(4)
    a, b = (np.repeat(rng.uniform(-1, 1, 5000), 2).astype(dtypes.real_dtype(dtype)).view(dtype) for _ in "ab")
    total = floats.sum_of_frames(made.encode(a), made.encode(b))
    assert inspect(total).codec == "szp"
    error, bound = np.abs(decode(total) - (a + b)).max(), inspect(total).bound
    assert 0.014 < error <= bound < 0.02 + 1e-6


def test_scalars_empty_and_strided_arrays():
    for array in (np.float32(3.5), np.empty((0, 4)), VALUES[::3], np.asfortranarray(VALUES.reshape(20, 50))):
        out = decode(codec("lossless").encode(array))
        assert out.shape == np.shape(array)
        np.testing.assert_array_equal(out, array)


def test_out_is_filled_and_returned():
    frame, out = codec("mpc").encode(VALUES), np.empty_like(VALUES)
    assert decode(frame, out) is out
    np.testing.assert_array_equal(out, VALUES)
    room = np.empty(codec("mpc").max_nbytes(VALUES.size, VALUES.dtype) + base.SLACK, np.uint8)
    assert np.shares_memory(codec("mpc").encode(VALUES, room), room)


def test_misaligned_and_constant_memory():
    whole = np.frombuffer(b"x" + VALUES.tobytes(), np.uint8)
    array = whole[1:].view("f4")
    frame = np.frombuffer(b"x" + codec("mpc").encode(array).tobytes(), np.uint8)[1:]
    out = np.empty(whole.size, np.uint8)[1:].view("f4")
    np.testing.assert_array_equal(decode(frame, out), VALUES)
    with pytest.raises(ValueError, match="writable"):
        decode(frame, array)
    with pytest.raises(ValueError, match="read-only"):
        codec("mpc").encode(VALUES, np.frombuffer(bytes(8000), np.uint8))


def test_a_codec_that_was_used_is_pickled():
    made = codec("bfp:bits=7")
    frame = made.encode(VALUES)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    np.testing.assert_array_equal(again.encode(VALUES), frame)


@pytest.mark.parametrize("n", [200, 100_000])
def test_threads_encode_at_the_same_time(n):
    arrays = [np.sin(np.arange(n) * (0.01 + k)).astype("f4") for k in range(8)]
    made = codec("bfp:bits=9")
    expected = [made.encode(array).tobytes() for array in arrays]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            frames = list(pool.map(made.encode, arrays))
            assert [frame.tobytes() for frame in frames] == expected
            sums = list(pool.map(decoding.decode_add, frames, [np.zeros(n, "f4") for _ in arrays]))
            assert all((a == decode(frame)).all() for a, frame in zip(sums, frames, strict=True))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: codec("zip"), ValueError, "unknown codec 'zip'; known are .*zfp"),
        (lambda: codec("zpf:rate=8"), ValueError, "unknown codec 'zpf'; .* did you mean 'zfp'\\?"),
        (lambda: codec("zfp,rate=8"), ValueError, "'zfp,rate=8': parameters follow a colon: 'zfp:rate=8'"),
        (lambda: codec("bfp(bits=8, dim=1)"), ValueError, "follow a colon: 'bfp:bits=8, dim=1'"),
        (lambda: codec("bfp:bit=8"), ValueError, "no option 'bit'; it has bits, .*; did you mean 'bits'"),
        (lambda: codec(7), TypeError, "not as int"),
        (lambda: codec("zfp:rate"), ValueError, "'rate' .* is not key=value"),
        (lambda: codec("zfp:speed=3"), ValueError, "has no option 'speed'; it has"),
        (lambda: codec("raw:x=1"), ValueError, "it has none"),
        (lambda: codec("zfp:rate=8,rate=9"), ValueError, "given twice"),
        (lambda: codec("raw").encode(np.zeros((1, 1, 1, 1))), ValueError, "4 dimensions: at most 3"),
        (lambda: codec("raw").encode(np.zeros(1, "U3")), TypeError, "dtype <U3 is not supported"),
        (lambda: codec("raw").encode(np.zeros(1, ">f4")), TypeError, "dtype >f4 is not supported"),
        (lambda: codec("raw").encode(VALUES, np.empty(8, np.uint8)), ValueError, "out has 8 bytes"),
        (lambda: codec("raw").max_nbytes(-1, "f4"), ValueError, "n = -1"),
        (lambda: decode(codec("raw").encode(VALUES), np.empty(7, "f4")), ValueError, "out has 7 elements"),
        (lambda: decode(codec("raw").encode(VALUES), np.empty(1000)), TypeError, "out has dtype float64"),
        (lambda: decode(b"short"), FrameError, "5 bytes are no frame: its header alone has 80"),
    ],
)
def test_errors_name_value_and_limit(call, error, message):
    with pytest.raises(error, match=message):
        call()

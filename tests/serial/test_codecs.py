"""What all codecs share: specs, the registry, frames in and out, errors."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

import compcoll
from compcoll import FrameError, codec, codecs, decode, inspect
from compcoll.codecs import base, decoding, registry
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


@pytest.mark.parametrize("spec", SPECS)
def test_spec_makes_an_equal_codec(spec):
    made = codec(spec)
    assert codec(made.spec) == made
    assert hash(codec(made.spec)) == hash(made)
    assert codec(made) is made
    assert made.name in codecs()
    assert made.spec in repr(made)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "c8", "u1"])
def test_frame_describes_itself(spec, dtype):
    array = (VALUES * 100).astype(dtype).reshape(10, 100)
    made = codec(spec)
    frame = made.encode(array)
    info = inspect(frame)
    assert (info.dtype, info.shape, info.nbytes) == (array.dtype, array.shape, array.nbytes)
    assert frame.dtype == np.uint8
    assert frame.size == info.frame_nbytes <= made.max_nbytes(array.size, array.dtype)
    out = decode(frame)
    assert (out.dtype, out.shape) == (array.dtype, array.shape)
    if made.lossless or array.dtype.kind in "iu":
        assert out.tobytes() == array.tobytes()
        assert info.bound == 0
    else:
        assert np.abs(out - array).max() <= info.bound


@pytest.mark.parametrize("spec", SPECS)
def test_decode_add_adds(spec):
    frame, into = codec(spec).encode(VALUES), np.ones_like(VALUES)
    expected = into + decode(frame)
    assert decoding.decode_add(frame, into) is into
    np.testing.assert_array_equal(into, expected)


@pytest.mark.parametrize("spec", ["raw", "float", "zfp:rate=16", "int8"])
def test_halves_are_summed_in_float32(spec):
    halves = VALUES.astype("f2")
    frame, into = codec(spec).encode(halves), np.full(halves.size, 1000, "f4")
    decoding.decode_add(frame, into)
    np.testing.assert_array_equal(into, np.float32(1000) + decode(frame).astype("f4"))


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


def test_carried_error_adds_up():
    assert inspect(codec("szp:abs=0.5").encode(VALUES, carried=0.25)).bound == 0.75
    assert inspect(codec("raw").encode(VALUES, carried=0.25)).bound == 0.25


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: codec("zip"), ValueError, "unknown codec 'zip'; known are .*zfp"),
        (lambda: codec(7), TypeError, "not as int"),
        (lambda: codec("zfp:rate"), ValueError, "'rate' .* is not key=value"),
        (lambda: codec("zfp:speed=3"), ValueError, "has no option 'speed'; it has"),
        (lambda: codec("raw:x=1"), ValueError, "it has none"),
        (lambda: codec("zfp:rate=8,rate=9"), ValueError, "given twice"),
        (lambda: codec("zfp:rate=0"), ValueError, "rate.*0"),
        (lambda: codec("zfp:rate=65"), ValueError, "65"),
        (lambda: codec("zfp:rate=many"), ValueError, "many"),
        (lambda: codec("mpc:dim=33"), ValueError, "33"),
        (lambda: codec("szp:abs=0"), ValueError, "0"),
        (lambda: codec("int8:block=33"), ValueError, "33"),
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


class Negated(compcoll.Codec):
    """A third party's codec without kernels: the bytes, each complemented, and one byte less."""

    name = "negated"
    lossless = True

    def encode_payload(self, src, dst):
        data = src.reshape(-1).view(np.uint8)
        if data.size and data[-1]:
            return -3, 0.0, (0, 0)
        dst[: max(data.size - 1, 0)] = ~data[:-1]
        return max(data.size - 1, 0), 0.0, (7, 0)

    def decode_payload(self, info, payload, dst):
        if info.params != (7, 0):
            return -4
        out = dst.reshape(-1).view(np.uint8)
        out[:-1], out[-1:] = ~payload, 0
        return 0


@pytest.fixture
def third_party(monkeypatch):
    point = EntryPoint("negated", f"{__name__}:Negated", "compcoll.codecs")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Negated)
    monkeypatch.setattr(registry, "_points", lambda: [point])
    yield codec("negated")
    registry._known.pop("negated", None)
    registry.codec.cache_clear()
    registry.of_frame.cache_clear()


def test_third_party_codec(third_party):
    assert "negated" in codecs()
    small = np.arange(10, dtype="<i4")
    frame = third_party.encode(small)
    assert (inspect(frame).codec, frame.size) == ("negated", HEADER_NBYTES + 39)
    np.testing.assert_array_equal(decode(frame), small)
    into = np.ones_like(small)
    np.testing.assert_array_equal(decoding.decode_add(frame, into), small + 1)
    assert inspect(third_party.encode(-1 - small)).codec == "raw"


@pytest.mark.parametrize("name", ["much_too_long", "zfp", "söp", ""])
def test_names_that_cannot_be_registered(name):
    with pytest.raises(ValueError, match="name"):
        registry.register(type("Other", (compcoll.Codec,), {"name": name, "lossless": True}))

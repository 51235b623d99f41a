"""What all codecs share: specs, the registry, frames in and out, errors."""

import copy
import pickle
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path

import floats
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compcoll
from compcoll import FrameError, codec, codecs, decode, inspect
from compcoll.cli.choose import Goal, ladders
from compcoll.codecs import base, decoding, registry
from compcoll.core import _cpu, dtypes
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


LOSSY = ["zfp:rate=8", "szp:abs=0.001", "szp:rel=0.01", "int8", "int4", "fp8", "bfp:bits=6", "bfp:rel=0.01"]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]


def largest_square(array, decoded):
    """The largest |x - x'|^2 of all finite x, exactly."""
    pairs = [
        (Fraction(a.real) - Fraction(b.real), Fraction(a.imag) - Fraction(b.imag))
        for a, b in zip(array.reshape(-1).tolist(), decoded.reshape(-1).tolist(), strict=True)
        if np.isfinite(a)
    ]
    return max((x * x + y * y for x, y in pairs), default=Fraction(0))


@pytest.mark.parametrize("spec", LOSSY)
@settings(max_examples=60, deadline=None)
@given(array=floats.arrays(COMPLEX[0]) | floats.arrays(COMPLEX[1]), carried=st.sampled_from([0.0, 0.25]))
def test_bound_of_complex_numbers(spec, array, carried):
    """It is one of |x - x'|, whatever the bits."""
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
    """Errors of both parts are alike, and add up to more than a part's bound."""
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
def entry_points(monkeypatch):
    """Entry points of another package, by key; each is given as a class, or an exception of its import."""
    found = {}

    def load(point):
        if isinstance(found[point.name], Exception):
            raise found[point.name]
        return found[point.name]

    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(
        registry, "_points", lambda: [EntryPoint(key, "other:Other", "compcoll.codecs") for key in found]
    )
    before = dict(registry._known)
    yield found
    registry._known.clear()
    registry._known.update(before)
    registry.codec.cache_clear()
    registry.of_frame.cache_clear()


@pytest.fixture
def third_party(entry_points):
    entry_points["negated"] = Negated
    return codec("negated")


def test_third_party_codec(third_party):
    assert "negated" in codecs()
    small = np.arange(10, dtype="<i4")
    frame = third_party.encode(small)
    assert (inspect(frame).codec, frame.size) == ("negated", HEADER_NBYTES + 39)
    np.testing.assert_array_equal(decode(frame), small)
    into = np.ones_like(small)
    np.testing.assert_array_equal(decoding.decode_add(frame, into), small + 1)
    assert inspect(third_party.encode(-1 - small)).codec == "raw"


def test_typical_specs_of_a_third_party_are_a_ladder(third_party, monkeypatch):
    named = [ladder.specs for ladder in ladders(VALUES, 1.0, Goal(1e-3)) if ladder.label == "negated"]
    monkeypatch.setattr(Negated, "typical", ("negated:k=1", "negated:k=2"))
    monkeypatch.setattr(Negated, "__init__", lambda self, k=0: None)
    several = [ladder.specs for ladder in ladders(VALUES, 1.0, Goal(1e-3)) if ladder.label == "negated"]
    assert (named, several) == ([["negated"]], [["negated:k=1", "negated:k=2"]])


@pytest.mark.parametrize("name", ["much_too_long", "zfp", "söp", ""])
def test_names_that_cannot_be_registered(name):
    with pytest.raises(ValueError, match="name"):
        registry.register(type("Other", (compcoll.Codec,), {"name": name, "lossless": True}))


def test_key_of_an_entry_point_is_the_name_of_its_codec(entry_points):
    entry_points["inverse"] = Negated
    with pytest.raises(ValueError, match=r"entry point 'inverse' of module 'other' .* name 'negated'"):
        codec("inverse")
    assert "negated" not in registry._known


def test_broken_entry_points_are_left_out_of_the_codecs_to_try(entry_points):
    broken = ImportError("no module named 'missing'")
    entry_points.update(broken=broken, inverse=Negated, negated=Negated)
    with pytest.warns(RuntimeWarning) as caught:
        specs = registry.default_specs(np.dtype("i4"))
    assert "negated" in specs
    assert not {"broken", "inverse"} & set(specs)
    assert sorted(str(one.message).partition(": ")[0] for one in caught) == [
        "codec 'broken' of module 'other' is left out",
        "codec 'inverse' of module 'other' is left out",
    ]
    with pytest.warns(RuntimeWarning, match="'broken'"):
        assert not registry.takes("broken", np.dtype("i4"))
    with pytest.raises(ImportError, match="missing"):
        codec("broken")


class Faulty(Negated):
    """A third party's codec that returns a value of its parameters in place of a status."""

    name = "faulty"

    def __init__(self, encoded=0):
        self.encoded = encoded

    def options(self):
        return {"encoded": self.encoded}

    def encode_payload(self, src, dst):
        return self.encoded, 0.0, (7, 0)

    def decode_payload(self, info, payload, dst):
        return 7


@pytest.mark.parametrize("value", [-99, -6, VALUES.nbytes + base.SLACK + 1])
def test_unknown_status_of_an_encoder_is_an_error(entry_points, value):
    entry_points["faulty"] = Faulty
    with pytest.raises(RuntimeError, match=f"codec 'faulty': encode_payload returned {value}"):
        codec(f"faulty:encoded={value}").encode(VALUES)


def test_unknown_status_of_a_decoder_is_an_error(entry_points):
    entry_points["faulty"] = Faulty
    frame = codec("faulty").encode(VALUES)
    assert inspect(frame).codec == "faulty"
    for decoding_into in (decode, decoding.decode_add):
        with pytest.raises(RuntimeError, match="codec 'faulty': decode_payload returned 7"):
            decoding_into(frame, np.zeros_like(VALUES))


def test_encoder_cannot_write_to_its_source(entry_points):
    class Writing(Negated):
        name = "writing"

        def encode_payload(self, src, dst):
            src[...] = 0

    entry_points["writing"] = Writing
    array = VALUES.copy()
    with pytest.raises(ValueError, match="read-only"):
        codec("writing").encode(array)
    np.testing.assert_array_equal(array, VALUES)


def test_a_refusal_needs_no_bound(entry_points):
    class Refusing(Negated):
        name = "refusing"

        def encode_payload(self, src, dst):
            return _cpu.UNREPRESENTABLE, None, None

    entry_points["refusing"] = Refusing
    assert inspect(codec("refusing").encode(VALUES)).codec == "raw"


def test_arrays_that_a_codec_keeps_stay_alive(entry_points):
    kept = []

    class Keeping(Negated):
        name = "keeping"

        def encode_payload(self, src, dst):
            kept.extend([src, dst])
            return super().encode_payload(src, dst)

        def decode_payload(self, info, payload, dst):
            kept.extend([payload, dst])
            return super().decode_payload(info, payload, dst)

    entry_points["keeping"] = Keeping
    made, n = codec("keeping"), 1 << 21
    frame = made.encode(np.zeros(n, "f8"))
    assert inspect(frame).codec == "keeping"
    decoding.decode_add(frame.copy(), np.ones(n, "f8"))
    del frame
    source, encoded, payload, term = kept
    assert not source.any()
    assert not term.any()
    assert (encoded[: payload.size] == payload).all()
    for array in (source, payload):
        with pytest.raises(ValueError, match="read-only"):
            array[:1] = 1


def test_threads_get_their_own_exceptions(entry_points):
    class Raising(Negated):
        name = "raising"

        def encode_payload(self, src, dst):
            raise KeyError(int(src[0]))

    entry_points["raising"] = Raising
    made = codec("raising")

    def raised(k):
        with pytest.raises(KeyError) as info:
            made.encode(np.full(20_000, k, "f4"))
        return info.value.args[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(raised, range(200))) == list(range(200))
    assert made.coding(np.dtype("f4")).failed is None


def test_attributes_of_a_codec_are_its_own(entry_points):
    class Slotted(Negated):
        __slots__ = ("level",)
        name = "slotted"

        def __init__(self, level=1):
            self.level, self.more = level, 2

        def options(self):
            return {"level": self.level}

    entry_points["slotted"] = Slotted
    made = codec("slotted:level=3")
    made.encode(VALUES)
    assert vars(made) == {"more": 2}
    for again in (copy.copy(made), pickle.loads(pickle.dumps(made.__getstate__()))):
        state = again.__getstate__() if isinstance(again, Slotted) else again
        assert state == ({"more": 2}, {"level": 3})


def test_bounds_of_complex_numbers_of_codecs_that_wrap_compiled_ones(entry_points):
    class Wrapping(type(codec("szp"))):
        name = "wrapping"

        def encode_payload(self, src, dst):
            return super().encode_payload(src, dst)

    rng = np.random.default_rng(1)
    array = rng.standard_normal(4000) + 1j * rng.standard_normal(4000)
    made = Wrapping(abs=1e-2)
    made._index = codec("szp")._index
    nbytes, bound, _ = made.encode_payload(array, np.empty(array.nbytes + 64, np.uint8))
    assert nbytes > 0
    assert 0.0099 < bound <= 1e-2
    assert type(made.of_parts()) is Wrapping


def test_example_of_a_codec_in_a_package_passes_its_test(tmp_path):
    """Files of CONTRIBUTING.md, as they stand there."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    files = re.findall(r"^```\w+\n# (\w+\.\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, content in files:
        (tmp_path / name).write_text(content)
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["name"] == "compcoll-half"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_half.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""Codecs of other packages: discovery, calls, and failures."""

import copy
import pickle
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import compcoll
from compcoll import codec, codecs, decode, inspect
from compcoll.cli.choose import Goal, ladders
from compcoll.codecs import base, decoding, registry, specs
from compcoll.core import _cpu
from compcoll.frame import HEADER_NBYTES

VALUES = np.sin(np.arange(1000) * 0.01).astype("f4")


class Negated(compcoll.Codec):
    """A third party's codec without kernels: complements all bytes, and drops the last one, a zero."""

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
    """Entry points of another package by key: a class, or the exception that its import raises."""
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
    specs.codec.cache_clear()
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
        found = specs.default_specs(np.dtype("i4"))
    assert "negated" in found
    assert not {"broken", "inverse"} & set(found)
    assert sorted(str(one.message).partition(": ")[0] for one in caught) == [
        "codec 'broken' of module 'other' is left out",
        "codec 'inverse' of module 'other' is left out",
    ]
    with pytest.warns(RuntimeWarning, match="'broken'"):
        assert not specs.takes("broken", np.dtype("i4"))
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
    """The files printed in CONTRIBUTING.md are a package whose test passes."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    files = re.findall(r"^```\w+\n# (\w+\.\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, content in files:
        (tmp_path / name).write_text(content)
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["name"] == "compcoll-half"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_half.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

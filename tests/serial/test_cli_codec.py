"""``compcoll codec`` with an error limit: the printed specs keep it, by NumPy's reckoning."""

import json
import re
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from terminal import words

import compcoll
from compcoll.cli.choose import Goal, ladders, sample, search
from compcoll.cli.measure import Subject

quick = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def field(dtype, shape, seed=0):
    """A noisy wave."""
    rng = np.random.default_rng(seed)
    x = np.sin(np.arange(np.prod(shape)) * 0.01) + 1e-2 * rng.standard_normal(np.prod(shape))
    if np.dtype(dtype).kind == "c":
        x = x * np.exp(1j * rng.standard_normal(x.size))
    return x.astype(dtype).reshape(shape)


def real(array):
    """Real and imaginary parts in a wider precision."""
    array = array.reshape(-1)
    parts = np.concatenate([array.real, array.imag]) if array.dtype.kind == "c" else array
    return parts.astype(np.longdouble)


def coded(spec, array, shape=None):
    frame = compcoll.codec(spec).encode(array.reshape(shape or array.shape))
    return compcoll.decode(frame).reshape(array.shape), compcoll.inspect(frame)


def errors(array, decoded):
    """Largest absolute error, and SNR."""
    a, b = real(array), real(decoded)
    noise, error = np.sum((a - b) ** 2), np.abs(a - b)
    if array.dtype.kind == "c":
        error = np.hypot(*error.reshape(2, -1))
    return error.max(), 10 * np.log10(np.sum(a**2) / noise) if noise else np.inf


DTYPES = ["f2", ml_dtypes.bfloat16, "f4", "f8", "c8", "c16"]
SHAPES = [(1,), (700,), (40, 33), (300, 3), (16, 12, 20)]


@quick
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(SHAPES),
    st.floats(-14, 0.5),
    st.booleans(),
    st.integers(0, 9),
    st.integers(-30, 30),
)
@example("f8", (300, 3), -9.0, True, 0, 0)
@example("f4", (16, 12, 20), -3.0, True, 0, 0)
def test_what_is_chosen_keeps_the_error(dtype, shape, exponent, by_error, seed, scale):
    array = field(dtype, shape, seed)
    array = (array * np.dtype(dtype).type(2.0 ** (scale // 3 if array.itemsize == 2 else scale))).astype(
        dtype
    )
    subject = Subject(array)
    goal = Goal(error=subject.peak * 10**exponent) if by_error else Goal(snr=-20 * exponent)
    results = [search(ladder, subject, subject, goal, 1e-4) for ladder in ladders(array, subject.peak, goal)]
    met = [found for found, is_met in results if is_met]
    assert {"lossless"} <= {found.codec for found in met}
    for found in met:
        decoded, info = coded(found.codec, array, found.coded_shape)
        largest, snr = errors(array, decoded)
        assert largest <= goal.error * (1 + 1e-15), found
        assert snr >= goal.snr - 1e-9, found
        assert found.max_error == pytest.approx(float(largest), rel=1e-12, abs=1e-300)
        assert info.codec == found.coded_as


@quick
@given(st.sampled_from(["f4", "f8", "c8"]), st.floats(-6, -0.5), st.booleans(), st.integers(0, 9))
def test_a_bit_less_does_not_keep_it(dtype, exponent, by_error, seed):
    array = field(dtype, (1500,), seed)
    subject = Subject(array)
    goal = Goal(error=subject.peak * 10**exponent) if by_error else Goal(snr=-20 * exponent)
    by_label = {ladder.label: ladder for ladder in ladders(array, subject.peak, goal)}
    found, _ = search(by_label["bfp"], subject, subject, goal, 1e-4)
    n = int(found.codec.removeprefix("bfp:bits="))
    assume(n > 2)
    largest, snr = errors(array, coded(f"bfp:bits={n - 1}", array)[0])
    assert largest > goal.error or snr < goal.snr
    found, _ = search(by_label["szp"], subject, subject, goal, 1e-4)
    bound = float(found.codec.removeprefix("szp:abs="))
    if by_error:
        assert goal.error * (1 - 1e-3) <= bound <= goal.error
    else:  # the next step of the ladder
        assert errors(array, coded(f"szp:abs={bound * 1.2!r}", array)[0])[1] < goal.snr


@quick
@given(st.lists(st.integers(1, 70), min_size=1, max_size=3), st.integers(1, 20000))
def test_sample_is_slabs_of_the_array(shape, nbytes):
    array = np.arange(np.prod(shape)).reshape(shape)
    taken = sample(array, nbytes)
    assert taken.ndim == array.ndim
    assert set(taken.reshape(-1)) <= set(array.reshape(-1))
    if array.nbytes <= nbytes:
        assert taken is array
        return
    assert np.unique(taken).size == taken.size
    (axis,) = [i for i, (a, b) in enumerate(zip(taken.shape, shape, strict=True)) if a != b] or [0]
    row = array.nbytes / shape[axis]
    assert taken.nbytes <= max(nbytes, 4 * row)
    assert taken.shape[axis] % 4 == 0 or taken.shape[axis] == shape[axis] < 4


def test_what_a_sample_does_not_show_is_seen(run, tmp_path, monkeypatch):
    """Large values that no slab of the sample contains still count: the chosen specs keep the error."""
    monkeypatch.setattr("compcoll.cli.codec._SEARCHED_NBYTES", 1 << 12)
    array = field("f4", (200, 50))
    seen = sample(np.arange(array.size).reshape(array.shape), 1 << 12)
    places = np.setdiff1d(np.arange(array.size), seen)[:2000]
    array.reshape(-1)[places] *= 1000
    np.save(tmp_path / "a.npy", array)
    about = json.loads(
        run("codec", tmp_path / "a.npy", "--error", "0.01", "--json", "--seconds", "1e-4").output
    )
    assert len(about["results"]) > 4
    for row in about["results"]:
        decoded, _ = coded(row["codec"], array, row["coded_shape"])
        assert errors(array, decoded)[0] <= 0.01, row


def chosen(run, *arguments):
    return json.loads(run("codec", *arguments, "--json", "--seconds", "1e-4").stdout)


def test_cheapest_comes_first(run, tmp_path):
    array = field("f4", (64, 64))
    np.save(tmp_path / "a.npy", array)
    about = chosen(run, tmp_path / "a.npy", "--rel", "1e-3")
    assert about["goal"] == {"error": pytest.approx(1e-3 * float(np.abs(array).max())), "snr": None}
    bits = [row["bits"] for row in about["results"]]
    assert bits == sorted(bits)
    first = about["results"][0]
    assert about["best"] == first["codec"]
    frame = compcoll.codec(first["codec"]).encode(array.reshape(first["coded_shape"]))
    assert first["bits"] == 8 * frame.nbytes / array.size
    assert first["ratio"] == array.nbytes / frame.nbytes
    assert [64, 64] in [row["coded_shape"] for row in about["results"]]


def test_limits_together_are_all_kept(run, tmp_path):
    np.save(tmp_path / "a.npy", field("f4", (3000,)))
    both = chosen(run, tmp_path / "a.npy", "--error", "1e-2", "--snr", "70")
    assert min(row["snr"] or np.inf for row in both["results"]) >= 70
    assert max(row["max_error"] for row in both["results"]) <= 1e-2


def test_table_ends_with_specs_to_paste(run, tmp_path):
    array = np.sin(np.add.outer(np.arange(64) * 0.02, np.arange(64) * 0.02)).astype("f4")
    np.save(tmp_path / "a.npy", array)
    result = run(
        "codec", tmp_path / "a.npy", "--snr", "60", "-c", "zfp:rate=8", "-c", "int4", "-c", "bfp:bits=12"
    )
    said = words(result.stdout)
    specs = re.findall(r'codec="([^"]+)"', said)
    assert specs == ["zfp:rate=8", "bfp:bits=12"]
    assert "for arrays of this shape, 64x64" in said
    for spec, shape in zip(specs, [(64, 64), (-1,)], strict=True):
        assert errors(array, coded(spec, array, shape)[0])[1] >= 60
    assert re.search(r"not that exact, at best: zfp:rate=8 \(.*int4 \(", said)


def test_beyond_all_lossy_codecs_there_is_lossless(run, tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).standard_normal(5000))
    result = run("codec", tmp_path / "a.npy", "--error", "1e-300", "--seconds", "1e-4")
    assert 'Cheapest: codec="lossless"' in result.output
    assert "no lossy codec keeps that error" in result.output
    for row in chosen(run, tmp_path / "a.npy", "--error", "1e-300")["results"]:
        assert compcoll.codec(row["codec"]).lossless


def test_an_error_above_all_values_is_pointed_out(run, tmp_path):
    np.save(tmp_path / "a.npy", 1e-6 * field("f4", (500,)))
    arguments = ("codec", tmp_path / "a.npy", "--seconds", "1e-4")
    assert "zeros would keep that error; see --rel" in run(*arguments, "--error", "1e-3").output
    assert "zeros would keep" not in run(*arguments, "--rel", "1e-3").output


def test_integers_are_coded_losslessly(run, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5000, dtype="i4"))
    result = run("codec", tmp_path / "a.npy", "--error", "3", "--seconds", "1e-4")
    assert "no lossy codec keeps that error" in result.output
    assert all(row["lossless"] for row in chosen(run, tmp_path / "a.npy", "--error", "3")["results"])


def test_values_that_are_not_finite_stay(run, tmp_path):
    array = field("f4", (5000,))
    array[[3, 700]] = np.nan, -np.inf
    np.save(tmp_path / "a.npy", array)
    assert "2 values are NaN or infinite" in run("codec", tmp_path / "a.npy", "--error", "0.01").output
    rows = chosen(run, tmp_path / "a.npy", "--error", "0.01")["results"]
    assert "szp" in [row["coded_as"] for row in rows]
    for row in rows:
        decoded = coded(row["codec"], array)[0]
        assert np.array_equal(decoded[[3, 700]], array[[3, 700]], equal_nan=True)
        assert np.abs(np.delete(decoded, [3, 700]) - np.delete(array, [3, 700])).max() <= 0.01


@pytest.mark.parametrize("value", [0.0, np.nan, 1e-310, 1.7e308])
@pytest.mark.parametrize("limit", [("--error", 1e-3), ("--rel", 1e-3), ("--snr", 40)])
def test_extreme_arrays(run, tmp_path, value, limit):
    array = np.full(2000, value) * np.linspace(0.5, 1, 2000)
    np.save(tmp_path / "a.npy", array)
    about = chosen(run, tmp_path / "a.npy", *limit)
    assert about["best"]
    decoded = coded(about["best"], array)[0]
    largest = np.nanmax(np.append(np.abs(decoded - array), 0))
    if limit[0] != "--snr":
        assert largest <= limit[1] * (1 if limit[0] == "--error" else np.nan_to_num(abs(array).max()))
    else:
        assert largest <= 0.02 * np.nan_to_num(abs(array).max())


def test_large_files_are_sampled(run, tmp_path):
    array = field("f4", (1024, 64))
    array.tofile(tmp_path / "a.bin")
    arguments = (tmp_path / "a.bin", "--dtype", "f4", "--shape", "1024x64", "--sample", "64K", "--snr", "50")
    assert "# tried on 25.0% of the array" in run("codec", *arguments).output
    assert (about := chosen(run, *arguments))["tried_nbytes"] == 1 << 16
    assert about["nbytes"] == array.nbytes


def test_array_of_an_archive(run, tmp_path):
    np.savez_compressed(tmp_path / "one.npz", b=field("f8", (40, 3)))
    about = chosen(run, tmp_path / "one.npz", "--snr", "40")
    assert (about["shape"], about["dtype"]) == ([40, 3], "float64")
    assert any("dim=3" in row["codec"] for row in about["results"])


@pytest.mark.parametrize("limit", [(), ("--error", "1e-3"), ("--snr", "70")])
def test_picture_of_curves(run, tmp_path, limit):
    np.save(tmp_path / "a.npy", field("f4", (64, 64)))
    picture = tmp_path / "codecs.svg"
    words = (*limit, "--seconds", "1e-4", "--out", picture)
    assert f"Figure: {picture}" in run("codec", tmp_path / "a.npy", *words).output
    for name in ("szp", "bfp", "zfp", "zfp, 2-d", "PSNR (dB)", "bits a value"):
        assert f"<!-- {name} -->" in picture.read_text(), "names of curves and axes"
    assert ("<!-- limit -->" in picture.read_text()) == ("--snr" in limit)


def test_blocks_of_smooth_fields_take_less_than_a_bit_a_value(run, tmp_path):
    x = np.sin(np.arange(32) * 0.05)
    array = (x[:, None, None] + x[:, None] + x).astype("f4")
    np.save(tmp_path / "a.npy", array)
    first = chosen(run, tmp_path / "a.npy", "--snr", "50")["results"][0]
    assert first["codec"].startswith("zfp:rate=0.")
    assert first["bits"] < 1
    assert errors(array, coded(first["codec"], array)[0])[1] >= 50


def test_missing_matplotlib_is_named(run, tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", field("f4", (40,)))
    monkeypatch.delitem(sys.modules, "compcoll.cli.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("codec", tmp_path / "a.npy", "--snr", "20", "--seconds", "1e-4", "--out", tmp_path / "a.png")
    assert result.exit_code == 1
    assert "pip install matplotlib" in words(result.output)
    assert "Cheapest" not in result.output  # nothing is measured in vain

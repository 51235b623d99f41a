"""Zarr arrays of formats 2 and 3 whose chunks are frames; with xarray, and read by another process."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import compcoll

zarr = pytest.importorskip("zarr", minversion="3")


import compcoll.numcodecs  # noqa: E402
import compcoll.zarr  # noqa: E402

ROOT = Path(__file__).parents[2]
DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "<M8[ns]", "<m8[s]", ">f4", ">i8"]


def values(dtype, shape=(30, 20, 11)):
    made = np.cumsum(np.random.default_rng(0).integers(-3, 4, shape), axis=1)
    return (made > 0) if dtype == "?" else made.astype(dtype)


def field(shape=(48, 40, 32)):
    x, y, z = np.meshgrid(*(np.linspace(0, 3, n, dtype="f4") for n in shape), indexing="ij")
    return np.sin(x + y) * np.cos(2 * z)


def create(path, data, spec="lossless", **more):
    codec = compcoll.zarr.Compcoll(spec)
    return zarr.create_array(path, data=data, serializer=codec, compressors=None, **more)


def frames_in(path):
    """Stored chunks of an array, by their keys."""
    return {p.name: p.read_bytes() for p in Path(path).rglob("*") if p.is_file() and p.name[0] not in ".z"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_format_3_returns_the_same_bits(tmp_path, dtype):
    data = values(dtype)
    array = create(tmp_path / "a.zarr", data, chunks=(16, 20, 4))
    found = zarr.open_array(tmp_path / "a.zarr", mode="r")[:]
    assert found.dtype == data.dtype.newbyteorder("=")
    assert np.array_equal(found, data)
    array[3:7, 2] = data[4:8, 3]
    data[3:7, 2] = data[4:8, 3].copy()
    assert np.array_equal(array[:], data)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [*DTYPES, "S5"])
def test_format_2_returns_the_same_bits(tmp_path, dtype, order):
    data = values(dtype)
    zarr.create_array(
        tmp_path / "a.zarr",
        data=data,
        chunks=(16, 20, 4),
        zarr_format=2,
        order=order,
        filters=None,
        compressors=compcoll.numcodecs.Compcoll(),
    )
    assert np.array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[:], data)


@pytest.mark.parametrize("spec", ["zfp:rate=16", "szp:abs=0.001", "bfp:bits=12", "int8", "lossless"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_are_the_frames_of_messages(tmp_path, spec, zarr_format):
    data = field()
    kind = (
        {"compressors": compcoll.numcodecs.Compcoll(spec)}
        if zarr_format == 2
        else {"serializer": compcoll.zarr.Compcoll(spec), "compressors": None}
    )
    zarr.create_array(tmp_path / "a.zarr", data=data, chunks=data.shape, zarr_format=zarr_format, **kind)
    frame = compcoll.codec(spec).encode(data)
    assert frame.tobytes() in frames_in(tmp_path / "a.zarr").values()
    assert np.array_equal(zarr.open_array(tmp_path / "a.zarr")[:], compcoll.decode(frame))
    assert compcoll.inspect(frame).codec != "raw"


def test_many_dimensions_and_none(tmp_path):
    for number, data in enumerate((values("f8", (3, 4, 5, 6, 7)), np.array(2.5), np.empty((0, 3)))):
        assert np.array_equal(create(tmp_path / str(number), data)[...], data)


def test_another_process_reads_by_the_entry_points(tmp_path):
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, cls in (
        ("zarr.codecs", compcoll.zarr.Compcoll),
        ("numcodecs.codecs", compcoll.numcodecs.Compcoll),
    ):
        module, _, name = points[group]["compcoll"].partition(":")
        assert getattr(import_module(module), name) is cls
    data = field()
    create(tmp_path / "a.zarr", data, "szp:abs=0.001", chunks=(16, 40, 32))
    code = "import zarr, numpy; numpy.save('a', zarr.open_array('a.zarr', mode='r')[:])"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    assert 0 < np.abs(np.load(tmp_path / "a.npy") - data).max() <= 0.001


def test_xarray(tmp_path):
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset({"u": (("x", "y", "z"), field()), "n": ("x", np.arange(48))})
    encoding = {"u": {"serializer": compcoll.zarr.Compcoll("zfp:rate=16"), "compressors": None}}
    data.to_zarr(tmp_path / "a.zarr", encoding=encoding, zarr_format=3, consolidated=False)
    with xarray.open_zarr(tmp_path / "a.zarr", consolidated=False) as found:
        assert 0 < float(abs(found.u - data.u).max()) < 1e-3
        assert found.n.equals(data.n)
    stored = sum(map(len, frames_in(tmp_path / "a.zarr" / "u").values()))
    assert stored < 0.6 * data.u.nbytes


def test_damage_and_wrong_settings_are_errors(tmp_path, monkeypatch):
    data = field()
    array = create(tmp_path / "a.zarr", data, chunks=data.shape)
    (chunk,) = (p for p in (tmp_path / "a.zarr" / "c").rglob("*") if p.is_file())
    sound = chunk.read_bytes()
    chunk.write_bytes(sound[:500] + bytes([sound[500] ^ 1]) + sound[501:])
    with pytest.raises(compcoll.FrameError, match="damaged"):
        array[:]
    chunk.write_bytes(compcoll.codec("lossless").encode(data[1:]).tobytes())
    # The values are not allocated: a frame of 1 MB may claim to hold 2 GiB.
    monkeypatch.setattr(compcoll, "decode", lambda frame: pytest.fail("decoded"))
    with pytest.raises(compcoll.FrameError, match="has 60160 values of float32, not 61440 of float32"):
        array[:]
    with pytest.raises(ValueError, match="unknown codec 'gzip'"):
        compcoll.zarr.Compcoll("gzip")
    with pytest.raises(TypeError, match="cannot hold"):
        zarr.create_array(
            tmp_path / "b.zarr", shape=3, dtype="S5", serializer=compcoll.zarr.Compcoll(), compressors=None
        )


def test_example(tmp_path):
    example = ROOT / "examples" / "zarr_array.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert re.search(r"^szp:abs=1e-3: [3-9]\.\d+x, largest error 0.000\d+$", done.stdout, re.MULTILINE), (
        done.stderr
    )

"""Arrays sent between Dask workers as frames: the serializer family alone, and in a cluster."""

import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import compcoll

distributed = pytest.importorskip("distributed")

from distributed.protocol import deserialize, serialize  # noqa: E402
from distributed.protocol.core import dumps, loads  # noqa: E402
from distributed.protocol.serialize import families, to_serialize  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402

import compcoll.dask  # noqa: E402

ROOT = Path(__file__).parents[2]
SERIALIZERS = ("compcoll", "dask", "pickle")
DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[ns]", "m8[s]", ">f4", "S3", "i4,f8"]


@pytest.fixture(autouse=True)
def registered():
    """Register the family as a worker does; restore all families after the test."""

    def register(codec="lossless", min_nbytes=0):
        compcoll.dask._Family(codec, min_nbytes).setup(worker=None)

    before = dict(families)
    register()
    yield register
    families.clear()
    families.update(before)


def carried(x):
    """Serialize an object to bytes and back; return the result and the family that was used."""
    header, _ = serialize(x, serializers=SERIALIZERS, on_error="raise")
    frames = dumps({"x": to_serialize(x)}, serializers=SERIALIZERS, on_error="raise")
    found = loads([bytes(frame) for frame in frames], deserializers=SERIALIZERS)["x"]
    return found, header.get("serializer")


def assert_same(found, x):
    assert type(found) is type(x)
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    assert found.tobytes() == x.tobytes()


def field(n=64):
    x, y = np.meshgrid(*(np.linspace(0, 3, n, dtype="f4"),) * 2, indexing="ij")
    return np.sin(x + y)


LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "T": lambda x: x.T,
    "reversed": lambda x: x[::-1] if x.ndim else x,
    "strided": lambda x: x[..., ::2] if x.ndim else x,
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape)),
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)),
    st.sampled_from(sorted(LAYOUTS)),
    st.booleans(),
)
def test_any_array_arrives_with_the_same_bits(made, layout, writeable):
    x = LAYOUTS[layout](made)
    if x.flags.writeable:
        x.flags.writeable = writeable
    found, family = carried(x)
    assert (family == "compcoll") == compcoll.dask._takes(x)
    assert_same(found, x)
    assert family == "dask" or found.flags.writeable == x.flags.writeable


def test_what_frames_hold_goes_as_frames_with_the_bytes_of_messages(registered):
    for x in (field(), field()[::2], np.asfortranarray(field()), field().astype(ml_dtypes.bfloat16)):
        found, family = carried(x)
        assert family == "compcoll"
        assert_same(found, x)
    registered("szp:abs=1e-3")
    header, (frame,) = serialize(field(), serializers=SERIALIZERS)
    assert bytes(frame) == compcoll.codec("szp:abs=1e-3").encode(field()).tobytes()
    assert 0 < np.abs(deserialize(header, [frame]) - field()).max() <= 1e-3
    assert np.array_equal(carried(np.arange(1000))[0], np.arange(1000))


@pytest.mark.parametrize(
    "x",
    [
        np.ma.masked_greater(field(), 0.5),
        field().astype(">f4"),
        field()[:3, :3],
        np.array([{"a": 1}, None]),
        np.full(5000, "text"),
        np.broadcast_to(np.float32(1), (200, 200)),
        b"1" * 20000,
    ],
    ids=["masked", "byte order", "small", "objects", "text", "broadcast", "bytes"],
)
def test_everything_else_goes_the_ordinary_way(registered, x):
    registered(min_nbytes=compcoll.dask.MIN_NBYTES)
    found, family = carried(x)
    assert family in ("dask", "pickle")
    assert type(found) is type(x)
    assert np.array_equal(found, x)


def test_collections_and_damage(monkeypatch):
    x = {"a": [field(), np.arange(3)], "b": (field(),)}
    found, _ = carried(x)
    assert np.array_equal(found["a"][0], x["a"][0])
    assert np.array_equal(found["b"][0], x["b"][0])
    header, (frame,) = serialize(field(), serializers=SERIALIZERS)
    damaged = bytearray(frame)
    damaged[500] ^= 1
    with pytest.raises(compcoll.FrameError, match="damaged"):
        deserialize(header, [damaged])
    # The values are not allocated: a frame of 1 MB may claim to hold 2 GiB.
    monkeypatch.setattr(compcoll, "decode", lambda frame: pytest.fail("decoded"))
    with pytest.raises(compcoll.FrameError, match="has 4096 values, not 64"):
        deserialize(header | {"shape": (8, 8)}, [frame])


def made():
    return field(200)


def arrived(x):
    """Largest error on this worker, the family that it requests, and its address."""
    worker = distributed.get_worker()
    return float(np.abs(x - field(200)).max()), worker.rpc.serializers, worker.address


def seen(client, source, target):
    x = client.submit(made, workers=[source], pure=False)
    error, asked, where = client.submit(arrived, x, workers=[target], pure=False).result(30)
    assert where == target
    return error, bool(asked)


def test_a_cluster_of_two_processes_and_a_worker_that_comes_later():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", protocol="tcp://", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        first, second = client.scheduler_info()["workers"]
        assert seen(client, first, second) == (0, False)
        compcoll.dask.enable(client)
        assert seen(client, first, second) == (0, True)
        compcoll.dask.enable(client, "szp:abs=1e-3")  # its errors tell frames from ordinary transfers
        cluster.scale(3)
        client.wait_for_workers(3, timeout=60)
        (third,) = set(client.scheduler_info()["workers"]) - {first, second}
        for source, target in ((first, second), (first, third), (third, second)):
            error, asked = seen(client, source, target)
            assert 0 < error <= 1e-3
            assert asked
        compcoll.dask.disable(client)
        assert seen(client, second, first) == (0, False)
        with pytest.raises(ValueError, match="unknown codec 'gzip'"):
            compcoll.dask.enable(client, "gzip")


def test_example():
    pytest.importorskip("dask.array")
    example = ROOT / "examples" / "dask_array.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert re.search(r"^equal: True$", done.stdout, re.MULTILINE), done.stderr

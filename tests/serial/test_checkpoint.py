"""Files of checkpoints, and ranks killed while they save."""

import ml_dtypes
import numpy as np
import pytest
from checkpoint_kills import main

import compcoll
from compcoll.checkpoint import file
from compcoll.cli.launch import find_mpiexec

NESTED = [("a", "i4"), ("b", [("c", "f8", (2, 3)), ("d", "S3")], (4,))]
FACTS = {"set": "step-000000000001-0000000000000001", "rank": 0}


def encoded(array, spec="lossless"):
    return file.encode({"u": array}, compcoll.codec(spec), FACTS, None)


@pytest.mark.parametrize(
    "dtype",
    [
        NESTED,
        [(("title", "a"), "i4"), ("b", "f2")],
        np.dtype([("a", "i1"), ("b", "f8")], align=True),
        ">f4",
        "M8[ns]",
        "U3",
        "?",
        "f2",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.int4,
    ],
)
@pytest.mark.parametrize("codec", ["lossless", "delta"])
def test_dtypes(dtype, codec):
    array = np.frombuffer(b"\1\2\0\0" * 270, "u1").copy()[: 5 * np.dtype(dtype).itemsize].view(dtype)
    found = file.decode(encoded(array, codec))["u"]
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_greater(np.arange(5.0), 3),
        np.array(["a", None]),
        np.zeros(3, [("a", "O")]),
        np.zeros(3, [("a", ml_dtypes.bfloat16)]),
        np.zeros(3, {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]}),
    ],
    ids=["masked", "objects", "field of objects", "field of bfloat16", "fields out of order"],
)
def test_arrays_that_would_not_come_back(array):
    with pytest.raises(TypeError, match="'u'"):
        encoded(array)


def test_every_flipped_bit_of_a_file(tmp_path):
    data = encoded(np.arange(3))
    for bit in range(8 * data.size):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(compcoll.FrameError):
            file.verify(data)
        data[bit // 8] ^= 1 << bit % 8
    data[4] = 1
    data.tofile(tmp_path / "rank-0.cck")
    with pytest.raises(compcoll.FrameError, match=r"version 1, is not .* version 2"):
        file.read_header(tmp_path / "rank-0.cck")


def test_killed_savers(monkeypatch):
    for key in ("PMI_RANK", "PMI_SIZE", "PMI_FD"):
        monkeypatch.delenv(key, raising=False)
    assert main(3, find_mpiexec()) > 0

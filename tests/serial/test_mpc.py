"""MPC against frozen streams of the authors' format, and the promises of every lossless codec."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_checks import (
    DTYPES,
    check_add,
    check_damage,
    check_frame,
    check_round_trip,
    decode_everywhere,
    payloads,
    samples,
)
from shared_data import shared

import compcoll
from compcoll.codecs.mpc import MPC
from compcoll.core import _cpu


def test_streams_of_the_format():
    for case in json.loads((shared("golden") / "mpc.json").read_text())["cases"]:
        array = np.frombuffer(bytes.fromhex(case["input"]), case["dtype"])
        assert array.size == case["n"]
        assert payloads(MPC(case["dim"]), array).hex() == case["output"], case["name"]
        assert check_round_trip(MPC(case["dim"]), array).hex() == case["output"], case["name"]


def test_streams_of_fields():
    data = shared("data")
    for name, expected in json.loads((shared("golden") / "mpc_fields.json").read_text()).items():
        file, dim = name.split(" dim=")
        payload = check_round_trip(MPC(int(dim)), np.fromfile(data / file, np.float32))
        assert len(payload) == expected["nbytes_out"]
        assert hashlib.sha256(payload).hexdigest() == expected["sha256"]


def reference(array: np.ndarray, dim: int) -> bytes:
    """Encode as csrc/mpc.h describes, word by word."""
    wide = array.dtype.name in {"int64", "uint64", "float64", "complex128"}
    word = np.dtype("<u8" if wide else "<u4")
    size = word.itemsize * 8
    raw = array.tobytes()
    words = np.frombuffer(raw + bytes(-len(raw) % word.itemsize), word)
    n = words.size
    header = n << 32 | (0x43504D00 if wide else 0x63706D00) | (dim - 1)
    bits, body = [], []
    for start in range(0, n, 1024):
        block = np.zeros(1024, word)
        part = words[start : start + 1024]
        block[: part.size] = part
        block[dim : part.size] = part[dim:] - part[:-dim] if part.size > dim else 0
        matrix = np.unpackbits(block.view(np.uint8), bitorder="little").reshape(-1, size, size)
        planes = np.packbits(matrix.transpose(0, 2, 1), bitorder="little").view(word)
        residual = planes.copy()
        residual[1:] -= planes[:-1]
        used = -(-part.size // size) * size
        bits.append(residual[:used] != 0)
        extra = residual[used : used + 1]
        body += [residual[:used][bits[-1]], extra[extra != 0]]
    bitmap = np.packbits(np.concatenate([*bits, []]).astype(bool), bitorder="little")
    return header.to_bytes(8, "little") + bitmap.tobytes() + b"".join(b.tobytes() for b in body)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_small_size(dtype):
    """Every small size equals the reference, for words of both sizes and bytes that do not fill a word."""
    every = range(131) if dtype.name in ("int8", "float32", "float64") else (0, 1, 2, 3, 33, 130)
    for n in (*every, 1023, 1025, 3333):
        arrays = samples(dtype, n, n)
        kind = list(arrays)[n % len(arrays)]
        dim = n % 32 + 1
        assert check_round_trip(MPC(dim), arrays[kind]) == reference(arrays[kind], dim), (n, kind, dim)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_every_dim(dtype):
    array = samples(np.dtype(dtype), 2500)["wave"]
    for dim in range(1, 33):
        assert check_round_trip(MPC(dim), array) == reference(array, dim), dim


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=9000), st.integers(1, 32), st.sampled_from(DTYPES))
def test_any_bytes(data, dim, dtype):
    array = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    assert check_round_trip(MPC(dim), array) == reference(array, dim)
    check_frame(MPC(dim), array)


def test_header_has_to_match_the_frame():
    array = samples(np.dtype(np.float32), 3000)["wave"]
    payload = payloads(MPC(2), array)
    assert decode_everywhere(MPC(3), payload, array)[0] == _cpu.BAD_STREAM
    assert decode_everywhere(MPC(2), payload, array[:-1])[0] == _cpu.BAD_STREAM


def test_spec():
    for dim in (0, 33, -1, 1.5, "x", True):
        with pytest.raises(ValueError, match=r"dim = .* is not an integer from 1 to 32"):
            MPC(dim)
    assert compcoll.codec("mpc").spec == "mpc"
    assert compcoll.codec("mpc:dim=3") == MPC(3)
    with pytest.raises(ValueError, match="dim = 40"):
        compcoll.codec("mpc:dim=40")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add(dtype):
    for n in (100, 1000, 5000):
        check_add(MPC(), (samples(dtype, n)["wave"].real * 0).astype(dtype))
    check_add(MPC(), np.repeat(samples(dtype, 500)["wave"], 40))


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.complex128], ids=str)
@pytest.mark.parametrize("kind", ["wave", "bits"])
def test_damage(dtype, kind):
    rng = np.random.default_rng(7)
    for n in (5, 1000, 5000):
        check_damage(MPC(2), samples(np.dtype(dtype), n)[kind], rng)

"""`float`: every bit pattern round-trips, with equal bytes on every level, and ratios are large enough."""

import hashlib
from itertools import product

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

from compcoll.codecs.float import Float
from compcoll.core import _cpu, dtypes

FLOATS = [d for d in DTYPES if d in dtypes.FLOATS]
CHUNK_NBYTES = 32768


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_small_size(dtype):
    for n in range(131):
        arrays = samples(dtype, n, n)
        check_round_trip(Float(), arrays[list(arrays)[n % len(arrays)]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_around_chunks(dtype):
    values = CHUNK_NBYTES // dtype.itemsize
    for n in (1000, values - 1, values, values + 1, 2 * values + 333):
        for array in samples(dtype, n, n).values():
            check_round_trip(Float(), array)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_every_bit_pattern(dtype):
    dtype = dtypes.BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    array = np.arange(65536, dtype=np.uint16)
    check_round_trip(Float(), array.view(dtype))
    check_round_trip(Float(), np.random.default_rng(1).permutation(array).view(dtype))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=9000), st.sampled_from(FLOATS))
def test_any_bytes(data, dtype):
    array = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    check_round_trip(Float(), array)
    check_frame(Float(), array)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=40),
    st.lists(st.integers(1, 2000), min_size=40, max_size=40),
    st.integers(0, 2**32 - 1),
)
def test_any_distribution_of_exponents(exponents, weights, seed):
    rng = np.random.default_rng(seed)
    p = np.array(weights[: len(exponents)], float)
    e = rng.choice(np.array(exponents, np.uint16), 5000, p=p / p.sum())
    array = (e << 7 | rng.integers(0, 128, e.size, np.uint16)).view(dtypes.BFLOAT16)
    check_round_trip(Float(), array)


def test_damaged_code_of_the_last_chunk():
    array = samples(np.dtype(np.float32), 9000)["noise"]
    payload = np.frombuffer(payloads(Float(), array), np.uint8)
    ends = payload[:8].view("<u4")
    rng = np.random.default_rng(3)
    for _ in range(300):
        bad = payload.copy()
        bad[rng.integers(0, 56) + int(ends[0]) * 8] = rng.integers(0, 256)
        decode_everywhere(Float(), bad.tobytes(), array)


def test_other_versions_are_refused(level):
    array = samples(np.dtype(np.float32), 3000)["noise"]
    payload = np.frombuffer(payloads(Float(), array), np.uint8)
    for params in ((0, 0), (2, 0), (1, 1)):
        status = _cpu.decode(
            _cpu.index("float"), 11, array.shape, params, payload, np.empty(array.nbytes, np.uint8)
        )
        assert status == _cpu.BAD_STREAM


def known(dtype: np.dtype) -> np.ndarray:
    """Uniform values in [-0.5, 0.5) in steps of 2^-16, from integers alone; every seventh one is zero."""
    steps = np.arange(20000, dtype=np.uint64) * np.uint64(6364136223846793005) >> np.uint64(48)
    values = (steps.astype(np.int64) - 32768) / 65536
    values[::7] = 0
    return values.astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "sha256"),
    [
        ("float16", "1bcea6630f2f095ba311ee85b40a9491a87debaf167cb4687b90cf1cb7fd8aa8"),
        ("bfloat16", "04dced412fb94e95c09b01944b5f685d2e6417bddcf60bcd54b05d95323d9581"),
        ("float32", "53cae27bdc99717826eb1c161d30fc255490f6f54a36d8ddbeffa5cc9734c52a"),
        ("float64", "d7e833029267eae6b2a84ae9c09afe75a89bc3c4b2d5121d0c2b1d896ce70ca5"),
    ],
)
def test_frozen_streams(dtype, sha256):
    array = known(dtypes.BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype))
    assert hashlib.sha256(payloads(Float(), array)).hexdigest() == sha256, "a change needs a new version"


@pytest.mark.parametrize(
    ("file", "least"), [("transformer_weights.bf16", 1.52), ("transformer_gradients.bf16", 1.48)]
)
def test_ratio(file, least):
    array = np.fromfile(shared("data") / file, dtypes.BFLOAT16)
    assert array.nbytes / check_frame(Float(), array).nbytes > least


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_add(dtype):
    for n in (3000, 20000):
        check_add(Float(), samples(dtype, n)["noise"])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_damage(dtype):
    rng = np.random.default_rng(7)
    for n, kind in product((100, 5000), ("noise", "sparse", "bits")):
        check_damage(Float(), samples(dtype, n)[kind], rng)

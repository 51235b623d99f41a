"""`lossless`: its choice of a codec, equal bits after decoding, and frames that name the chosen codec."""

import numpy as np
import pytest
from floats import on_every_level
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_checks import DTYPES, check_frame, samples

import compcoll
from compcoll.codecs.lossless import Lossless
from compcoll.core import _cpu, dtypes

X = np.linspace(0, 50, 40000)
NOISE = np.random.default_rng(0).standard_normal(40000)
# Ordinals as in csrc/lossless.h.
RAW, MPC, FLOAT = range(3)
POINTS = np.cumsum(np.random.default_rng(1).integers(-9, 9, (9000, 3)), 0) + np.array([0, 1 << 20, 1 << 28])


def choose(array):
    """Ordinal of the codec that is chosen for an array, and its parameter."""
    code, data = dtypes.code_of(array.dtype), array.reshape(-1).view(np.uint8)
    return _cpu.encode(Lossless._index, code, array.shape or (1,), (0, 0), data, np.empty(0, np.uint8))[2]


@pytest.mark.parametrize(
    ("array", "choice"),
    [
        (np.sin(X).astype(np.float32), (MPC, 1)),
        (np.exp(1j * X), (MPC, 2)),
        (NOISE.astype(np.float32), (FLOAT, 1)),
        (NOISE.astype(np.float16), (FLOAT, 1)),
        (NOISE, (FLOAT, 1)),
        (np.arange(40000), (MPC, 1)),
        (POINTS.astype(np.int32), (MPC, 3)),
        (np.frombuffer(np.random.default_rng(2).bytes(80000), np.int16), (RAW, 0)),
        (np.frombuffer(np.random.default_rng(2).bytes(80000), np.float16), (RAW, 0)),
        (np.empty(0), (RAW, 0)),
    ],
    ids=lambda v: str(v.dtype) if isinstance(v, np.ndarray) else "",
)
def test_choice(array, choice):
    names = {RAW: "raw", MPC: "mpc", FLOAT: "float"}
    assert set(on_every_level(choose, array)) == {choice}
    info = compcoll.inspect(check_frame(Lossless(), array))
    assert info.codec == names[choice[0]]
    assert info.bound == 0
    assert not info.fallback


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_small_size(dtype):
    for n in (*range(131), 5000):
        for array in samples(dtype, n, n).values():
            check_frame(Lossless(), array)


def test_choice_does_not_depend_on_alignment():
    raw = np.empty(4 * 40000 + 8, np.uint8)
    for offset in range(5):
        view = raw[offset : offset + 4 * 40000].view(np.float32)
        view[:] = np.sin(X)
        assert choose(view) == (MPC, 1)
        check_frame(Lossless(), view)


def test_sample_is_spread_over_the_array():
    array = np.frombuffer(np.random.default_rng(3).bytes(4 << 20), np.float32).copy()
    array[array.size // 4 :] = 1.5
    assert choose(array)[0] != RAW


PIECES = [X.astype(np.float32), NOISE.astype(np.float32), np.random.default_rng(4).bytes(1 << 15)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 1 << 21),
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.sampled_from(DTYPES),
    st.integers(1, 40),
)
def test_a_sample_leads_to_the_choice_of_the_whole(nbytes, kinds, dtype, row):
    """The sample alone decides the choice, also for arrays whose parts suit different codecs."""
    part = -(-nbytes // len(kinds))
    pieces = [np.resize(np.frombuffer(PIECES[kind], np.uint8), part) for kind in kinds]
    data = np.concatenate(pieces)[: nbytes // (row * dtype.itemsize) * row * dtype.itemsize]
    array = data.view(dtype)
    if not array.size:
        return
    gathered = sampled(data, dtype)
    for shaped in (array, array.reshape(-1, row)):
        given = 1, shaped.shape[-1] if shaped.ndim > 1 else 0
        code, n = dtypes.code_of(dtype), gathered.size // dtype.itemsize
        empty = np.empty(0, np.uint8)
        assert _cpu.encode(Lossless._index, code, (n,), given, gathered, empty)[2] == choose(shaped)


def sampled(data, dtype):
    """The sample of an array's bytes, as csrc/lossless.h defines it."""
    piece = 1024 * (8 if dtypes.real_dtype(dtype).itemsize == 8 else 4)
    n = max(min(data.size // (piece * 32), 32768 // piece), 1)
    piece = min(piece, data.size)
    step = (data.size - piece) // (n - 1) // 16 * 16 if n > 1 else 0
    return np.concatenate([data[k * step : k * step + piece] for k in range(n)])

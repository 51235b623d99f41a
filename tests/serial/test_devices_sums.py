"""Kernels that no codec launches on an array alone: sums, conversions, and checksums."""

import kernel_jobs
import numpy as np
import pytest
from executor import Executor, Memory, compiler, library_path
from floats import FLOATS, same, sum_of_frames, values
from kernel_jobs import CHECKSUM, Batch, problem

from compcoll import codec, inspect
from compcoll.codecs.base import SLACK
from compcoll.core import _cpu, dtypes
from compcoll.devices import kernels
from compcoll.frame import HEADER_NBYTES

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")


@pytest.fixture
def executor():
    return Executor(library_path(), max_grid=12)


def place(array, shift=0):
    memory = Memory(array.nbytes, shift)
    memory.data[:] = array.reshape(-1).view(np.uint8)
    return memory


def add(executor, pairs):
    """Add pairs of frames; return the sums, or statuses, and the problems of the terms."""
    infos = [tuple(map(inspect, pair)) for pair in pairs]
    payloads = [tuple(place(f[HEADER_NBYTES:]) for f in pair) for pair in pairs]
    outs = [Memory(HEADER_NBYTES + a.nbytes + SLACK) for a, _ in infos]
    addresses = [tuple(m.address for m in pair) for pair in payloads]
    sums, terms = kernel_jobs.add(executor, infos, addresses, [m.address for m in outs])
    assert all(m.untouched() for m in (*outs, *(m for pair in payloads for m in pair)))
    sizes = sums.results["nbytes"].tolist()
    flat = [a for a, _ in infos] + [b for _, b in infos]
    problems = [problem(i, r) for i, r in zip(flat, terms.results, strict=True)]
    return [m.data[: HEADER_NBYTES + n] if n >= 0 else n for m, n in zip(outs, sizes, strict=True)], problems


@pytest.mark.parametrize("bound", [1e-3, 0.5, 1e-7])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_frames_are_those_of_the_host(executor, bound, dtype):
    """Sums equal the host's, also with raw blocks in a term, integers beyond 32 bits, and several tiles."""
    real, pairs = dtypes.real_dtype(dtype), []
    for n in (1, 31, 32, 33, 1001, 9000):
        a, b = values(dtype, n, n), values(dtype, n, n + 1)
        if n > 200:
            a.view(real)[70], b.view(real)[130], b.view(real)[200] = np.nan, np.inf, -np.inf
            a.view(real)[200] = np.inf
            a.view(real)[300:310] = b.view(real)[300:310] = min(bound * 2.0**31, 3e4)
        frames = [codec(f"szp:abs={bound}").encode(x) for x in (a, b)]
        if all(inspect(f).codec == "szp" for f in frames):
            pairs.append(frames)
    assert pairs or bound < 1e-3
    found, problems = add(executor, pairs) if pairs else ([], [])
    assert problems == [None] * 2 * len(pairs)
    for frame, pair in zip(found, pairs, strict=True):
        expected = sum_of_frames(*pair)
        assert isinstance(frame, int) if expected is None else same(frame, expected)


def test_a_damaged_term_is_noticed(executor):
    """Only the damaged term is reported, and random payloads are added within bounds."""
    frames = [codec("szp:abs=1e-3").encode(values(np.dtype("f4"), 300, seed)) for seed in range(4)]
    pairs = [frames[:2], frames[2:]]
    pairs[1][1][HEADER_NBYTES + 50] ^= 4
    found, problems = add(executor, pairs)
    assert same(found[0], sum_of_frames(*pairs[0]))
    assert [p is None for p in problems] == [True, True, True, False]
    rng = np.random.default_rng(2)
    for dtype in ("f2", "f4", "f8"):
        pair = [codec("szp:abs=1e-2").encode(values(np.dtype(dtype), 517, k), checksum=False) for k in (0, 1)]
        for frame in pair:
            frame[HEADER_NBYTES:] = rng.integers(0, 256, frame.size - HEADER_NBYTES, np.uint8)
        found, problems = add(executor, [pair])
        assert found[0] < 0 or problems == [None, None]


def converted(executor, array, dtype):
    """Convert an array by a kernel, at an aligned address and one element after it."""
    found = []
    (kernel,) = kernels.converters(array.dtype, dtype)
    for first in (0, 1):
        source = place(array[first:], first * array.itemsize)
        out = Memory((array.size - first) * dtype.itemsize, first * dtype.itemsize)
        batch = Batch(executor, 1)
        batch.jobs["src"], batch.jobs["dst"], batch.jobs["n"] = (
            source.address,
            out.address,
            array.size - first,
        )
        batch.upload()
        batch.launch(kernel)
        batch.finish()
        assert out.untouched()
        found.append(out.data.view(dtype))
    assert same(found[0][1:], found[1])
    return found[0]


@pytest.mark.parametrize("dtype", [np.dtype("f2"), dtypes.BFLOAT16], ids=str)
def test_16_bit_floats_in_accumulators(executor, dtype):
    """Every 16-bit float is widened exactly; values between and next to them are rounded as by NumPy."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = halves.astype("f4")
    assert same(converted(executor, halves, np.dtype("f4")), wide)
    steps = [-0x1001, -0x1000, -0xFFF, -1, 0, 1, 0xFFF, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xDEAD]
    near = wide[::5].view(np.uint32).astype(np.int64)[:, None] + steps
    floats = (near.ravel() & 0xFFFFFFFF).astype(np.uint32).view("f4")
    nan = np.isnan(floats)
    found = converted(executor, floats, dtype)
    with np.errstate(over="ignore"):
        assert same(found[~nan], floats[~nan].astype(dtype))
    assert np.isnan(found[nan].astype("f4")).all()
    assert same(np.signbit(found), np.signbit(floats))


def test_the_checksum_of_any_bytes_at_any_address(executor):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in (1, 2, 3, 4, 7, 16, 63, 64, 65, 4099)]
    for shift in (0, 1, 4, 15):
        memories = [place(a, shift) for a in arrays]
        made = Batch(executor, len(arrays))
        made.jobs["src"], made.jobs["nbytes"] = [m.address for m in memories], [a.size for a in arrays]
        made.results["wanted"] = 1
        made.upload()
        made.launch(CHECKSUM)
        made.finish()
        assert made.results["checksum"].tolist() == [_cpu.checksum(a) for a in arrays]

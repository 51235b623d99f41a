"""Sums of two frames on a device, run by the executor: bytes and bounds are those of the CPU."""

import numpy as np
import pytest
from executor import Executor, Memory, library_path
from floats import FLOATS, same, sum_of_frames, values
from test_devices_code import place

from benchmarks import kernel_jobs
from benchmarks.kernel_jobs import problem
from compcoll import codec, inspect
from compcoll.codecs.base import SLACK
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")


@pytest.fixture(scope="module")
def device():
    return Executor(LIBRARY)


def add_on(device, pairs):
    """(frames or statuses, terms' problems)."""
    infos = [tuple(map(inspect, pair)) for pair in pairs]
    payloads = [tuple(place(f[HEADER_NBYTES:]) for f in pair) for pair in pairs]
    outs = [Memory(HEADER_NBYTES + a.nbytes + SLACK) for a, _ in infos]
    addresses = [tuple(m.address for m in pair) for pair in payloads]
    sums, terms = kernel_jobs.add(device, infos, addresses, [m.address for m in outs])
    assert all(m.untouched() for m in (*outs, *(m for pair in payloads for m in pair)))
    sizes = sums.results["nbytes"].tolist()
    flat = [a for a, _ in infos] + [b for _, b in infos]
    problems = [problem(i, r) for i, r in zip(flat, terms.results, strict=True)]
    return [m.data[: HEADER_NBYTES + n] if n >= 0 else n for m, n in zip(outs, sizes, strict=True)], problems


def check(device, pairs):
    found, problems = add_on(device, pairs)
    assert problems == [None] * 2 * len(pairs)
    for frame, pair in zip(found, pairs, strict=True):
        expected = sum_of_frames(*pair)
        if expected is None:
            assert isinstance(frame, int)
        else:
            assert same(frame, expected), (pair[0].size, inspect(expected))


@pytest.mark.parametrize("bound", ["1e-3", "0.5", "1e-30", "1e-7"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_frames_of_sums_are_those_of_the_cpu(device, bound, dtype):
    """With blocks stored unchanged in either term, and integers that leave 32 bits."""
    real = dtypes.real_dtype(dtype)
    pairs = []
    for n in (1, 31, 32, 33, 130, 1001):
        a, b = values(dtype, n, n), values(dtype, n, n + 1)
        if n > 200:
            a.view(real)[70], b.view(real)[130], b.view(real)[200] = np.nan, np.inf, -np.inf
            a.view(real)[200] = np.inf
            large = min(float(bound) * 2.0**31, 3e4)
            a.view(real)[300:310] = b.view(real)[300:310] = large
        frames = [codec(f"szp:abs={bound}").encode(x) for x in (a, b)]
        if all(inspect(f).codec == "szp" for f in frames):
            pairs.append(frames)
    if pairs:
        check(device, pairs)


@pytest.mark.parametrize("seed", range(1, 5))
def test_sums_of_several_tiles_in_any_order(seed):
    pairs = []
    for n in (9000, 20001):
        a, b = values(np.dtype("f4"), n, n), values(np.dtype("f4"), n, n + 1)
        a[5000:5040] = np.nan
        pairs.append([codec("szp:abs=1e-2").encode(x) for x in (a, b)])
    assert {inspect(frame).codec for pair in pairs for frame in pair} == {"szp"}
    check(Executor(LIBRARY, max_grid=12, seed=seed), pairs)


def test_a_damaged_term_is_noticed(device):
    frames = [codec("szp:abs=1e-3").encode(values(np.dtype("f4"), 300, seed)) for seed in range(4)]
    pairs = [frames[:2], frames[2:]]
    pairs[1][1][HEADER_NBYTES + 50] ^= 4
    found, problems = add_on(device, pairs)
    assert same(found[0], sum_of_frames(*pairs[0]))
    assert [p is None for p in problems] == [True, True, True, False]


def test_any_payload_stays_within_bounds(device):
    rng = np.random.default_rng(2)
    for dtype in ("f2", "f4", "f8"):
        pair = [codec("szp:abs=1e-2").encode(values(np.dtype(dtype), 517, k), checksum=False) for k in (0, 1)]
        for frame in pair:
            payload = frame[HEADER_NBYTES:]
            payload[:] = rng.integers(0, 256, payload.size, np.uint8)
        found, problems = add_on(device, [pair])
        assert found[0] < 0 or problems == [None, None]

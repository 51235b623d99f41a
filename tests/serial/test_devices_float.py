"""`float` on a device: its frames, values and sums are those of the CPU, bit for bit."""

import numpy as np
import pytest
from executor import Executor, library_path
from floats import FLOATS, same, values
from test_devices_code import decode, encode

from compcoll import codec, inspect
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
SIZES = (1, 5, 63, 64, 65, 4095, 4096, 4097, 8200, 16383, 16385, 33000)


def patterns(dtype, n):
    """Planes of every form: coded with few and with many escapes, bits, constant ones, noise."""
    rng = np.random.default_rng(n)
    real = dtypes.real_dtype(dtype)
    count = n * (2 if dtype.kind == "c" else 1)
    noise = rng.integers(0, 256, count * real.itemsize, np.uint8).view(real)
    wide = (rng.standard_normal(count) * 2.0 ** rng.integers(-12, 13, count)).astype(real)
    rare = np.where(rng.random(count) < 0.02, noise, (0.02 * rng.standard_normal(count)).astype(real))
    some = [noise, wide, rare, np.full(count, 1.5).astype(real), rng.integers(0, 9, count).astype(real)]
    return [x.astype(real).view(dtype) for x in some] + [values(dtype, n)]


def frames_of(dtype):
    made = [codec("float").encode(x) for n in SIZES for x in patterns(dtype, n)]
    made = [f for f in made if inspect(f).codec == "float"]
    assert len(made) > 20
    return made


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.exhaustive(but=3)
def test_frames_are_those_of_the_cpu(dtype, seed):
    arrays = [x for n in SIZES for x in patterns(dtype, n)][seed::4]
    arrays.append(np.concatenate([x[:70000] for x in patterns(dtype, 20000)]))
    frames, _ = encode(Executor(LIBRARY, max_grid=20, seed=seed), "float", arrays)
    fitting = 0
    for array, frame in zip(arrays, frames, strict=True):
        expected = codec("float").encode(array)
        fits = inspect(expected).codec == "float"
        assert same(frame, expected) if fits else frame == _cpu.TOO_LARGE, array.size
        fitting += fits
    assert fitting > 4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_are_those_of_the_cpu(dtype, seed):
    frames = frames_of(dtype)[seed::3]
    decoded, problems = decode(Executor(LIBRARY, seed=seed), frames)
    assert problems == [None] * len(frames)
    for frame, array in zip(frames, decoded, strict=True):
        assert same(array, codec("float").decode(frame).reshape(-1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_are_those_of_the_cpu(dtype):
    """But for which NaN a sum is, where one is."""
    frames = frames_of(dtype)[::3]
    sums = accumulator_dtype(dtype)
    starts = [np.linspace(-3, 5, inspect(f).size).astype(sums) for f in frames]
    found, problems = decode(Executor(LIBRARY), frames, starts)
    assert problems == [None] * len(frames)
    real = dtypes.real_dtype(sums)
    for frame, start, total in zip(frames, starts, found, strict=True):
        with np.errstate(invalid="ignore"):
            expected = decode_add(frame, start.copy()).view(real)
        missing = np.isnan(expected)
        assert np.array_equal(np.isnan(total.view(real)), missing)
        assert same(np.where(missing, 0, total.view(real)), np.where(missing, 0, expected))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_damage_is_survived_and_told_as_the_cpu_does(dtype):
    rng = np.random.default_rng(5)
    device = Executor(LIBRARY, max_grid=2)
    refused = 0
    for frame in frames_of(np.dtype(dtype))[::4]:
        info = inspect(frame)
        bare = codec("float").encode(codec("float").decode(frame), checksum=False)
        payload = bare[HEADER_NBYTES:]
        for _ in range(3):
            payload[rng.integers(0, min(payload.size, 90))] ^= 1 << rng.integers(0, 8)
            out = np.zeros(info.size, dtype)
            sound = codec("float").decode_payload(info, payload, out) == 0
            decoded, problems = decode(device, [bare])
            assert (problems == [None]) == sound
            assert not sound or same(decoded[0], out)
            refused += not sound
    assert refused > 10

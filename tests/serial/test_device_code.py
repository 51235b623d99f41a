"""The GPU's code, run on the CPU by an executor: its bytes are those of the CPU's codecs."""

import numpy as np
import pytest

from compcoll import _cpu, codec, dtypes, inspect
from compcoll.codecs.base import SLACK, accumulator_dtype
from compcoll.devices import batch, kernels
from compcoll.devices.batch import Block
from compcoll.frame import HEADER_NBYTES
from executor import Executor, Memory, build

LIBRARY = build()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
FLOATS = sorted(dtypes.FLOATS, key=dtypes.code_of)
SIZES = [1, 2, 3, 4, 5, 31, 32, 63, 127, 128, 129, 130, 515, 1100, 2049]
SPECS = [
    *(f"zfp:rate={rate}" for rate in (2.25, 5, 8, 11.3, 16, 20, 24, 31, 32)),
    "int8", "int8:block=32,rounding=stochastic,seed=81985529216486895", "int4", "int4:block=256",
    "int4:block=32,rounding=stochastic", "fp8:block=128", "fp8:rounding=stochastic,seed=7",
]  # fmt: skip
WIDE = [f"zfp:rate={rate}" for rate in (3, 33, 40.5, 48, 55, 64)]


@pytest.fixture(scope="module")
def device():
    return Executor(LIBRARY)


def values(dtype, n, seed=0):
    """Values of many magnitudes, zeros, and blocks of nothing but zeros and subnormals among them."""
    rng = np.random.default_rng(seed)
    real = dtypes.real_dtype(dtype)
    count = n * (2 if dtype.kind == "c" else 1)
    x = np.cumsum(rng.standard_normal(count)) * 2.0 ** np.repeat(rng.integers(-6, 6, -(-count // 64)), 64)[:count]
    x[rng.random(count) < 0.1] = 0
    x[8:16] = 0
    with np.errstate(over="ignore"):
        return x.astype(real).view(dtype)


def place(array, shift=0):
    memory = Memory(array.nbytes, shift)
    memory.data[:] = array.reshape(-1).view(np.uint8)
    return memory


def encode(device, name, arrays, shift=0, **options):
    """(frames or statuses, results) of a batch."""
    sources = [place(a, shift) for a in arrays]
    outs = [Memory(HEADER_NBYTES + a.nbytes + SLACK) for a in arrays]
    blocks = [Block(m.address, a.dtype, a.shape) for m, a in zip(sources, arrays, strict=True)]
    done = batch.encode(device, codec(name), blocks, [m.address for m in outs], **options)
    assert all(m.untouched() for m in (*sources, *outs))
    sizes = done.results["nbytes"].tolist()
    return [m.data[: HEADER_NBYTES + n] if n >= 0 else n for m, n in zip(outs, sizes, strict=True)], done.results


def decode(device, frames, adding=None, shift=0):
    """(arrays, problems) of a batch of frames."""
    infos = [inspect(f) for f in frames]
    payloads = [place(f[HEADER_NBYTES:]) for f in frames]
    assert all(map(batch.size_is_sound, infos))
    kinds = [accumulator_dtype(i.dtype) if adding is not None else i.dtype for i in infos]
    outs = [Memory(i.size * k.itemsize, shift) for i, k in zip(infos, kinds, strict=True)]
    if adding is not None:
        for out, start in zip(outs, adding, strict=True):
            out.data[:] = start.view(np.uint8)
    done = batch.decode(device, infos, [m.address for m in payloads], [m.address for m in outs], adding is not None)
    assert all(m.untouched() for m in (*payloads, *outs))
    arrays = [m.data.view(k) for m, k in zip(outs, kinds, strict=True)]
    return arrays, [batch.problem(i, r) for i, r in zip(infos, done.results, strict=True)]


def same(a, b):
    return np.array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))


def check(device, name, arrays, shift=0):
    """Frames, values and sums of a batch are those of the CPU, bit for bit."""
    frames, _ = encode(device, name, arrays, shift)
    expected = [codec(name).encode(a) for a in arrays]
    fitting = [i for i, f in enumerate(expected) if inspect(f).codec == codec(name).name]
    for i in range(len(arrays)):
        if i in fitting:
            assert same(frames[i], expected[i]), (name, arrays[i].dtype, arrays[i].size)
        else:
            assert isinstance(frames[i], int), (name, arrays[i].dtype, arrays[i].size)
    if not fitting:
        return
    arrays, frames = [arrays[i] for i in fitting], [expected[i] for i in fitting]
    decoded, problems = decode(device, frames, shift=shift)
    assert problems == [None] * len(frames)
    for frame, values_ in zip(frames, decoded, strict=True):
        assert same(values_, codec(name).decode(frame).reshape(-1))
    starts = [np.linspace(-3, 5, a.size).astype(accumulator_dtype(a.dtype)) for a in arrays]
    sums, _ = decode(device, frames, starts, shift)
    from compcoll.codecs.base import decode_add

    for frame, start, total in zip(frames, starts, sums, strict=True):
        assert same(total, decode_add(frame, start.copy()))


@pytest.mark.parametrize("name", [*SPECS, *WIDE])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bytes_are_those_of_the_cpu(device, name, dtype):
    if name in WIDE and dtypes.real_dtype(dtype).itemsize != 8:
        pytest.skip("a rate of float64")
    check(device, name, [values(dtype, n, n) for n in SIZES])


@pytest.mark.parametrize("name", ["zfp:rate=8", "zfp:rate=16", "zfp:rate=11", "int8", "int4:block=32", "fp8"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_addresses_that_are_not_multiples_of_16(device, name, dtype):
    arrays = [values(dtype, n, n) for n in (5, 64, 301)]
    check(device, name, arrays, shift=dtypes.real_dtype(dtype).itemsize)

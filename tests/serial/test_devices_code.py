"""The GPU's code, run on the CPU by an executor: its bytes are those of the CPU's codecs."""

import subprocess
import sys

import numpy as np
import pytest
from executor import Executor, Memory, library_path
from floats import FLOATS, same, values

from benchmarks import kernel_jobs
from benchmarks.kernel_jobs import CHECKSUM, Batch, Block, problem
from compcoll import codec, inspect
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import _cpu, dtypes
from compcoll.devices import kernels
from compcoll.frame import HEADER_NBYTES

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
SIZES = [1, 2, 3, 4, 5, 31, 32, 63, 127, 128, 129, 130, 515, 1100, 2049]
SPECS = [
    *(f"zfp:rate={rate}" for rate in (2.25, 5, 8, 11.3, 16, 20, 24, 31, 32)),
    "mpc",
    "mpc:dim=5",
    "szp:abs=1e-3",
    "szp:abs=0.5",
    "szp:abs=1e-30",
    "szp:abs=3",
    "szp",
    "szp:rel=1e-7",
    "szp:rel=0.3",
    "szp:rel=1e-300",
    "int8",
    "bfp:bits=2",
    "bfp:bits=7",
    "bfp:bits=24,dim=3",
    "bfp:bits=9,dim=32,rounding=stochastic,seed=81985529216486895",
    "int8:block=32,rounding=stochastic,seed=81985529216486895",
    "int4",
    "int4:block=256",
    "int4:block=32,rounding=stochastic",
    "fp8:block=128",
    "fp8:rounding=stochastic,seed=7",
]
WIDE = [f"zfp:rate={rate}" for rate in (3, 33, 40.5, 48, 55, 64)]


@pytest.fixture(scope="module")
def device():
    return Executor(LIBRARY)


def place(array, shift=0):
    memory = Memory(array.nbytes, shift)
    memory.data[:] = array.reshape(-1).view(np.uint8)
    return memory


def encode(device, name, arrays, shift=0):
    """(frames or statuses, results) of a batch."""
    sources = [place(a, shift) for a in arrays]
    outs = [Memory(HEADER_NBYTES + a.nbytes + SLACK) for a in arrays]
    blocks = [Block(m.address, a.dtype, a.shape) for m, a in zip(sources, arrays, strict=True)]
    done = kernel_jobs.encode(device, codec(name), blocks, [m.address for m in outs])
    assert all(m.untouched() for m in (*sources, *outs))
    sizes = done.results["nbytes"].tolist()
    return [
        m.data[: HEADER_NBYTES + n] if n >= 0 else n for m, n in zip(outs, sizes, strict=True)
    ], done.results


def decode(device, frames, adding=None, shift=0):
    """(arrays, problems) of a batch of frames."""
    infos = [inspect(f) for f in frames]
    payloads = [place(f[HEADER_NBYTES:]) for f in frames]
    kinds = [accumulator_dtype(i.dtype) if adding is not None else i.dtype for i in infos]
    # As far from a multiple of 16, in elements, where accumulators are wider.
    outs = [
        Memory(i.size * k.itemsize, shift * k.itemsize // i.dtype.itemsize)
        for i, k in zip(infos, kinds, strict=True)
    ]
    if adding is not None:
        for out, start in zip(outs, adding, strict=True):
            out.data[:] = start.view(np.uint8)
    done = kernel_jobs.decode(
        device, infos, [m.address for m in payloads], [m.address for m in outs], adding is not None
    )
    assert all(m.untouched() for m in (*payloads, *outs))
    arrays = [m.data.view(k) for m, k in zip(outs, kinds, strict=True)]
    return arrays, [problem(i, r) for i, r in zip(infos, done.results, strict=True)]


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
    aligned = shift % dtypes.real_dtype(arrays[0].dtype).itemsize == 0  # others are added on the host
    sums, _ = decode(device, frames, starts, shift if aligned else 0)
    for frame, start, total in zip(frames, starts, sums, strict=True):
        assert same(total, decode_add(frame, start.copy()))


@pytest.mark.parametrize("name", [*SPECS, *WIDE])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bytes_are_those_of_the_cpu(device, name, dtype):
    if name in WIDE and dtypes.real_dtype(dtype).itemsize != 8:
        pytest.skip("a rate of float64")
    check(device, name, [values(dtype, n, n) for n in SIZES])


@pytest.mark.parametrize(
    "name", ["zfp:rate=8", "zfp:rate=16", "zfp:rate=11", "int8", "int4:block=32", "fp8", "bfp"]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_addresses_that_are_not_multiples_of_16(device, name, dtype):
    arrays = [values(dtype, n, n) for n in (5, 64, 301)]
    check(device, name, arrays, shift=dtypes.real_dtype(dtype).itemsize)


@pytest.mark.parametrize("name", ["zfp:rate=8", "zfp:rate=13", "int8", "int4", "fp8", "bfp:bits=5"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_a_codec_cannot_carry_is_refused_alone(device, name, dtype):
    """Every array of a batch has its own answer."""
    real = dtypes.real_dtype(dtype)
    arrays = [values(dtype, 200, seed) for seed in range(5)]
    for array, bad in zip(arrays, (np.nan, np.inf, -np.inf), strict=False):
        array.view(real)[137] = bad
    if name.startswith("zfp") and real.itemsize == 4:
        arrays[3].view(real)[4:8] = 2.0**-99
    frames, results = encode(device, name, arrays)
    expected = [inspect(codec(name).encode(a)) for a in arrays]
    assert results["nbytes"][:3].tolist() == [_cpu.NONFINITE] * 3
    if expected[3].fallback:
        assert frames[3] == _cpu.UNREPRESENTABLE
    assert same(frames[4], codec(name).encode(arrays[4]))


@pytest.mark.parametrize(
    "name", ["zfp:rate=8", "zfp:rate=16", "zfp:rate=29", "int8", "int4:block=32", "fp8", "bfp"]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_bit_patterns(device, name, dtype):
    """Of every exponent, subnormals too."""
    rng = np.random.default_rng(7)
    real = dtypes.real_dtype(dtype)
    mantissa = 7 if real == dtypes.BFLOAT16 else np.finfo(real).nmant
    arrays = []
    for top in range(8 * real.itemsize - 1 - mantissa):
        words = rng.integers(0, 2**63, 200, np.uint64) >> np.uint64(64 - (mantissa + top + 1))
        words |= rng.integers(0, 2, 200, np.uint64) << np.uint64(8 * real.itemsize - 1)
        x = words.astype(f"u{real.itemsize}").view(real)
        arrays.append(np.where(np.isfinite(x), x, real.type(1)).astype(real).view(dtype))
    check(device, name, arrays)


@pytest.mark.parametrize("name", ["zfp:rate=8", "zfp:rate=16", "zfp:rate=32", "int8", "fp8", "bfp:bits=6"])
@pytest.mark.parametrize("dtype", ["f4", "c8", "f8"])
def test_subnormals_survive_what_flushes_them(device, name, dtype):
    """Beside values just large enough for zfp, whose products and quotients are subnormal too."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(600) * 2.0 ** rng.integers(-149, -120, 600)
    x[::4] = 2.0**-98 * rng.uniform(1, 2, 150)
    real = dtypes.real_dtype(np.dtype(dtype))
    check(device, name, [x.astype(real).view(dtype), (x * 2.0**-20).astype(real).view(dtype)])


def test_the_checksum_of_any_bytes_at_any_address(device):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in (1, 2, 3, 4, 7, 16, 63, 64, 65, 4099)]
    for shift in (0, 1, 4, 15):
        memories = [place(a, shift) for a in arrays]
        made = Batch(device, len(arrays))
        made.jobs["src"], made.jobs["nbytes"] = [m.address for m in memories], [a.size for a in arrays]
        made.results["wanted"] = 1
        made.upload()
        made.launch(CHECKSUM)
        made.finish()
        assert made.results["checksum"].tolist() == [_cpu.checksum(a) for a in arrays]


@pytest.mark.parametrize("name", ["szp:rel=1e-3", "szp:rel=1e-9"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_relative_bound_takes_the_range_of_what_is_finite(device, name, dtype):
    """Nothing finite, values next to infinity, equal ones and subnormal ones, alone and in one batch."""
    real = dtypes.real_dtype(dtype)
    about = np.finfo(np.float32 if real == dtypes.BFLOAT16 else real)
    arrays = [values(dtype, 300, seed) for seed in range(8)]
    parts = [array.view(real) for array in arrays]
    parts[0][:] = np.nan
    parts[1][[3, 77, 200]] = np.nan, np.inf, -np.inf
    parts[2][:2] = real.type(about.max / 2), real.type(-about.max / 2)
    parts[3][:] = -7.25
    parts[4][:] = 0
    parts[5][:] = np.linspace(-3, 9, parts[5].size) * float(about.smallest_subnormal) * 1e3
    parts[6][:] = np.where(np.arange(parts[6].size) % 2, -0.0, 0.0)
    check(device, name, arrays)


@pytest.mark.parametrize("name", ["zfp:rate=8", "int8", "bfp"])
def test_a_damaged_payload_is_noticed(device, name):
    frames = [codec(name).encode(values(np.dtype("f4"), 300, seed)) for seed in range(3)]
    frames[1][HEADER_NBYTES + 33] ^= 4
    _, problems = decode(device, frames)
    assert problems[0] is None
    assert problems[2] is None
    assert "damaged" in problems[1]


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [-1.0, np.inf, -np.inf, np.nan])
def test_a_scale_that_is_none_is_refused(device, name, dtype, scale):
    frames = [codec(name).encode(values(np.dtype(dtype), 300), checksum=False) for _ in range(2)]
    frames[1][HEADER_NBYTES:].view(np.uint8)[: 2 * np.dtype(dtype).itemsize].view(dtype)[1] = scale
    _, problems = decode(device, frames)
    assert problems[0] is None
    assert "not a stream" in problems[1]


@pytest.mark.parametrize("name", SPECS)
def test_any_payload_is_decoded_within_bounds(device, name):
    """Whatever its bytes are; `Memory` notices what is written outside."""
    rng = np.random.default_rng(1)
    for dtype in ("f2", "f4", "f8"):
        frames = [codec(name).encode(values(np.dtype(dtype), n), checksum=False) for n in (130, 517)]
        frames = [f for f in frames if inspect(f).codec == codec(name).name]
        for frame in frames:
            payload = frame[HEADER_NBYTES + (8 if name.startswith("mpc") else 0) :]  # not MPC's own header
            payload[:] = rng.integers(0, 256, payload.size, np.uint8)
        if frames:
            decode(device, frames)


@pytest.mark.parametrize("rate", [2.25, 2.5, 3, 5, 8, 9.25, 11.3, 15.75, 16, 16.25, 20, 31.5, 33, 48, 63])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_any_payload_of_zfp_means_what_it_does_to_the_cpu(device, rate, dtype):
    """Codes that end anywhere, planes of zeros without end, blocks of no values that are not all zeros."""
    if not (3 if dtype == "f8" else 2.25) <= rate < 8 * np.dtype(dtype).itemsize:
        pytest.skip("not a rate of this type, or one that saves nothing")
    rng = np.random.default_rng(int(4 * rate))
    frames = [
        codec(f"zfp:rate={rate}").encode(values(np.dtype(dtype), n), checksum=False) for n in (700, 2049)
    ]
    for frame, ones in zip(frames, (0.5, 0.03), strict=True):
        bits = rng.random(8 * (frame.size - HEADER_NBYTES)) < ones
        frame[HEADER_NBYTES:] = np.packbits(bits, bitorder="little")
        frame[HEADER_NBYTES::13] = 255
    decoded, problems = decode(device, frames)
    assert problems == [None, None]
    for frame, found in zip(frames, decoded, strict=True):
        assert same(found, codec(f"zfp:rate={rate}").decode(frame))


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "f4", "f8", "c16"])
@pytest.mark.parametrize("dim", [1, 2, 7, 31, 32])
@pytest.mark.exhaustive(but=3)
def test_mpc_of_what_it_is_made_for(device, dtype, dim):
    """Smooth data, which shrinks, of sizes around those of words, groups and blocks."""
    sizes = (64, 1000, 1023, 1024, 1025, 1033, 4095, 4097, 9999)
    arrays = [(100 * np.sin(np.arange(n) / 400)).round().astype(dtype) for n in sizes]
    check(device, f"mpc:dim={dim}", arrays)
    check(device, f"mpc:dim={dim}", [np.repeat(a, dim)[: a.size] for a in arrays], shift=1)
    assert inspect(codec(f"mpc:dim={dim}").encode(arrays[-1])).codec == "mpc"


def test_every_kernel_is_launched_by_its_name(device):
    for kernel in kernels.all_kernels():
        assert device.library[kernel.name]


def test_sources_are_one_text():
    from compcoll.devices.nvrtc import source

    for name in kernels.MODULES:
        text = source(name)
        assert '#include "' not in text
        assert text.count("struct Job {") == 1


_COMPILE = """
import sys
from compcoll.devices.inspection import inspect
from compcoll.devices.nvrtc import Unavailable
try:
    found = inspect("frame", "sm_90")
except Unavailable as error:
    sys.exit(f"Unavailable: {error}")
print(*(f"{f.kernel} {f.registers > 0 and f.spilled == 0}" for f in found))
"""


def test_the_compiler_for_gpus_takes_the_kernels():
    """In a process without the stand-in."""
    done = subprocess.run([sys.executable, "-c", _COMPILE], capture_output=True, text=True, check=False)
    if "Unavailable" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.split() == ["checksum", "True", "seal", "True"], done.stderr

"""Codecs on GPU memory: frames, values and sums equal the host's, bit for bit.

The GPU is the executor behind the stand-in driver; with ``--gpu`` it is this machine's, through CuPy, and
arrays are large enough to fill it.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from floats import FLOATS, same, values
from gpu_arrays import Array, Room, check, decode

import compcoll
from benchmarks import gpu_host
from compcoll import FrameError, codec, inspect
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import dtypes
from compcoll.devices import kernels
from compcoll.devices.memory import wrap
from compcoll.frame import HEADER_NBYTES, pack_header

REALS = [dtype for dtype in FLOATS if dtype.kind != "c"]
F4, F8 = np.dtype("f4"), np.dtype("f8")
#: Sizes around those of blocks, of tiles, and of the parts of threads and warps.
SIZES = (1, 5, 31, 64, 127, 129, 515, 2049)
SPECS = [
    *(f"zfp:rate={rate}" for rate in (2.25, 5, 8, 11.3, 16, 20, 24, 31, 32)),
    "bfp:bits=24,dim=3",
    "bfp:bits=9,dim=32,rounding=stochastic,seed=81985529216486895",
    "int8",
    "int8:block=32,rounding=stochastic,seed=81985529216486895",
    "int4",
    "int4:block=256",
    "fp8:block=128",
    "fp8:rounding=stochastic,seed=7",
    "szp:abs=1e-3",
    "szp:abs=1e-30",
    "szp:rel=1e-7",
    "szp:rel=0.3",
    "mpc",
    "mpc:dim=5",
    "float",
]
WIDE = [f"zfp:rate={rate}" for rate in (3, 33, 40.5, 48, 55, 64)]
#: One spec of each codec.
EACH = ["zfp:rate=8", "int8", "int4:block=32", "fp8", "bfp", "szp:abs=1", "mpc", "float", "raw"]
CASES = [(spec, REALS[(i + k) % 4]) for i, spec in enumerate(SPECS) for k in (0, 1)]
CASES += [(spec, F8) for spec in WIDE]
CASES += [(spec, np.dtype(name)) for spec in EACH for name in ("c8", "c16")]
#: More rates, whose codes end anywhere in a word.
ENDS = ["zfp:rate=9.25", "zfp:rate=15.75", "zfp:rate=31.5"]
PAYLOADS = [(spec, np.dtype(name)) for spec in SPECS + ENDS for name in ("f2", "f4", "f8")]
PAYLOADS += [(spec, F8) for spec in WIDE]
#: Each rate with two types, and each type with three rates or four.
BLOCKS = [(rate, REALS[i // 2 % 4]) for i, rate in enumerate((0.25, 3, 1, 11.3, 5.5, 8, 16, 32) * 2)]
BLOCKS += [(16, np.dtype("c8")), (64, F8)]
#: Every type with one of these dimensions, and words of either size with all of them.
DIMS = (1, 7, 32)
SMOOTH = [(dtype, DIMS[i % 3]) for i, dtype in enumerate(sorted(dtypes.CODES, key=dtypes.code_of))]
SMOOTH = list(dict.fromkeys(SMOOTH + [(dtype, dim) for dtype in (F4, F8) for dim in DIMS]))
TILE = 1024  # values of bfp that a block of threads handles at a time


@pytest.fixture
def large(request):
    """Number of elements that keep a codec busy for a while."""
    return 1 << 22 if request.config.getoption("gpu", False) else 1 << 12


def launches(cupy):
    """Number of launched kernels; 0 on a GPU itself, which does not count them."""
    return cupy.launches() if hasattr(cupy, "launches") else 0


def outcome(decode_one, *arguments):
    """The values of a frame, or None if it is refused."""
    with suppress(FrameError):
        return decode_one(*arguments).reshape(-1)
    return None


# Values that codecs are made for.


@pytest.mark.parametrize(("spec", "dtype"), CASES, ids=str)
def test_bytes_are_those_of_the_host(cupy, large, spec, dtype):
    for n in (*SIZES, 100_003, 1 << 20) if large > 1 << 20 else SIZES:
        check(cupy, spec, values(dtype, n, n))


@pytest.mark.parametrize(("dtype", "dim"), SMOOTH, ids=str)
@pytest.mark.exhaustive(but=8)
def test_smooth_data_of_any_type(cupy, dtype, dim):
    """`mpc` on smooth arrays equals the host, for sizes around those of words, groups and tiles."""
    for n in (64, 1025, 5001):
        array = (100 * np.sin(np.arange(n) / 400)).round().astype(dtype)
        found = check(cupy, f"mpc:dim={dim}", array)
        check(cupy, f"mpc:dim={dim}", np.repeat(array, dim)[:n], array.itemsize)
    assert found == "mpc"


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_planes_of_every_form(cupy, dtype):
    """`float` equals the host with few and many escapes, stored bits, constant planes and noise."""
    found = []
    for n in (64, 4097, 9001):
        rng = np.random.default_rng(n)
        noise = rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)
        wide = (rng.standard_normal(n) * 2.0 ** rng.integers(-12, 13, n)).astype(dtype)
        rare = np.where(rng.random(n) < 0.02, noise, (0.02 * rng.standard_normal(n)).astype(dtype))
        for array in (noise, wide, rare, np.full(n, 1.5), rng.integers(0, 9, n)):
            found.append(check(cupy, "float", array.astype(dtype)))
    assert found.count("float") > 4


@pytest.mark.parametrize("dtype", REALS[:3], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 20, 23, 24])
def test_bits_of_bfp_that_the_compiler_knows(cupy, bits, dtype):
    """Kernels for a fixed number of bits equal the host on smooth, rough, constant, zero and tiny blocks."""
    params = codec(f"bfp:bits={bits}").params(dtype, (1,))
    assert kernels.decoders("bfp", dtype, params, True)[0].module.endswith(f"-{bits}")
    assert (
        kernels.decoders("bfp", dtype, codec(f"bfp:bits={bits},dim=2").params(dtype, (1,)), True)[0].module
        == "bfp"
    )
    rng = np.random.default_rng(bits)
    smooth = np.cumsum(rng.standard_normal(2 * TILE + 70)) / 100
    tiny = np.ldexp(rng.standard_normal(TILE), rng.integers(-149, -120, TILE))
    mixed = np.where(np.arange(TILE) // 64 % 3, -rng.standard_normal(TILE), np.arange(TILE) // 300)
    # The value before a block exceeds the block's values, and 2^22 steps.
    falls = np.cumprod(1 - 2.0 ** (bits - 24) * rng.random((8, 16, 1)) ** 3, axis=1)
    falling = 1000 * rng.random((8, 1, 1)) * falls * (1 + 2.0**-23 * rng.integers(0, 2, (8, 16, 64)))
    for part in (smooth, smooth[: TILE - 1], np.concatenate([tiny, mixed, np.zeros(TILE), falling.ravel()])):
        check(cupy, f"bfp:bits={bits}", part.astype(dtype))


@pytest.mark.parametrize(("rate", "dtype"), BLOCKS, ids=str)
def test_blocks_of_two_and_three_dimensions(cupy, large, rate, dtype):
    """zfp in 2 and 3 dimensions equals the host on smooth, noisy and zero parts, and on mixed exponents."""
    shapes = [(1, 1), (5, 7), (9, 130), (1, 1, 1), (3, 1, 5), (3, 5, 6), (2, 9, 41)]
    for shape in [*shapes, (301, 400), (41, 64, 130)] if large > 1 << 20 else shapes:
        rng = np.random.default_rng(0)
        noise = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 2, shape)
        x = np.sin(sum(np.indices(shape)) / 5) + noise
        x[tuple(slice(0, 4) for _ in shape)] *= len(shape) == 2
        check(cupy, f"zfp:rate={rate}", x.astype(dtype))
        if dtype.itemsize >= 4 and dtype.kind == "f":
            wild = rng.integers(0, 2**64, shape, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
            wild = np.clip(np.where(np.isfinite(wild), wild, 1), -1e30, 1e30)
            wild.reshape(-1)[::2] = 1e-20  # no block is too small
            check(cupy, f"zfp:rate={rate}", wild.astype(dtype))


# Values that are hard to encode, or refused.


@pytest.mark.parametrize("spec", ["zfp:rate=8", "zfp:rate=16", "zfp:rate=29", *EACH[1:5]])
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_random_bit_patterns(cupy, spec, dtype):
    """Values of every exponent equal the host's, also subnormals next to values that zfp just carries."""
    rng = np.random.default_rng(7)
    mantissa = 7 if dtype == dtypes.BFLOAT16 else np.finfo(dtype).nmant
    for top in range(8 * dtype.itemsize - 1 - mantissa):
        words = rng.integers(0, 2**63, 200, np.uint64) >> np.uint64(64 - (mantissa + top + 1))
        words |= rng.integers(0, 2, 200, np.uint64) << np.uint64(8 * dtype.itemsize - 1)
        x = words.astype(f"u{dtype.itemsize}").view(dtype)
        check(cupy, spec, np.where(np.isfinite(x), x, dtype.type(1)).astype(dtype))
    x = rng.standard_normal(600) * 2.0 ** rng.integers(-149, -120, 600)
    x[::4] = 2.0**-98 * rng.uniform(1, 2, 150)
    for scale in (1, 2.0**-20):
        check(cupy, spec, (x * scale).astype(dtype))


@pytest.mark.parametrize("spec", ["szp:rel=1e-3", "szp:rel=1e-9"])
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_a_relative_bound_takes_the_range_of_what_is_finite(cupy, spec, dtype):
    """Relative bounds equal the host's for no finite values, and for huge, equal and subnormal ones."""
    about, n = np.finfo(F4 if dtype == dtypes.BFLOAT16 else dtype), 300
    special = [values(dtype, n, seed) for seed in range(2)]
    special[0][[3, 77, 200]] = np.nan, np.inf, -np.inf
    special[1][:2] = dtype.type(about.max / 2), dtype.type(-about.max / 2)
    special += [np.full(n, np.nan), np.full(n, -7.25), np.where(np.arange(n) % 2, -0.0, 0.0)]
    special += [np.linspace(-3, 9, n) * float(about.smallest_subnormal) * 1e3]
    for array in special:
        check(cupy, spec, array.astype(dtype))


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (spec, REALS[(i + k) % 4])
        for i, spec in enumerate(["zfp:rate=8", "zfp:rate=13", *EACH[1:4], "bfp:bits=2", "bfp:bits=12,dim=2"])
        for k in (0, 2)
    ],
    ids=str,
)
def test_values_that_are_refused_go_lossless(cupy, spec, dtype):
    """NaN and infinities become lossless frames; values at zfp's and bfp's limits equal the host's."""
    bad = [(0, np.nan), (31, np.inf), (1023, -np.inf), (1024, np.nan), (1028, np.inf)]
    bad += [(slice(4, 8), 2.0**-99)] * spec.startswith("zfp") + [(1026, 2.0**125)] * spec.startswith("bfp")
    for at, value in bad:
        array = values(dtype, TILE + 5, 1)
        with np.errstate(over="ignore"):
            array[at] = value
        fallback = inspect(codec(spec).encode(array)).fallback
        assert fallback or np.isfinite(value)
        check(cupy, spec, array)
    block = np.ones((9, 9, 9), dtype)
    block[5, 6, 7] = np.nan
    check(cupy, spec, block)


# Addresses.


@pytest.mark.parametrize("spec", [*EACH, "zfp:rate=16", "zfp:rate=11"])
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_arrays_at_any_element(cupy, spec, dtype):
    for n, k in ((5, 1), (64, 1), (301, 3)):
        check(cupy, spec, values(dtype, n, n), k * dtype.itemsize)
    for shape in ((8, 12), (6, 5, 9)) if spec.startswith("zfp") else ():
        check(cupy, spec, values(dtype, int(np.prod(shape))).reshape(shape), dtype.itemsize)


@pytest.mark.parametrize("shift", [1, 4, 15])
def test_bytes_and_frames_at_any_address(cupy, shift):
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4, 7, 16, 63, 65, 4099):
        check(cupy, "raw", rng.integers(0, 256, n, np.uint8), shift)
    host = codec("int8").encode(values(F4, 300))
    room = Room(cupy, host.size + 1200, shift)
    assert same(codec("int8").encode(Array(cupy, values(F4, 300)), room.memory), host)
    assert same(compcoll.decode(room.memory), compcoll.decode(host))


@pytest.mark.parametrize("spec", EACH)
@pytest.mark.parametrize("dtype", [F4, F8, np.dtype("c8")], ids=str)
def test_elements_between_their_addresses_are_coded_on_the_host(cupy, spec, dtype):
    array = values(dtype, 500)
    frame, block = codec(spec).encode(array), Array(cupy, array, shift=1).memory
    assert same(codec(spec).encode(block), frame)
    compcoll.decode(Array(cupy, frame).memory, block)
    assert same(block, compcoll.decode(frame))
    assert not launches(cupy)


# Frames from elsewhere, and damaged ones.


@pytest.mark.parametrize("spec", [*EACH, "lossless"])
@pytest.mark.parametrize("dtype", [F4, np.dtype("i2")], ids=str)
def test_each_side_decodes_the_other_s_frames(cupy, spec, dtype):
    for n, options in ((0, {}), (257, {}), (300, {"carried": 0.25, "checksum": False})):
        array = (50 * np.sin(np.arange(n) / 30)).astype(dtype)
        host = codec(spec).encode(array, **options)
        ours = codec(spec).encode(Array(cupy, array).memory, **options)
        expected = compcoll.decode(host)
        assert same(ours, host)
        assert same(compcoll.decode(ours), expected)
        assert same(compcoll.decode(host, Array(cupy, np.zeros(n, dtype)).memory), expected)
        assert same(compcoll.decode(ours, np.zeros(n, dtype)), expected)
        total = np.ones(n, accumulator_dtype(dtype))
        assert same(decode_add(ours, Array(cupy, total).memory), decode_add(host, total.copy()))


def test_what_does_not_fit_is_refused(cupy):
    array = Array(cupy, values(F4, 300)).memory
    frame = codec("zfp:rate=8").encode(array)
    with pytest.raises(ValueError, match="out has 1200 bytes"):
        codec("zfp:rate=8").encode(array, Room(cupy, 1200).memory)
    with pytest.raises(ValueError, match="out has 299 elements"):
        compcoll.decode(frame, array[:299])
    with pytest.raises(TypeError, match="float64"):
        compcoll.decode(frame, Array(cupy, values(F8, 300)).memory)
    with pytest.raises(FrameError, match="truncated"):
        compcoll.decode(frame[: frame.size - 1])


@pytest.mark.parametrize("spec", EACH)
def test_damage_is_noticed(cupy, spec):
    """A damaged payload raises; a damaged size or parameter raises before a kernel is launched."""
    frame = codec(spec).encode(array := values(F4, 2049), checksum=spec != "float")
    info, out = inspect(frame), Array(cupy, np.zeros_like(array)).memory
    assert info.codec == spec.partition(":")[0]
    kept = 64 if info.codec in ("szp", "mpc") else info.payload_nbytes - 4
    changes = [(kept, info.params), (info.payload_nbytes, (info.params[0] + 1000, 7))]
    # The other codecs do not check parameters.
    for size, params in changes[: 2 if info.codec in ("zfp", "int8", "int4", "fp8", "bfp", "mpc") else 1]:
        changed = frame[: HEADER_NBYTES + size].copy()
        pack_header(changed, replace(info, params=params, payload_nbytes=size))
        before = launches(cupy)
        with pytest.raises(FrameError, match="payload"):
            compcoll.decode(changed, out)
        assert launches(cupy) == before or info.codec == "float"
    frame[HEADER_NBYTES + 33] ^= 4
    assert outcome(decode, cupy, frame) is None or info.checksum is None


@pytest.mark.parametrize("spec", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", [F4, F8], ids=str)
def test_a_scale_that_is_none_is_refused(cupy, spec, dtype):
    for scale in (-1.0, np.inf, -np.inf, np.nan):
        frame = codec(spec).encode(values(dtype, 300), checksum=False)
        frame[HEADER_NBYTES:][: 2 * dtype.itemsize].view(dtype)[1] = scale
        with pytest.raises(FrameError, match="not a stream"):
            decode(cupy, frame)


@pytest.mark.parametrize(("spec", "dtype"), PAYLOADS, ids=str)
def test_any_payload_is_decoded_within_bounds(cupy, spec, dtype):
    """Random payload bytes are decoded within bounds, and zfp decodes them as the host does.

    The bytes have codes that end anywhere, endless planes of zeros, and empty blocks that are not all zeros.
    """
    rng, name = np.random.default_rng(1), spec.partition(":")[0]
    for shape, ones in (((700,), 0.5), ((2049,), 0.03), ((15, 22), 0.5), ((8, 8, 9), 0.2)):
        array = values(dtype, int(np.prod(shape))).reshape(shape)
        frame = codec(spec).encode(array, checksum=False)
        if inspect(frame).codec == name:
            payload = frame[HEADER_NBYTES + (8 if name == "mpc" else 0) :]  # not MPC's own header
            payload[:] = np.packbits(rng.random(8 * payload.size) < ones, bitorder="little")
            payload[::13] = 255
            found = outcome(decode, cupy, frame)
            assert name != "zfp" or same(found, compcoll.decode(frame).reshape(-1))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_damage_of_float_is_told_as_the_host_does(cupy, dtype):
    rng, refused = np.random.default_rng(5), 0
    for n in (1000, 4097, 8200) * 6:
        frame = codec("float").encode((0.02 * rng.standard_normal(n)).astype(dtype), checksum=False)
        assert inspect(frame).codec == "float"
        frame[HEADER_NBYTES + rng.integers(0, 90)] ^= 1 << rng.integers(0, 8)
        expected, found = outcome(compcoll.decode, frame), outcome(decode, cupy, frame)
        assert (found is None) == (expected is None)
        assert found is None or same(found, expected)
        refused += found is None
    assert refused > 3


# Calls of several chunks, and the order in streams.


def test_kernels_come_after_what_is_in_the_current_stream(cupy, large):
    array = values(F4, large)
    host = codec("zfp:rate=8").encode(array)
    source, late = cupy.asarray(array), cupy.zeros(array.size, np.float32)
    cupy.cuda.get_current_stream().synchronize()  # the stream below does not wait for this one
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(50):  # keeps the stream busy until the values arrive
            late += 1
        late[:] = source
        frame = codec("zfp:rate=8").encode(late)
    assert same(cupy.asnumpy(frame), host)


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "mpc", "float", "lossless"])
@pytest.mark.parametrize("direct", [False, True])
def test_chunks_of_one_call(cupy, large, spec, direct):
    """Chunks are coded in batches, after the caller's stream, with frames on the host and on the GPU."""
    array, nbytes = values(F4, 5 * large // 4 + 1000), large
    chunks = [array[i : i + nbytes // 4] for i in range(0, array.size, nbytes // 4)]
    with cupy.cuda.Stream(non_blocking=True):
        late, out = cupy.zeros(array.size, np.float32), cupy.zeros(array.size, np.float32)
        late.set(array)
        gpu_host.Case(gpu_host.code_chunks, spec, [wrap(late), wrap(out)], nbytes, direct).run()
        found = cupy.asnumpy(out)
    assert same(found, np.concatenate([compcoll.decode(codec(spec).encode(chunk)) for chunk in chunks]))


def test_torch_tensors(cupy):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.randn(5000, device="cuda").to(dtype)
        frame = codec("zfp:rate=8").encode(tensor)
        assert frame.is_cuda
        assert same(frame.cpu().numpy(), codec("zfp:rate=8").encode(tensor.cpu()))
        out = compcoll.decode(frame, torch.empty_like(tensor))
        assert torch.equal(out.cpu(), compcoll.decode(frame.cpu().numpy(), torch.empty_like(tensor.cpu())))

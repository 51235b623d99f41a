"""``zfp``: the same bytes as the zfp library, in both directions, error bounds, and parameters."""

from itertools import cycle, product

import ml_dtypes
import numpy as np
import pytest
import zfpy
from floats import FLOATS, bits, on_every_level, reals
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_checks import fenced
from lossy_checks import agreed

import compcoll
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.codecs.zfp import ZFP
from compcoll.core import _cpu, dtypes
from compcoll.frame import inspect

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
CLAMP, WORD = {FLOAT32: 9, FLOAT64: 12}, {FLOAT32: 32, FLOAT64: 64}
#: Rates by type. In 1 dimension, blocks have 1, 2, 3 or 4 words, some full; of float64, some are short.
RATES = {
    FLOAT32: (3, 6.3, 8, 11.25, 16, 20, 31.9, 32),
    FLOAT64: (3, 7.3, 8, 10.5, 14, 16, 25, 32, 40, 48, 63.5, 64),
}
EDGES = {
    1: [(1,), (3,), (61,), (64,), (67,)],
    2: [(3, 3), (5, 70), (70, 5), (9, 21), (33, 13), (130, 3), (3, 130), (1, 400), (130, 129)],
    3: [(3, 2, 3), (5, 6, 23), (4, 4, 65), (1, 30, 19), (30, 1, 6), (41, 3, 2), (1, 1, 399), (16, 20, 64)],
}


def word_of(dtype):
    """The type as which the library codes values."""
    return FLOAT64 if dtypes.real_dtype(dtype).itemsize == 8 else FLOAT32


def wide(a):
    """Values for the library: 16-bit floats as float32, complex numbers as twice as many real ones."""
    return a.view(dtypes.real_dtype(a.dtype)).astype(word_of(a.dtype))


def decompress(stream, like, rate):
    with np.errstate(over="ignore"):
        ztype = zfpy.dtype_to_ztype(like.dtype)
        return zfpy._decompress(bytes(stream), ztype, like.shape, out=None, rate=rate)


def narrow(values, dtype):
    """The library's values in a type; values beyond the range of a 16-bit type become its largest."""
    real = dtypes.real_dtype(dtype)
    most = float(ml_dtypes.finfo(real).max)
    return (np.clip(values, -most, most) if real.itemsize == 2 else values).astype(real).view(dtype)


def placed(use, array, at_end=True):
    """A copy at the end, or the beginning, of fenced memory."""
    memory = fenced(use, array.nbytes, at_end)[0].view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory


def room(a, rate):
    """Bytes of the stream of an array."""
    blocks = int(np.prod([-(-n // 4) for n in wide(a).shape]))
    return (blocks * ZFP(rate).block_bits(a.dtype, a.ndim) + 63) // 64 * 8


def encode(a, rate, at_end=True):
    """Payload (or the negative status), bound and header words."""
    dst, guard = fenced("stream", room(a, rate), at_end)
    n, bound, params = ZFP(rate).encode_payload(placed("source", a, at_end), dst)
    assert (guard == 0xA5).all()
    assert n < 0 or n == dst.size
    return (n if n < 0 else dst[:n].copy()), bound, params


def decode(payload, like, params, into=None, at_end=True):
    """Decoded values, or the sum with those of `into`; or the negative status."""
    shape, code = like.shape, dtypes.code_of(like.dtype)
    stream = placed("stream", np.frombuffer(payload, np.uint8), at_end)
    out, guard = fenced("values", (like if into is None else into).nbytes, at_end)
    if into is None:
        status = _cpu.decode(ZFP._index, code, shape, params, stream, out)
    else:
        out[:] = bits(into)
        status = _cpu.decode_add(ZFP._index, code, shape, params, stream, out, dtypes.code_of(into.dtype))
    assert (guard == 0xA5).all()
    return out.view((like if into is None else into).dtype).reshape(shape) if status == 0 else status


def decoded(payload, like, params):
    """A copy of the decoded values."""
    return decode(payload, like, params).copy()


def reconstruct(a, rate, in_place):
    """Payload (or the negative status), bound, and the decoded values that encoding has written."""
    src = placed("source", a)
    values = src if in_place else fenced("values", a.nbytes)[0].view(a.dtype)
    dst = fenced("stream", room(a, rate))[0]
    code, params = dtypes.code_of(a.dtype), ZFP(rate).params(a.dtype, a.shape)
    n, bound, _ = _cpu.reconstruct(ZFP._index, code, a.shape, params, bits(src), dst, bits(values))
    return (n if n < 0 else dst[:n].copy()), _cpu.modulus_bound(a.dtype.kind == "c", bound), values


def check(a, rate, at_end=True):
    """Check that bytes, values, sums and kept values equal the library's at each level, within bounds."""
    stream = zfpy.compress_numpy(wide(a), rate=rate, write_header=False)
    expected = narrow(decompress(stream, wide(a), rate), a.dtype)
    payload, bound, params = agreed(encode, a, rate, at_end)
    assert bytes(payload) == stream, (a.shape, rate)
    start = np.full(a.shape, 0.3).astype(accumulator_dtype(a.dtype))
    total = start + expected.astype(start.dtype)

    def back():
        assert decode(payload, a, params, None, at_end).tobytes() == expected.tobytes(), (a.shape, rate)
        assert decode(payload, a, params, start, at_end).tobytes() == total.tobytes(), (a.shape, rate)
        for in_place in (False, True) if a.ndim == 1 else ():
            kept, error, values = reconstruct(a, rate, in_place)
            assert (bytes(kept), error) == (stream, bound), (a.shape, rate)
            assert values.tobytes() == expected.tobytes(), (a.shape, rate)

    on_every_level(back)
    exact, parts = (np.clongdouble, 2) if a.dtype.kind == "c" else (np.longdouble, 1)
    assert np.abs(expected.astype(exact) - a.astype(exact)).max() <= bound, (a.shape, rate)
    assert bound / 12 / parts**0.5 <= np.abs(wide(a)).max() * (1 + 1e-9)


def field(rng, shape, dtype):
    """A smooth, noisy, sparse or wild array, by the generator's choice."""
    x = rng.standard_normal(shape)
    steep = 12 if dtypes.real_dtype(dtype) == np.float16 else 60
    match rng.integers(5):
        case 1:
            x = np.cumsum(x, axis=-1) / 4
        case 2:
            x = x * 2.0 ** rng.integers(-steep, steep, shape)
        case 3:
            x = np.where(rng.random(shape) < 0.2, np.rint(3 * x), 0.0) * 2.0 ** rng.integers(-steep, steep)
        case 4:
            x = np.sin(np.arange(x.size).reshape(shape) * 0.03) + 1e-3 * x
    x = np.clip(x, -6e4, 6e4) if steep == 12 else x
    return (x * (1 + 1j) if dtype.kind == "c" else x).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_small_size(dtype):
    rng, rates = np.random.default_rng(1), cycle(RATES[word_of(dtype)])
    for n in range(1, 131):
        for rate in (next(rates), next(rates), next(rates)):
            check(field(rng, n, dtype), rate)
    for n in (1024, 4097, 20_011):
        for rate in RATES[word_of(dtype)]:
            check(field(rng, n, dtype), rate)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_every_number_of_bits(dtype):
    """Every number of bits a block gives the library's bytes, so that bits run out in every way."""
    rng, word = np.random.default_rng(2), WORD[dtype]
    for n in range(CLAMP[dtype], 4 * word + 1):
        patterns = rng.integers(0, 2**word, 132, np.uint64).astype(f"u{word // 8}").view(dtype)
        sound = np.isfinite(patterns) & (np.abs(patterns) < 2.0**120) & (np.abs(patterns) > 2.0**-90)
        noise = rng.standard_normal(264) * 2.0 ** rng.integers(-60, 60, 264)
        sparse = np.where(rng.random(131) < 0.3, np.rint(3 * rng.standard_normal(131)), 0)
        check(np.concatenate([np.where(sound, patterns, 0), noise, sparse]).astype(dtype), n / 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_shapes_beside_pages_without_access(ndim, dtype):
    """Partial blocks give the library's bytes, and nothing beside the array is touched."""
    rng, word = np.random.default_rng(3), word_of(dtype)
    low, high = CLAMP[word] / 4**ndim, WORD[word]
    more = [tuple(rng.integers(1, (90, 24)[ndim - 2], ndim).tolist()) for _ in range(20)] if ndim > 1 else []
    rates = cycle([low, low + 0.4, 4.4, 3, 8, float(rng.uniform(low, high)), 16, high])
    for shape, at_end in product([*EDGES[ndim], *more], (False, True)):
        for rate in (next(rates), next(rates), next(rates)):
            check(field(rng, shape, dtype), rate, at_end)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(20, 520), (18, 523), (8, 20, 164)], ids=str)
def test_low_rates_of_smooth_grids(dtype, shape):
    """Smooth blocks with few planes give the library's bytes, next to noisy blocks and zeros."""
    rng = np.random.default_rng(6)
    x = sum(np.sin(i / 9) for i in np.indices(shape)) + 1e-7 * rng.standard_normal(shape)
    x[..., 400:500] += rng.standard_normal(x[..., 400:500].shape)
    x[..., 100:132] = 0
    least = 2.0**-20 if dtypes.real_dtype(dtype) == np.float16 else np.finfo(word_of(dtype)).tiny * 2.0**70
    for scale, rate in product((1, least), (1, 1.5, 2, 3, 4.5, 6, 8, 10)):
        check((x * scale).astype(dtype), rate)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((123,), (16, 32, 84)),
        ((160, 164), (13, 16, 20, 21, 64)),
        ((158, 163), (13, 16, 20, 21, 336)),
        ((20, 24, 100), (48, 64, 100, 128, 200, 512)),
        ((13, 18, 97), (48, 64, 100, 128, 200, 1344)),
    ],
    ids=str,
)
def test_foreign_streams_of_any_bits(dtype, shape, blocks):
    """Random streams with few, half or nearly all bits set decode as by the library."""
    rng, like = np.random.default_rng(9), np.empty(shape, dtype)
    for bits_ in blocks:
        rate = bits_ / 4 ** len(shape)
        one, other = rng.integers(0, 256, (2, room(like, rate)), np.uint8)
        for stream in (one, one & other, one | other):
            theirs = decompress(stream, like, rate)
            for ours in on_every_level(decoded, stream, like, (bits_, 0)):
                np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_values(data):
    """Any exponents, rate and shape give the library's bytes, also with few planes, zeros and signs."""
    dtype = data.draw(st.sampled_from(FLOATS))
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)))
    word = word_of(dtype)
    rate = data.draw(st.floats(CLAMP[word] / 4**ndim, WORD[word]))
    limits = st.integers(-24, 15) if dtypes.real_dtype(dtype) == np.float16 else st.integers(-80, 80)
    low, high = sorted(data.draw(st.tuples(limits, limits)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    real = (*shape[:-1], shape[-1] * (1 + (dtype.kind == "c")))
    values = rng.choice([-1.0, 1.0], real) * rng.uniform(0.5, 1, real)
    values *= 2.0 ** rng.integers(low, high + 1, real)
    if data.draw(st.booleans()):
        values = np.rint(rng.uniform(-(2 ** data.draw(st.integers(0, 11))), 2, real)) * 2.0 ** min(low, 4)
    values = values.astype(dtypes.real_dtype(dtype)).view(dtype)
    check(values, rate)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_bound_of_adversaries(ndim):
    """Bounds hold for +-1, for patterns that the inverse transform amplifies most, and for huge values."""
    rng = np.random.default_rng(7)
    shape = {1: (-1,), 2: (4, -1), 3: (4, 4, -1)}[ndim]
    blocks = rng.choice([-1.0, 0.0, 1.0, 1 - 2.0**-24, 2.0**-12], (4**ndim * 1000,))
    near = 1 + rng.uniform(-1, 1, blocks.size) * 2.0 ** rng.integers(-23, 0, blocks.size)
    for rate, values in product((3, 4, 5.5, 8, 16), (blocks, near)):
        check(values.astype(np.float32).reshape(shape), rate)
    for dtype, top in ((np.float32, 2.0**125), (np.float64, 2.0**1021)):
        for rate in (3, 4, 5, 8):
            check((rng.uniform(-1, 1, (16,) * ndim) * top).astype(dtype), rate)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_and_no_elements(dtype):
    a = np.zeros(100, dtype)
    reals(a)[1::2] = -0.0
    check(a, 8)
    payload, bound, _ = encode(a, 8)
    assert not payload.any()
    assert bound == 0
    for shape in ((0,), (0, 5), (3, 0, 2)):
        payload, bound, params = agreed(encode, np.empty(shape, dtype), 8)
        assert payload.size == bound == 0
        assert decode(payload, np.empty(shape, dtype), params).shape == shape


def check_refused(a, status):
    """Check that no level encodes an array, and that a refused in-place source stays unchanged."""
    assert agreed(encode, a, 8)[0] == status
    for in_place in (False, True) if a.ndim == 1 else ():
        for found, _, values in on_every_level(reconstruct, a, 8, in_place):
            assert found == status
            assert not in_place or values.tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_values_that_do_not_fit(dtype, ndim):
    """Values at the limits are encoded, and their neighbours beyond are refused, also inside a block."""
    real = dtypes.real_dtype(dtype)
    tiny, top = (2.0**-98, 2.0**125) if word_of(dtype) == FLOAT32 else (2.0**-962, 2.0**1021)
    zero, one, zeros = np.zeros(1, real), np.ones((9,) * ndim, dtype), np.zeros((9,) * ndim, dtype)
    beside = zeros.copy()
    beside.flat[0] = 1

    def last(array, value):
        array = array.copy()
        reals(array)[-1] = value
        return array

    for value in (np.nan, np.inf, -np.inf):
        for array in (one, zeros):
            check_refused(last(array, value), _cpu.NONFINITE)
            check_refused(last(array, value)[::-1].copy(), _cpu.NONFINITE)
    if real != np.float16:
        check(last(zeros, tiny), 16)
        check(last(one, -np.nextafter(np.array([top], real), zero)[0]), 16)
        check_refused(last(one, top), _cpu.UNREPRESENTABLE)
        for small in (
            np.nextafter(np.array([tiny], real), zero)[0],
            ml_dtypes.finfo(real).smallest_subnormal,
        ):
            check_refused(last(zeros, small), _cpu.UNREPRESENTABLE)
            check_refused(last(beside, small), _cpu.UNREPRESENTABLE)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), dtypes.BFLOAT16], ids=str)
def test_sixteen_bits(dtype):
    """Every pattern widens exactly, and values decoded beyond the largest float16 become the largest."""
    a = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # of signalling NaN, on some machines
        values = a.astype(np.float32)
    sound = np.isfinite(values) & ((np.abs(values) >= 2.0**-98) | (values == 0)) & (np.abs(values) < 2.0**125)
    check(a[sound], 32)
    largest = float(ml_dtypes.finfo(dtype).max)
    if dtype == np.float16:
        large = np.array([1e5, -1e5, 7e4, 6.6e4], np.float32)
        stream = zfpy.compress_numpy(large, rate=32, write_header=False)
    else:  # 1.75 * 2^127 with the exponent one higher
        large = np.array([0.875, -0.875, 0.875, -0.875], np.float32) * np.float32(2.0**127)
        stream = bytearray(zfpy.compress_numpy(large, rate=32, write_header=False))
        assert (stream[0] | stream[1] << 8) & 0x1FF == 2 * 254 + 1
        stream[0] += 2
    for out in on_every_level(decoded, stream, np.empty(4, dtype), (128, 0)):
        out = out.astype(float)
        assert np.isfinite(out).all()
        assert (np.abs(out) == largest).all() == (dtype == np.float16)


@pytest.mark.parametrize("spec", ["zfp:rate=4", "zfp:rate=8", "zfp:rate=32", "mpc", "lossless", "raw"])
def test_frames_of_values_that_are_kept(level, spec):
    """`reconstruct` gives `encode`'s frame and the decoded values in place, unless the frame is lossless."""
    a = np.random.default_rng(5).standard_normal(3001).astype(np.float32)
    bad = a.copy()
    bad[2000] = np.nan
    # At rate 32 the last block's padding makes the frame larger than the values.
    cases = ((a, False),) if spec == "zfp:rate=32" else ((a, spec.startswith("zfp")), (bad, False))
    for values, kept in cases:
        expected, before = compcoll.codec(spec).encode(values), values.tobytes()
        frame, known = compcoll.codec(spec).coding(values.dtype).reconstruct(values, None, values)
        assert frame.tobytes() == expected.tobytes()
        assert known == kept == (inspect(frame).codec == "zfp")
        assert values.tobytes() == (compcoll.decode(expected).tobytes() if known else before)
    square = np.ones((8, 8), np.float32)
    assert not compcoll.codec(spec).coding(square.dtype).reconstruct(square, None, square)[1]


def test_padding_never_expands():
    a = np.ones((100, 1, 1), np.float32)
    frame = ZFP(16).encode(a)
    assert inspect(frame).codec != "zfp"
    assert ZFP(16).decode(frame).tobytes() == a.tobytes()


def test_wrong_sizes_and_words(level):
    a = np.random.default_rng(13).standard_normal(1000).astype(np.float32)
    payload, _, params = encode(a, 7)
    longer = np.append(payload, np.zeros(8, np.uint8))
    for bad in (payload[:0], payload[:1], payload[:-1], payload[:-8], longer):
        assert decode(bad, a, params) == _cpu.BAD_STREAM
    assert decode(payload, np.empty(1008, np.float32), params) == _cpu.BAD_STREAM
    for block, other in ((0, 0), (8, 0), (129, 0), (2**63, 0), (2**64 - 1, 0), (32, 1)):
        nbytes = min((250 * block + 63) // 64 * 8, 8192)  # the size that such words ask for, if possible
        assert decode(np.zeros(nbytes, np.uint8), a, (block, other)) == _cpu.BAD_STREAM
    assert ZFP(8).encode_payload(a, np.empty(992, np.uint8))[0] == _cpu.TOO_LARGE


def test_parameters():
    for rate in (0, -1, 64.5, float("nan"), float("inf"), "much"):
        with pytest.raises(ValueError, match=f"rate = {rate!r}.*64"):
            ZFP(rate)
    for dtype in (np.float16, np.float32, np.complex64):
        with pytest.raises(ValueError, match=r"rate = 33 .* 32"):
            ZFP(33).encode(np.ones(8, dtype))
    for rate, dtype, ndim, block in (
        (33, "f8", 1, 132),
        (33, "c16", 1, 132),
        (0.1, "f4", 1, 9),
        (0.1, "f2", 2, 9),
        (0.1, "f8", 2, 12),
    ):
        assert ZFP(rate).params(np.dtype(dtype), (8,) * ndim) == (block, 0)
    for rate, spec in ((8, "zfp:rate=8"), (8.0, "zfp:rate=8"), (5.25, "zfp:rate=5.25")):
        assert ZFP(rate).spec == spec
        assert compcoll.codec(spec) == ZFP(rate)

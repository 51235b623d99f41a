"""bfp: payloads equal those of a NumPy reference, errors keep their bound, and every input is safe."""

import hashlib
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from floats import FLOATS, arrays, bits, encode, finite, on_every_level, reals
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_checks import (
    FLOAT32,
    agreed,
    check_capacity,
    check_wave,
    decode_everywhere,
    encode_everywhere,
    field,
    roundtrip,
    status_of,
)

import compcoll
from compcoll.codecs.specs import codec as make
from compcoll.core import _cpu, dtypes
from compcoll.frame import inspect

SETTINGS = settings(max_examples=60, deadline=None)
BLOCK, ROW = 64, 32


class Reference:
    """The codec with nearest rounding, written for one value after another."""

    def __init__(self, dtype, bits, dim):
        wide = dtypes.real_dtype(dtype).itemsize == 8
        self.F, self.W = (np.float64, np.uint64) if wide else (np.float32, np.uint32)
        self.word = 64 if wide else 32
        self.shift, self.bias = (47, 512 << 5) if wide else (16, 0)
        self.lowest = 2.0**-511 if wide else 2.0**-126
        self.floor = self.F(2.0**-50 if wide else 2.0**-22)
        self.margin = 8 if bits > (48 if wide else 20) else 0
        self.bits, self.dim, self.tile = bits, dim, ROW * self.word
        half = 1 << (bits - 1)
        self.per_value = self.F(1) / self.F(half - 1)
        self.per_difference = self.F(1) / self.F(half - 2 if bits > 2 else 0.5)

    def bits_of(self, x):
        return int(np.asarray(x, self.F).view(self.W))

    def up(self, step):
        unit = 1 << self.shift
        found = (self.bits_of(step) + self.margin + unit - 1) // unit * unit
        return max(found, self.bits_of(self.lowest))

    def steps(self, x, before):
        """Return (scale, step, is_difference) of a block."""
        F = self.F
        m = np.abs(x).max()
        e = np.abs(x - np.concatenate([before, x[: -self.dim]])).max()
        value = self.up(F(m * self.per_value))
        difference = self.up(max(F(e * self.per_difference), F(m * self.floor)))
        found = min(value, difference)
        step = np.array(found, self.W).view(F)[()]
        return ((found >> self.shift) - self.bias) << 1 | (difference < value), step, difference < value

    def encode(self, values):
        """Return (payload, decoded values as F)."""
        F, n, dim = self.F, values.size, self.dim
        codes, scales, bases, decoded = [], [], [], []
        for begin in range(0, n, self.tile):
            x = values[begin : begin + self.tile].astype(F)
            whole = -(-x.size // BLOCK) * BLOCK
            x = list(x)
            while len(x) < max(whole, dim):
                x.append(x[len(x) - dim] if len(x) >= dim else F(0))
            x = np.array(x, F)
            p = x[:dim]
            bases.append(p)
            q = np.zeros(-(-whole // BLOCK) * BLOCK, object)
            for b in range(0, whole, BLOCK):
                block = x[b : b + BLOCK]
                scale, step, differences = self.steps(block, p)
                inverse = F(1) / step
                own = np.rint(block * inverse)
                code = own
                if differences:
                    code = own - np.concatenate([np.rint(p * inverse), own[:-dim]])
                q[b : b + BLOCK] = [int(v) for v in code]
                decoded.append((own * step).astype(F))
                p = decoded[-1][-dim:]
                scales.append(scale)
            codes.append(self.packed(q))
        words = np.concatenate(codes) if codes else np.zeros(0, self.W)
        tail = np.array(scales, "<u2").tobytes()
        tail += bytes(-len(tail) % (self.word // 8))
        payload = words.tobytes() + tail + (np.concatenate(bases).tobytes() if bases else b"")
        return np.frombuffer(payload, np.uint8), (np.concatenate(decoded) if decoded else np.zeros(0, F))[:n]

    def packed(self, q):
        rows = q.reshape(-1, ROW)
        result = []
        for lane in range(ROW):
            total = 0
            for r, code in enumerate(rows[:, lane]):
                total |= (code & ((1 << self.bits) - 1)) << (r * self.bits)
            count = -(-len(rows) * self.bits // self.word)
            result.append([total >> (self.word * k) & ((1 << self.word) - 1) for k in range(count)])
        return np.array(result, self.W).T.reshape(-1)


def most_bits(dtype):
    return 52 if dtypes.real_dtype(dtype).itemsize == 8 else 24


def kinds(dtype, n, seed):
    """Yield arrays for every case in the choice of a step."""
    rng = np.random.default_rng(seed)
    count = n * (2 if dtype.kind == "c" else 1)
    t = np.arange(count)
    small = 0.25 if dtypes.real_dtype(dtype) == np.float16 else 1
    for x in (
        rng.standard_normal(count),
        np.sin(t / 40) + 1e-3 * rng.standard_normal(count),
        np.cumsum(rng.standard_normal(count)) + 1e3,
        np.full(count, 3.7),
        np.zeros(count),
        rng.standard_normal(count) * 2.0 ** (small * np.repeat(rng.integers(-40, 40, count), 64)[:count]),
        np.where(rng.random(count) < 0.02, 1e4 * rng.standard_normal(count), 0),
        np.where(t // 100 % 2, 5.0, np.round(8 * rng.standard_normal(count))),
    ):
        yield x.astype(dtypes.real_dtype(dtype)).view(dtype)


def check_bytes(array, bits_, dim=None):
    """Check that payload and values equal the reference's on every level."""
    codec = make(f"bfp:bits={bits_}" + (f",dim={dim}" if dim else ""))
    expected, decoded = Reference(array.dtype, bits_, dim or (2 if array.dtype.kind == "c" else 1)).encode(
        reals(array)
    )
    payload, found, bound = roundtrip(codec, array)
    if expected.size > array.nbytes:
        assert payload == _cpu.TOO_LARGE
        return None, bound
    assert np.array_equal(payload, expected), (bits_, dim)
    assert np.array_equal(reals(found), decoded.astype(dtypes.real_dtype(array.dtype))), (bits_, dim)
    return found, bound


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bytes_are_those_of_the_reference(dtype):
    for array, bits_ in zip(kinds(dtype, 70, 3), (4, 7, 8, 9, 6, 5, 4, 3), strict=True):
        check_bytes(array, bits_)
    dims = (None, 3, 32, None, 1, 1, 2, 5)
    for array, bits_, dim in zip(kinds(dtype, 1500, 3), (2, 3, 5, 8, 11, 17, 20, 24), dims, strict=True):
        check_bytes(array, bits_, dim)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_number_of_bits(dtype):
    rng = np.random.default_rng(1)
    array = (np.sin(np.arange(1100) / 7) + 1e-2 * rng.standard_normal(1100)).astype(dtype)
    array[300:700] = rng.standard_normal(400)
    for n in range(2, most_bits(array.dtype) + 1):
        found, bound = check_bytes(array, n)
        error = np.abs(array.astype(np.longdouble) - found).max()
        assert bound <= 2 * error + 4 * np.finfo(dtype).eps, n


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_falling_values_that_are_nearly_constant(dtype):
    """The value before a block may exceed the block's step, or its magnitudes, by far."""
    dtype, rng, count = np.dtype(dtype), np.random.default_rng(8), 500
    for n in range(2, most_bits(dtype) + 1, 1 if dtype.itemsize == 4 else 7):
        level = 2.0 ** rng.uniform(-20, 20, (count, 1))
        fall = 2.0 ** rng.uniform(-30, 0, (count, 1)) * np.arange(BLOCK) / BLOCK
        jump = np.where(rng.random((count, 1)) < 0.2, 2.0 ** rng.uniform(-30, 0, (count, 1)), 1)
        array = (level * jump * (1 - fall)).astype(dtype).reshape(-1)
        roundtrip(make(f"bfp:bits={n}"), array)
        check_bytes(array[: 4 * BLOCK], n)


specs = st.builds(
    "bfp:bits={},dim={},rounding={},seed={}".format,
    st.integers(2, 52),
    st.sampled_from([1, 2, 3, 5, 31, 32]),
    st.sampled_from(["nearest", "stochastic"]),
    st.integers(0, 2**64 - 1),
)


@SETTINGS
@given(specs, arrays(max_size=2500))
def test_bound_and_size(spec, array):
    codec = make(spec)
    payload, decoded, _ = roundtrip(codec, array)
    if decoded is not None:
        assert payload.size == encode(codec, np.zeros_like(array))[0].size
        assert finite(decoded).all()
    elif payload not in (_cpu.TOO_LARGE, _cpu.UNREPRESENTABLE):
        assert payload == _cpu.NONFINITE
        assert not finite(array).all()
        frame = codec.encode(array)
        assert inspect(frame).fallback
        assert bits(compcoll.decode(frame)).tobytes() == bits(array).tobytes()


@SETTINGS
@given(st.floats(2.0**-40, 0.5), arrays(finite_only=True, max_size=300))
def test_the_error_is_a_part_of_each_block(rel, array):
    codec = make(f"bfp:rel={rel!r}")
    frame = codec.encode(array)
    decoded = compcoll.decode(frame)
    x, y = (reals(a).astype(np.longdouble) for a in (array, decoded))
    for begin in range(0, x.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        smallest = 2.0**-512 if array.dtype in (np.float64, np.complex128) else 2.0**-126
        assert np.abs(x[part] - y[part]).max() <= rel * np.abs(x[part]).max() + smallest


def test_the_error_of_subnormal_float16_is_a_part_of_each_block():
    rng = np.random.default_rng(0)
    array = (rng.integers(-9, 10, 100 * BLOCK) * 2.0**-24).astype(np.float16)
    for rel in (2.0**-12, 1e-3, 0.01, 0.09375, 0.3):
        decoded = compcoll.decode(make(f"bfp:rel={rel}").encode(array))
        error, largest = (np.abs(a.astype(float)).reshape(-1, BLOCK).max(1) for a in (array - decoded, array))
        assert (error <= rel * largest).all()


def test_large_magnitudes_stay_finite_or_go_out_lossless():
    for dtype, limit in (("f4", 2.0**125), ("f8", 2.0**509), ("c8", 2.0**125)):
        array = np.linspace(-1, 1, 2000).astype(dtype)
        array[777] = limit
        frame = make("bfp:bits=3").encode(array)
        assert inspect(frame).fallback
        assert np.array_equal(compcoll.decode(frame), array)
        array[777] = np.nextafter(reals(array).dtype.type(limit), 0)
        assert finite(roundtrip(make("bfp:bits=3"), array)[1]).all()
    array = (65504 * np.sin(np.arange(5000) / 9)).astype(np.float16)
    array[::50] = 65504
    for n in (2, 3, 4, 8):
        assert finite(roundtrip(make(f"bfp:bits={n}"), array)[1]).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes(dtype):
    for n in (0, 1, 31, 63, 64, 65, 127, 130, 1023, 1024, 1025, 2113, 20_003):
        if dtype.itemsize > 2 or n not in (65, 130):  # where rows of words exceed these arrays
            check_wave(make("bfp"), dtype, n)


#: Signal-to-noise ratios of the fields in dB, by bits a value.
TABLE = {
    "vorticity.512_512": {5: 27.0, 6: 33.5, 7: 39.7, 8: 45.8, 15: 88.1},
    "wmag91.float": {5: 33.5, 6: 40.1, 7: 46.5, 8: 52.6, 15: 94.9},
    "transformer_gradients.f32": {5: 25.9, 6: 32.1, 7: 38.3, 8: 44.4, 15: 86.6},
    "transformer_weights.f32": {5: 30.1, 6: 36.5, 7: 42.6, 8: 48.7, 15: 90.9},
}


@pytest.mark.parametrize("data", TABLE)
def test_fields(data):
    array = field(data).reshape(-1)
    for n, expected in TABLE[data].items():
        frame = make(f"bfp:bits={n}").encode(array)
        assert inspect(frame).codec == "bfp"
        error = array.astype(float) - compcoll.decode(frame)
        assert snr(array, compcoll.decode(frame)) >= expected - 0.3
        assert np.abs(error).max() <= inspect(frame).bound <= 1.5 * np.abs(error).max()
        assert frame.nbytes * 8 <= (n + 0.35) * array.size


def snr(exact_values, found):
    x = exact_values.astype(float)
    return 10 * np.log10((x**2).sum() / ((x - found) ** 2).sum())


def test_stochastic_rounding_is_unbiased():
    rng = np.random.default_rng(0)
    for array in (rng.uniform(-1, 1, 128), 5 + np.sin(np.arange(128) / 20)):
        array = array.astype(np.float32)
        trials, total, square = 1000, np.zeros(128), np.zeros(128)
        for seed in range(trials):
            codec = make(f"bfp:bits=4,rounding=stochastic,seed={seed}")
            payload, bound, params = encode(codec, array)
            decoded = np.empty_like(array)
            _cpu.decode(codec._index, 11, (128,), params, payload, decoded.view(np.uint8))
            total += decoded
            square += (decoded - array.astype(float)) ** 2
        deviation = np.sqrt(square / trials)
        assert (np.abs(total / trials - array) <= 5 * deviation / np.sqrt(trials) + 1e-6).all()
        assert 0.2 * bound < deviation.max() <= bound * 0.54


def test_stochastic_rounding_depends_on_the_seed():
    array = np.random.default_rng(1).standard_normal(6400).astype(np.float32)
    one, again, *others = (
        encode(make(f"bfp:rounding=stochastic,seed={seed}"), array)[0] for seed in (1, 1, 2, 1 + 2**40)
    )
    assert np.array_equal(one, again)
    assert not any(np.array_equal(one, other) for other in others)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_bytes_are_safe(dtype):
    rng = np.random.default_rng(7)
    for spec, n in (("bfp:bits=7", 200), ("bfp:bits=3,dim=5", 2100)):
        codec = make(spec)
        array = np.sin(np.arange(n)).astype(dtypes.real_dtype(dtype)).astype(dtype)
        sound, _, params = encode(codec, array)
        for _ in range(20):
            payload = np.frombuffer(rng.bytes(sound.size), np.uint8).copy()
            assert status_of(codec, params, payload, dtype, n) in (0, _cpu.BAD_STREAM)
            keep = sound.copy()
            keep[: sound.size // 2] = payload[: sound.size // 2]  # scales and bases are unchanged
            decode_everywhere(codec, params, keep, array)
        for length in {0, 1, sound.size // 2, sound.size - 1, sound.size + 1}:
            assert status_of(codec, params, np.zeros(length, np.uint8), dtype, n) == _cpu.BAD_STREAM
        one = 7 | 1 << 8
        for word in (0, 1, 7, 1 | 1 << 8, 53 | 1 << 8, 7 | 33 << 8, one | 1 << 16, one | 1 << 33):
            assert status_of(codec, (word, 0), sound, dtype, n) == _cpu.BAD_STREAM


def test_a_base_or_a_scale_that_is_none_is_refused():
    payload, _, params = encode(make("bfp"), np.sin(np.arange(1000, dtype=np.float32)))
    bad_bases = np.array([np.nan, np.inf, -(2.0**125)], np.float32)
    for place, bad in (*((slice(-4, None), one) for one in bad_bases), (slice(-36, -34), np.uint16(0xFFFF))):
        damaged = payload.copy()
        damaged[place] = np.frombuffer(bad.tobytes(), np.uint8)
        assert status_of(make("bfp"), params, damaged, FLOAT32, 1000) == _cpu.BAD_STREAM


def test_encoder_keeps_to_its_capacity():
    check_capacity(make("bfp"), np.ones(1000, np.float32))


def reconstruct(codec, src, values):
    """Return (payload or status, bound); check that the bytes after the payload are untouched."""
    room = np.full(src.nbytes + 64, 0xA5, np.uint8)
    code, params = dtypes.code_of(src.dtype), codec.params(src.dtype, src.shape)
    args = codec._index, code, src.shape, params, bits(src)
    n, bound, _ = _cpu.reconstruct(*args, room[: src.nbytes], bits(values))
    assert (room[src.nbytes :] == 0xA5).all()
    return (room[:n] if n >= 0 else n), bound


def check_reconstruction(codec, array):
    """Check payload, bound and decoded values on every level, in place and out of place."""
    payload, bound, params = encode_everywhere(codec, array)
    expected = decode_everywhere(codec, params, payload, array)

    def kept():
        room = np.full(array.size + 8, 7).astype(array.dtype)
        values = room[: array.size]
        for src in (array, values):
            values[:] = array
            found, error = reconstruct(codec, src, values)
            assert np.array_equal(found, payload)
            assert error == bound
            assert np.array_equal(bits(values), bits(expected))
            assert (room[array.size :] == np.array(7).astype(array.dtype)).all()

    on_every_level(kept)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spec", ["bfp:bits=6", "bfp:bits=9,dim=5", "bfp:bits=5,rounding=stochastic,seed=3"])
def test_encoding_gives_the_decoded_values_too(dtype, spec):
    for array in kinds(dtype, 300, 300):
        check_reconstruction(make(spec), array)
    for n in (10_000, 20_000):  # one tile, and more tiles than are encoded together
        check_reconstruction(make(spec), next(kinds(dtype, n, n)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_decoding_past_the_cache_to_any_address(level, dtype):
    specs = ("raw", "bfp:bits=2", "bfp:bits=7", "bfp:bits=12", "bfp:bits=9,dim=5")
    # No full tile, one, and more than fit next to each other.
    for spec, n in product(specs, (64, 300, 2500, 9000)):
        codec, array = make(spec), next(kinds(dtype, n, n))
        payload, _, params = encode(codec, array)
        if isinstance(payload, int):
            continue
        args = codec._index, dtypes.code_of(dtype), (n,), params, payload
        expected = np.empty_like(array)
        assert _cpu.decode(*args, bits(expected)) == 0
        for offset in (0, 7, 28, 49, 63):
            room = np.full(array.nbytes + 128, 0xA5, np.uint8)
            begin = (offset - room.ctypes.data) % 64
            end = begin + array.nbytes
            assert _cpu.decode(*args, room[begin:end], past_cache=True) == 0
            assert np.array_equal(room[begin:end], bits(expected))
            assert (room[:begin] == 0xA5).all()
            assert (room[end:] == 0xA5).all()
            damaged = payload[:-1] if n % 2 else payload[4:]
            assert _cpu.decode(*args[:-1], damaged, room[begin:end], past_cache=True) == _cpu.BAD_STREAM


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d != np.float16], ids=str)
def test_arrays_below_the_least_step_go_out_lossless(dtype):
    real = dtypes.real_dtype(dtype)
    wide = np.float64 if real.itemsize == 8 else np.float32
    tiniest = float(np.finfo(wide).smallest_subnormal)
    for n in (2, 7) if dtype.itemsize == 2 else (2, 7, 24):  # more bits than the array has for 16-bit types
        codec, shape = make(f"bfp:bits={n}"), np.random.default_rng(n).uniform(-1, 1, 3000)
        shape[7] = 1
        least = (2.0**-511 if real.itemsize == 8 else 2.0**-126) * (2 ** (n - 1) - 1)
        for largest in (tiniest, least / 1e6, least / 2, least * (1 - 2.0**-6)):
            array = (shape * largest).astype(wide).astype(real).view(dtype)
            if reals(array).astype(wide).any():
                check_refused_everywhere(codec, array, _cpu.UNREPRESENTABLE)
                frame = codec.encode(array)
                assert inspect(frame).fallback
                assert np.array_equal(bits(compcoll.decode(frame)), bits(array))
        # A part of a larger array, and zeros, are not refused.
        for array in (np.where(np.arange(3000) < 1500, shape * least / 2, shape), np.zeros(3000)):
            assert roundtrip(codec, array.astype(real).view(dtype))[1] is not None


def check_refused_everywhere(codec, array, status):
    """Check that no level encodes an array, and that a refused in-place source stays unchanged."""
    assert encode_everywhere(codec, array)[0] == status
    values = array.copy()
    assert agreed(reconstruct, codec, values, values)[0] == status
    assert values.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_source_that_is_refused_is_not_touched(dtype):
    for bad in (np.nan, -np.inf, 2.0**126, 2.0**510):
        array = np.sin(np.arange(20_000)).astype(dtypes.real_dtype(dtype)).view(dtype)
        with np.errstate(over="ignore"):
            reals(array)[15_000] = bad
        expected = encode(make("bfp"), array)[0]
        if isinstance(expected, int):  # otherwise the value fits this type
            check_refused_everywhere(make("bfp"), array, expected)


#: First 16 digits of the SHA-256 of the payloads of `golden_arrays`.
GOLDEN = {
    "walk float16": ("93c8a2ac32d007ce", "c210c9cdb9aa0c03"),
    "noise float16": ("343b367f4e281f07", "ce0efb86c88de808"),
    "walk bfloat16": ("fb883f0b1d559251", "4a9e2da514dbd2b2"),
    "noise bfloat16": ("257705e2ac48e5f3", "05fe0fc192e65731"),
    "walk float32": ("0a143e72cc12851f", "802813fce64f8708"),
    "noise float32": ("b661aad180f3a744", "a3ac2ff2c104eff1"),
    "walk float64": ("cd389dc4d06f6210", "f89da68a70f1faa7"),
    "noise float64": ("ff1a7f08f581bd70", "28bcc08ce5a19eac"),
    "walk complex64": ("b48ba3a6cd487a2b", "802813fce64f8708"),
    "noise complex64": ("b0e26fab45dcc6d7", "a3ac2ff2c104eff1"),
    "walk complex128": ("cc6e6d96ac3da38a", "f89da68a70f1faa7"),
    "noise complex128": ("31e31e9543a5d1b6", "28bcc08ce5a19eac"),
}


def golden_arrays():
    """Yield arrays made of integers and powers of two, which are equal on every machine."""
    rng = np.random.default_rng(5)
    walk = np.cumsum(rng.integers(-(2**10), 2**10, 3000)) / 2.0**12
    noise = rng.integers(-(2**12), 2**12, 3000) / 2.0**12
    for dtype in (*FLOATS,):
        for name, x in (("walk", walk), ("noise", noise)):
            yield f"{name} {dtype}", x.astype(dtypes.real_dtype(dtype)).view(dtype)


def test_bytes_stay_what_they_are():
    specs = ("bfp:bits=7", "bfp:bits=5,dim=3,rounding=stochastic,seed=9")
    found = {
        name: tuple(hashlib.sha256(encode_everywhere(make(s), array)[0]).hexdigest()[:16] for s in specs)
        for name, array in golden_arrays()
    }
    assert found == GOLDEN


def test_bits_and_the_relative_error():
    for rel, dtype, n in (
        (1e-3, "f4", 10),
        (0.5, "f4", 3),
        (1e-6, "f8", 20),
        (1e-7, "f4", 25),
        (1e-2, "f2", 8),
    ):
        assert make(f"bfp:rel={rel}").params(np.dtype(dtype), (1,))[0] & 255 == n, (rel, dtype)
    assert make("bfp:bits=40").params(np.dtype("f4"), (1,))[0] == 24 | 1 << 8
    assert make("bfp").params(np.dtype("c16"), (1,))[0] == 8 | 2 << 8
    array = np.sin(np.arange(1000)).astype(np.float32)
    assert inspect(make("bfp:rel=1e-8").encode(array)).bound == 0  # lossless
    # Rounding the result to 16 bits at most doubles the error.
    frame = make("bfp:rel=1e-3").encode(array.astype(ml_dtypes.bfloat16))
    assert inspect(frame).codec == "bfp"
    assert 0 < inspect(frame).bound <= 1e-3
    assert inspect(make("bfp:rel=1e-5").encode(array.astype(ml_dtypes.bfloat16))).bound == 0


def test_options():
    for options, message in (
        ("bits=1", "bits=1 is not an integer from 2 to 52"),
        ("bits=7.5", r"bits=7\.5 is not an integer"),
        ("bits=8,rel=0.1", "both bits=8 and rel=0.1 are given"),
        ("rel=0.6", "rel=0.6 is not between 8.882e-16 and 0.5"),
        ("rel=nan", "rel=nan is not between"),
        ("rel=x", "rel='x' is not a number"),
        ("dim=0", "dim=0 is not an integer from 1 to 32"),
        ("rounding=up", "rounding='up' is not one of nearest, stochastic"),
        ("seed=-1", "seed=-1 is not an integer from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make(f"bfp:{options}")
    assert make("bfp") == make("bfp:bits=8")
    for spec in ("bfp:bits=5,dim=3,rounding=stochastic,seed=7", "bfp:rel=0.001"):
        assert make(spec).spec == spec

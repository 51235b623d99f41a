"""Checks that every lossless codec must pass, for the tests of `mpc`, `float` and `lossless`."""

import ctypes
import mmap
from functools import cache

import numpy as np
from floats import on_every_level

from compcoll.codecs.decoding import accumulator_dtype
from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES, inspect

DTYPES = list(dtypes.CODES)
PAGE = mmap.PAGESIZE
GUARD = 0xA5


def fenced(use: str, nbytes: int, at_end: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Bytes next to a page without access, and 64 guard bytes at the other end; valid until the next call."""
    pages = -(-(nbytes + 64) // PAGE)
    memory = _fence(use, pages)
    memory[:] = GUARD
    if at_end:
        return memory[-nbytes or memory.size :], memory[-nbytes - 64 : -nbytes or memory.size]
    return memory[:nbytes], memory[nbytes : nbytes + 64]


@cache
def _fence(use: str, pages: int) -> np.ndarray:
    """Memory between two pages without access."""
    memory = np.frombuffer(mmap.mmap(-1, (pages + 2) * PAGE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    for begin in (0, (pages + 1) * PAGE):
        if libc.mprotect(ctypes.c_void_p(memory.ctypes.data + begin), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory[PAGE:-PAGE]


def encoded(codec, array: np.ndarray, capacity: int) -> tuple[int, bytes]:
    """Encode between fences; return the payload's size, or a negative status, and the payload."""
    (src, _), (dst, guard) = fenced("src", array.nbytes), fenced("dst", capacity)
    src[:] = array.reshape(-1).view(np.uint8)
    code, params = dtypes.code_of(array.dtype), codec.params(array.dtype, array.shape)
    index = _cpu.index(codec.name)
    n, bound, out_params = _cpu.encode(index, code, array.shape, params, src, dst)
    assert (guard == GUARD).all()
    assert n < 0 or (bound, out_params) == (0, params)
    return n, bytes(dst[: max(n, 0)])


def payloads(codec, array: np.ndarray, capacity: int | None = None) -> bytes:
    """The codec's payload, which must be equal on every level; None if it does not fit."""
    room = array.nbytes + array.nbytes // 4 + 4096 if capacity is None else capacity
    results = on_every_level(encoded, codec, array, room)
    assert len(set(results)) == 1, [n for n, _ in results]
    n, payload = results[0]
    assert n >= 0 or (capacity is not None and n == _cpu.TOO_LARGE)
    return payload if n >= 0 else None


def decoded(codec, payload: bytes, array: np.ndarray) -> tuple[int, bytes]:
    """Decode between fences; return the status, and the values if it is 0."""
    (data, _), (dst, guard) = fenced("payload", len(payload)), fenced("decoded", array.nbytes)
    data[:] = np.frombuffer(payload, np.uint8)
    code, params = dtypes.code_of(array.dtype), codec.params(array.dtype, array.shape)
    status = _cpu.decode(_cpu.index(codec.name), code, array.shape, params, data, dst)
    assert (guard == GUARD).all()
    assert status in (0, _cpu.BAD_STREAM)
    return status, b"" if status else bytes(dst)


def decode_everywhere(codec, payload: bytes, array: np.ndarray) -> tuple[int, bytes]:
    """Status and values from `decoded`, which must be equal on every level."""
    results = on_every_level(decoded, codec, payload, array)
    assert len(set(results)) == 1, [status for status, _ in results]
    return results[0]


def check_round_trip(codec, array: np.ndarray) -> bytes:
    """Check that payload and values are equal on every level, and that too small a capacity is refused."""
    payload = payloads(codec, array)
    assert decode_everywhere(codec, payload, array) == (0, array.tobytes())
    assert payloads(codec, array, len(payload)) == payload
    if payload:
        assert payloads(codec, array, len(payload) - 1) is None
    return payload


def check_add(codec, array: np.ndarray) -> None:
    """Check that a fused addition, if there is one, equals decoding and adding, on every level."""
    acc = np.arange(array.size).astype(accumulator_dtype(array.dtype))
    frame = codec.encode(array)
    info = inspect(frame)
    assert info.codec == codec.name
    with np.errstate(over="ignore"):
        expected = acc + array.astype(acc.dtype)

    def added():
        out = acc.copy()
        args = _cpu.index(codec.name), dtypes.code_of(array.dtype), array.shape, info.params
        data = frame[HEADER_NBYTES:], out.view(np.uint8)
        return _cpu.decode_add(*args, *data, dtypes.code_of(out.dtype)), out.tobytes()

    assert set(on_every_level(added)) <= {(0, expected.tobytes()), (None, acc.tobytes())}


def check_damage(codec, array: np.ndarray, rng) -> None:
    """Check that decoders of damaged payloads stay within their buffers, and that levels agree."""
    payload = payloads(codec, array)
    for cut in {0, 1, 7, 8, len(payload) // 2, len(payload) - 1} & set(range(len(payload))):
        assert decode_everywhere(codec, payload[:cut], array)[0] == _cpu.BAD_STREAM
    assert decode_everywhere(codec, payload + bytes(8), array)[0] == _cpu.BAD_STREAM
    for _ in range(30):
        bad = np.frombuffer(payload, np.uint8).copy()
        size = bad.size if rng.random() < 0.5 else min(bad.size, 96)  # half of the damage is near the header
        for at in rng.integers(0, size, rng.integers(1, 4)):
            bad[at] ^= rng.integers(1, 256)
        decode_everywhere(codec, bad.tobytes(), array)
    decode_everywhere(codec, rng.bytes(len(payload)), array)


def check_frame(codec, array: np.ndarray) -> np.ndarray:
    """Check that a frame decodes to equal bits and exceeds the raw bytes by at most a header; return it."""
    frame = codec.encode(array)
    assert frame.nbytes <= array.nbytes + HEADER_NBYTES
    back = codec.decode(frame)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    return frame


def samples(dtype: np.dtype, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of n values that exercise each form a codec may take."""
    rng = np.random.default_rng(seed)
    real = dtypes.real_dtype(dtype)
    m = n * dtype.itemsize // real.itemsize
    integers = dtype.kind in "iu"
    wave = np.cumsum(rng.standard_normal(m))
    noise = rng.standard_normal(m) * 0.02

    def cast(values):
        with np.errstate(all="ignore"):
            values = np.clip(values * 50, -100, 100) % 128 if integers else values
            return values.astype(real).view(dtype)

    sparse = cast(noise)
    sparse.view(real)[rng.random(m) < 0.6] = 0
    with np.errstate(all="ignore"):
        wide = cast(np.exp2(rng.uniform(-160, 160, m)) if not integers else wave * 1e3)
    return {
        "bits": np.frombuffer(rng.bytes(n * dtype.itemsize), dtype),
        "zeros": np.zeros(n, dtype),
        "ones": np.frombuffer(b"\xff" * (n * dtype.itemsize), dtype),
        "wave": cast(wave),
        "noise": cast(noise),
        "sparse": sparse,
        "wide": wide,
    }

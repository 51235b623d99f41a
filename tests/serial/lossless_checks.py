"""What every lossless codec has to hold, for the tests of `mpc`, `float` and `lossless`."""

import ctypes
import mmap
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from compcoll import FrameError, decode
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES, inspect

DTYPES = list(dtypes.CODES)
PAGE = mmap.PAGESIZE
GUARD = 0xA5


@contextmanager
def cpu_level(name):
    before = _cpu.level()
    _cpu.set_level(name)
    try:
        yield
    finally:
        _cpu.set_level(before)


def fenced(use: str, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes whose end nothing can be read behind, and 64 guard bytes before them; until the next call."""
    pages = -(-(nbytes + 64) // PAGE) + 1
    memory = _fence(use, pages)[-PAGE - nbytes - 64 : -PAGE]
    memory[:] = GUARD
    return memory[64:], memory[:64]


@cache
def _fence(use: str, pages: int) -> np.ndarray:
    memory = np.frombuffer(mmap.mmap(-1, pages * PAGE), np.uint8)
    last = ctypes.c_void_p(memory.ctypes.data + (pages - 1) * PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(last, ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memory


def payloads(codec, array: np.ndarray, capacity: int | None = None) -> bytes:
    """The codec's payload, the same on every level, from a source and into a room that are fenced."""
    name, code, shape = codec.name, dtypes.code_of(array.dtype), array.shape
    params = codec.params(array.dtype, shape)
    room = array.nbytes + array.nbytes // 4 + 4096 if capacity is None else capacity
    results = {}
    for level in _cpu.available_levels():
        (src, _), (dst, guard) = fenced("src", array.nbytes), fenced("dst", room)
        src[:] = array.reshape(-1).view(np.uint8)
        with cpu_level(level):
            n, bound, out_params = _cpu.encode(_cpu.index(name), code, shape, params, src, dst)
        assert (guard == GUARD).all()
        if n >= 0:
            assert bound == 0
            assert out_params == params
        results[level] = (n, bytes(dst[:n]) if n >= 0 else b"")
    assert len(set(results.values())) == 1, {level: n for level, (n, _) in results.items()}
    n, payload = next(iter(results.values()))
    assert n >= 0 or (capacity is not None and n == _cpu.TOO_LARGE)
    return payload if n >= 0 else None


def decode_everywhere(codec, payload: bytes, array: np.ndarray) -> int:
    """Decode on every level between fences; the status, which is 0 only where they all agree."""
    code, params = dtypes.code_of(array.dtype), codec.params(array.dtype, array.shape)
    statuses = set()
    decoded = set()
    for level in _cpu.available_levels():
        (data, _), (dst, guard) = fenced("payload", len(payload)), fenced("decoded", array.nbytes)
        data[:] = np.frombuffer(payload, np.uint8)
        with cpu_level(level):
            status = _cpu.decode(_cpu.index(codec.name), code, array.shape, params, data, dst)
        assert (guard == GUARD).all()
        statuses.add(status)
        if status == 0:
            decoded.add(bytes(dst))
    assert len(statuses) == 1
    assert len(decoded) <= 1
    status = statuses.pop()
    assert status in (0, _cpu.BAD_STREAM)
    return status


def check_round_trip(codec, array: np.ndarray) -> bytes:
    """Equal bits back on every level, from equal bytes; and a room that is too small is noticed."""
    payload = payloads(codec, array)
    code, params = dtypes.code_of(array.dtype), codec.params(array.dtype, array.shape)
    for level in _cpu.available_levels():
        (data, _), (dst, guard) = fenced("payload", len(payload)), fenced("decoded", array.nbytes)
        data[:] = np.frombuffer(payload, np.uint8)
        with cpu_level(level):
            assert _cpu.decode(_cpu.index(codec.name), code, array.shape, params, data, dst) == 0
        assert (guard == GUARD).all()
        assert bytes(dst) == array.tobytes()
    assert payloads(codec, array, len(payload)) == payload
    if payload:
        assert payloads(codec, array, len(payload) - 1) is None
    return payload


def check_add(codec, array: np.ndarray) -> None:
    """The fused addition, where there is one, gives what decoding and adding give, on every level."""
    acc = np.arange(array.size).astype(accumulator_dtype(array.dtype))
    frame = codec.encode(array)
    assert inspect(frame).codec == codec.name
    with np.errstate(over="ignore"):
        expected = acc + array.astype(acc.dtype)
    for level in _cpu.available_levels():
        with cpu_level(level):
            out = acc.copy()
            info, codes = inspect(frame), [dtypes.code_of(one.dtype) for one in (array, out)]
            args = _cpu.index(codec.name), codes[0], array.shape, info.params, frame[HEADER_NBYTES:]
            status = _cpu.decode_add(*args, out.view(np.uint8), codes[1])
            if status is None:
                return
            assert status == 0
            assert out.tobytes() == expected.tobytes()


def check_damage(codec, array: np.ndarray, rng) -> None:
    """No damaged payload makes a decoder touch what is not its own, or levels disagree."""
    payload = payloads(codec, array)
    for cut in {0, 1, 7, 8, len(payload) // 2, len(payload) - 1} & set(range(len(payload))):
        assert decode_everywhere(codec, payload[:cut], array) == _cpu.BAD_STREAM
    assert decode_everywhere(codec, payload + bytes(8), array) == _cpu.BAD_STREAM
    for _ in range(60):
        bad = np.frombuffer(payload, np.uint8).copy()
        size = bad.size if rng.random() < 0.5 else min(bad.size, 96)  # headers deserve half of it
        for at in rng.integers(0, size, rng.integers(1, 4)):
            bad[at] ^= rng.integers(1, 256)
        decode_everywhere(codec, bad.tobytes(), array)
    decode_everywhere(codec, rng.bytes(len(payload)), array)


def check_frame(codec, array: np.ndarray) -> np.ndarray:
    """A frame gives equal bits back and is never larger than the raw bytes and the header."""
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


def check_damaged_head(codec, array, at):
    """One changed bit of a payload's head, which no checksum guards, is told."""
    frame = codec.encode(array, checksum=False).copy()
    frame[inspect(frame).payload_offset + at] ^= 1
    with pytest.raises(FrameError, match="not a stream of this codec"):
        decode(frame)

"""Differences to a base: exact on every level, bounded, and never against another base."""

from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from floats import on_every_level
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_checks import DTYPES, GUARD, fenced, samples

import compcoll
from compcoll import FrameError
from compcoll.codecs import delta
from compcoll.core import _cpu, dtypes
from compcoll.frame import HEADER_NBYTES, inspect

INDEX = _cpu.index("delta")


def encode_everywhere(array: np.ndarray, base: np.ndarray) -> tuple[bytes, tuple[int, int]] | None:
    """Encode from fenced sources; return payload and params, equal on every level, or None if refused."""

    def encoded():
        (src, _), (known, _) = fenced("src", array.nbytes), fenced("base", array.nbytes)
        dst, guard = fenced("dst", array.nbytes)
        src[:], known[:] = array.view(np.uint8), base.view(np.uint8)
        code = dtypes.code_of(array.dtype)
        n, _, params = _cpu.encode(INDEX, code, array.shape, (1, 0), src, dst, known)
        assert (guard == GUARD).all()
        assert n >= 0 or n == (_cpu.TOO_LARGE if array.size else _cpu.UNSUPPORTED)
        return (bytes(dst[:n]), params) if n >= 0 else None

    (result,) = set(on_every_level(encoded))
    return result


def decode_everywhere(payload: bytes, params, base: np.ndarray) -> bytes | None:
    """Decode on every level, also in place; return the bytes, which must be equal, or None if damaged."""

    def decoded(in_place):
        (data, _), (known, _) = fenced("payload", len(payload)), fenced("base", base.nbytes)
        dst, guard = fenced("decoded", base.nbytes)
        data[:], known[:] = np.frombuffer(payload, np.uint8), base.view(np.uint8)
        out, code = known if in_place else dst, dtypes.code_of(base.dtype)
        status = _cpu.decode(INDEX, code, base.shape, params, data, out, known)
        assert status in (0, _cpu.BAD_STREAM)
        assert (guard == GUARD).all()
        return bytes(out) if status == 0 else None

    (result,) = {*on_every_level(decoded, False), *on_every_level(decoded, True)}
    return result


def changed(base: np.ndarray, share: float, size: int, seed: int = 0) -> np.ndarray:
    """A copy of an array in which a share of the words changes, each by at most ``size``."""
    rng = np.random.default_rng(seed)
    word = np.dtype(f"u{min(base.dtype.itemsize, 8)}")
    array = base.copy()
    words = array.view(word)
    chosen = rng.random(words.size) < share
    words[chosen] += rng.integers(-size, size + 1, chosen.sum()).astype(np.int64).astype(word)
    return array


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype):
    """Every kind of values and of change decodes to equal bits; frames exceed arrays by at most a header."""
    changes = ((0, 1), (0.01, 1), (0.2, 3), (0.6, 100), (1, 2**20))
    for n in (0, 1, 31, 2049, 40_003):
        pairs = list(product(samples(dtype, n).values(), changes))
        for base, change in pairs[:: 6 if n == 40_003 else 1]:
            array = changed(base, *change)
            found = encode_everywhere(array, base)
            if found is not None:
                assert decode_everywhere(*found, base) == array.tobytes(), change
            frame = delta.encode(array, base)
            assert frame.nbytes <= array.nbytes + HEADER_NBYTES
            assert delta.decode(frame, base).tobytes() == array.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.binary(max_size=6000),
    st.binary(max_size=6000),
    st.integers(0, 5000),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
def test_any_values(dtype, one, other, n, share):
    """Any array decodes to equal bits with any base."""
    nbytes = n * dtype.itemsize
    base = np.frombuffer((one * (nbytes // max(len(one), 1) + 1)).ljust(nbytes, b"\0")[:nbytes], dtype)
    new = np.frombuffer((other * (nbytes // max(len(other), 1) + 1)).ljust(nbytes, b"\0")[:nbytes], dtype)
    array = np.where(np.random.default_rng(n).random(n) < share, new, base)
    found = encode_everywhere(array, base)
    if found is not None:
        assert decode_everywhere(*found, base) == array.tobytes()
    assert delta.decode(delta.encode(array, base), base).tobytes() == array.tobytes()


#: First 16 digits of the SHA-256 of the payloads of five kinds of changes.
GOLDEN = {
    "i1": "1572f0cf9177b574",
    "u2": "a819ffb2d06eaccd",
    "f4": "88804885c4b86c97",
    "f8": "d5ed6d56374f8d33",
}


@pytest.mark.parametrize("dtype", GOLDEN)
def test_bytes_stay_what_they_are(dtype):
    """Payloads keep their bytes if few, some, many or all words of a block differ, by little or by more."""
    size = np.dtype(dtype).itemsize
    base = np.random.default_rng(4).integers(0, 256, 6001 * size, np.uint8).view(dtype)
    found, changes = sha256(), ((0.003, 1), (0.1, 4), (0.4, 1000), (1.0, 20), (1.0, 2**40))
    for share, most in changes:
        payload, params = encode_everywhere(changed(base, share, most), base) or (b"", (0, 0))
        found.update(payload + params[0].to_bytes(8, "little"))
    assert found.hexdigest()[:16] == GOLDEN[dtype], "a change needs a new version"


def test_base_is_named():
    """Decoding with another base or none raises, and so does encoding with a wrong base or number."""
    base = samples(np.dtype("f4"), 5000)["wave"]
    array = changed(base, 0.01, 1)
    frame = delta.encode(array, base, 7)
    info = inspect(frame)
    assert info.codec == "delta"
    assert info.params[1] >> 32 == 7
    assert delta.decode(frame, base).tobytes() == array.tobytes()
    other = base.copy()
    other.view("u4")[77] ^= 1
    for wrong in (other, base[:-1], base.astype("f8"), None):
        with pytest.raises(FrameError, match="prepared again"):
            delta.decode(frame, wrong)
    with pytest.raises(FrameError, match="prepared again"):
        compcoll.decode(frame)
    with pytest.raises(ValueError, match="the base is"):
        delta.encode(array, base[:-1])
    with pytest.raises(ValueError, match="number = 0"):
        delta.encode(array, base, 0)


def test_without_base():
    values = samples(np.dtype("f4"), 5000)["noise"]
    for frame in (delta.encode(values, None), compcoll.codec("delta").encode(values)):
        assert bytes(frame) == bytes(compcoll.codec("lossless").encode(values))
        assert delta.decode(frame, None).tobytes() == values.tobytes()


def test_damage():
    """Decoders stay within their buffers, levels agree, and a frame's checksum detects all damage."""
    rng = np.random.default_rng(3)
    for dtype in ("u2", "f4", "f8"):
        base = samples(np.dtype(dtype), 5000)["noise"]
        for share in (0.01, 0.3, 1):
            array = changed(base, share, 50)
            found = encode_everywhere(array, base)
            if found is None:
                continue
            payload, params = found
            for cut in (0, 1, len(payload) // 2, len(payload) - 1):
                assert decode_everywhere(payload[:cut], params, base) is None
            assert decode_everywhere(payload + b"\0", params, base) is None
            for _ in range(30):
                bad = np.frombuffer(payload, np.uint8).copy()
                bad[rng.integers(0, bad.size, rng.integers(1, 4))] ^= np.uint8(rng.integers(1, 256))
                decode_everywhere(bad.tobytes(), params, base)
            frame = delta.encode(array, base).copy()
            frame[rng.integers(HEADER_NBYTES, frame.size)] ^= 4
            with pytest.raises(FrameError):
                delta.decode(frame, base)


def test_xor_or_difference():
    """A sample of the values chooses: small steps are coded as differences, and flags by XOR."""
    rng = np.random.default_rng(1)
    base = rng.integers(0, 2**16, 50_000).astype("u2")
    steps = base + rng.integers(-1, 2, base.size).astype("u2")
    flags = base ^ (rng.random(base.size) < 0.3).astype("u2")
    assert inspect(delta.encode(steps, base)).params[0] == 257
    assert inspect(delta.encode(flags, base)).params[0] == 1

"""Frames: the fields of a header, and every damaged frame is refused."""

import math
import struct

import numpy as np
import pytest

import compcoll
from compcoll import FrameError, codec
from compcoll.core import _cpu
from compcoll.frame import HEADER_NBYTES, as_bytes, inspect

LAYOUT = struct.Struct("<4sBBBB8sQQQQQQdII")
FIELDS = [
    "magic",
    "version",
    "flags",
    "dtype",
    "ndim",
    "codec",
    "param0",
    "param1",
    "dim0",
    "dim1",
    "dim2",
    "payload_nbytes",
    "bound",
    "checksum",
    "own",
]
SPECS = ["raw", "mpc", "lossless", "float", "zfp:rate=8", "szp:abs=1e-2", "int8", "fp8", "bfp:bits=6"]


def wave(n=48, dtype="f4"):
    return (np.sin(np.arange(n) / 7) * 9).astype(dtype)


def compressed(spec, **options):
    """A frame of 256 values, which must be of the codec itself."""
    frame = codec(spec).encode(np.rint(wave(256)), **options)
    assert inspect(frame).codec == spec.partition(":")[0] or spec == "lossless"
    return frame


def fields(frame):
    return dict(zip(FIELDS, LAYOUT.unpack_from(frame), strict=True))


def forge(frame, **changes):
    """The frame with other fields in its header, and a matching checksum of the header."""
    values = fields(frame) | changes
    forged = np.array(frame)
    LAYOUT.pack_into(forged.data, 0, *values.values())
    forged[76:80].view("<u4")[0] = _cpu.checksum(forged[:76])
    return forged


def test_the_layout_is_the_documented_one():
    frame = codec("zfp:rate=8").encode(wave().reshape(6, 8))
    got = fields(frame)
    payload = frame[HEADER_NBYTES:]
    assert LAYOUT.size == HEADER_NBYTES == 80
    assert got["magic"] == b"CCF1"
    assert (got["version"], got["flags"], got["dtype"], got["ndim"]) == (1, 1, 11, 2)
    assert got["codec"] == b"zfp\0\0\0\0\0"
    assert (got["param0"], got["param1"]) == (128, 0)
    assert [got[f"dim{i}"] for i in range(3)] == [6, 8, 1]
    assert got["payload_nbytes"] == payload.size
    assert got["checksum"] == _cpu.checksum(payload)
    assert got["own"] == _cpu.checksum(frame[:76])


@pytest.mark.parametrize("spec", SPECS)
def test_every_flipped_bit_is_noticed(level, spec):
    """Decoding raises for every flipped bit of mpc's frame, and for one in every byte of the others."""
    frame = compressed(spec)
    assert compcoll.decode(frame).size == 256
    every = range(8 * frame.size) if spec == "mpc" else (8 * at + at % 8 for at in range(frame.size))
    for bit in every:
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            compcoll.decode(frame)
        if bit < 8 * HEADER_NBYTES:
            with pytest.raises(FrameError):
                inspect(frame)
        else:
            assert inspect(frame).payload_nbytes == frame.size - HEADER_NBYTES
        frame[bit // 8] ^= 1 << bit % 8
    assert compcoll.decode(frame).size == 256


@pytest.mark.parametrize("spec", SPECS)
def test_every_truncation_is_noticed(spec):
    frame = compressed(spec)
    for nbytes in range(frame.size):
        with pytest.raises(FrameError, match="truncated" if nbytes >= HEADER_NBYTES else "are no frame"):
            inspect(frame[:nbytes])
        with pytest.raises(FrameError):
            compcoll.decode(frame[:nbytes].tobytes())


def test_any_buffer_is_a_frame():
    """Any contiguous buffer decodes as a frame, and bytes after the frame are ignored."""
    frame = compressed("mpc")
    longer = np.concatenate([frame, np.full(100, 0xA5, np.uint8)])
    for buffer in (bytes(frame), bytearray(frame), memoryview(frame), frame, longer):
        assert inspect(buffer) == inspect(frame)
        assert inspect(buffer).codec == "mpc"
        assert compcoll.decode(buffer).tobytes() == np.rint(wave(256)).tobytes()
    with pytest.raises(ValueError, match="contiguous"):
        as_bytes(np.zeros(200, np.uint8)[::2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": b"CCF2"}, "not a frame of compcoll: its magic bytes are b'CCF2', not b'CCF1'"),
        ({"version": 2}, "version 2 is not 1"),
        ({"dtype": 0}, "unknown dtype"),
        ({"dtype": 15}, "unknown dtype"),
        ({"dtype": 255}, "unknown dtype"),
        ({"codec": b"\xff"}, "unknown dtype or codec"),
        ({"codec": b"nosuch"}, "unknown codec 'nosuch'"),
        ({"codec": b""}, "unknown codec ''"),
        ({"codec": b"lossless"}, "not a stream"),
        ({"ndim": 4}, "4 dimensions"),
        ({"ndim": 0}, "0 dimensions"),
        ({"dim1": 2}, "1 dimensions"),
        ({"dim0": 40}, "larger than the array's 160"),
        ({"dim0": 49}, "not a stream"),
        ({"dim0": 2**64 - 1}, "in bytes are more than"),
        ({"dim0": 2**62, "ndim": 3, "dim1": 2**62, "dim2": 4}, "in bytes are more than"),
        ({"dim0": 0, "dim1": 2**63, "ndim": 2, "payload_nbytes": 0}, "in bytes are more than"),
        ({"payload_nbytes": 2**64 - 1}, "larger than the array's 192"),
        ({"payload_nbytes": 191}, "payload's checksum"),
        ({"bound": -1.0}, "bound -1.0 is negative"),
        ({"checksum": 1}, "payload's checksum"),
    ],
)
def test_forged_headers_are_refused(changes, message):
    frame = codec("raw").encode(wave())
    assert compcoll.decode(forge(frame)).size == 48
    with pytest.raises(FrameError, match=message):
        compcoll.decode(forge(frame, **changes))


@pytest.mark.parametrize("spec", SPECS)
def test_random_headers_are_sound_or_refused(spec):
    rng = np.random.default_rng(5)
    frame = compressed(spec, checksum=False)
    accepted = 0
    for _ in range(120):
        forged = frame.copy()
        for at in rng.integers(4, 76, rng.integers(1, 4)):
            forged[at] = rng.choice([0, 1, 2, 255, rng.integers(256), forged[at] ^ 1 << rng.integers(8)])
        forged = forge(forged)
        try:
            decoded = compcoll.decode(forged)
        except (FrameError, MemoryError):  # the array is too large for this machine
            continue
        accepted += 1
        assert decoded.nbytes == inspect(forged).nbytes < 2**32
    assert 0 < accepted < 120


def test_frames_without_a_checksum_say_so():
    frame = codec("raw").encode(wave(), checksum=False)
    assert inspect(frame).checksum is None
    assert fields(frame)["flags"] == 0
    frame[HEADER_NBYTES] ^= 1
    assert compcoll.decode(frame).size == 48


@pytest.mark.parametrize("carried", [0.0, 0.25])
def test_bounds_and_what_was_carried(carried):
    lossy = inspect(codec("szp:abs=0.5").encode(wave(), carried=carried))
    assert lossy.bound == 0.5 + carried
    assert not lossy.fallback
    exact = inspect(codec("mpc").encode(wave(), carried=carried))
    assert exact.bound == carried
    unknown = inspect(codec("mpc").encode(wave(), carried=math.nan))
    assert math.isnan(unknown.bound)


def test_unrepresentable_arrays_fall_back_and_say_so():
    array = wave()
    array[7] = np.nan
    for spec in ("zfp:rate=8", "int8"):
        info = inspect(codec(spec).encode(array))
        assert info.fallback
        assert codec(info.codec).lossless
        assert info.bound == 0
    # Integers are always coded losslessly, which is no fallback.
    assert not inspect(codec("zfp:rate=8").encode(array.view("i4"))).fallback

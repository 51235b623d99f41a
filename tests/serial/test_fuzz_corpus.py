"""Fuzzers' seeds and regressions as frames: every level gives the same value, or a FrameError."""

import importlib.util
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from floats import on_every_level

import compcoll
from compcoll import FrameError, codec
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES, FrameInfo, inspect, pack_header

FUZZ = Path(__file__).parents[2] / "fuzz"
if not FUZZ.is_dir():
    pytest.skip("fuzz/ is not part of this installation", allow_module_level=True)
_spec = importlib.util.spec_from_file_location("seeds", FUZZ / "seeds.py")
seeds = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(seeds)

SEEDS = [(family, path) for family in seeds.FAMILIES for path in sorted((FUZZ / "corpus" / family).iterdir())]
# A regression may concern any codec.
REGRESSIONS = [(family, path) for path in sorted(FUZZ.glob("regressions/*")) for family in seeds.FAMILIES]


def names(family):
    return list(dict.fromkeys(codec(spec).name for spec in seeds.FAMILIES[family]))


def frame_of(name, code, shape, params, payload):
    """A frame with a valid header, so that only the codec can refuse the payload."""
    frame = np.frombuffer(bytes(HEADER_NBYTES) + payload, np.uint8).copy()
    dtype = dtypes.dtype_of(code)
    pack_header(frame, FrameInfo(name, dtype, shape, params, len(payload), np.nan, checksum=None))
    return frame


def agreed(frame):
    """Result of decoding, which must be equal at each level: bytes, or None for a FrameError."""

    def outcome():
        try:
            return compcoll.decode(frame).tobytes()
        except FrameError:
            return None

    (result,) = set(on_every_level(outcome))
    return result


@pytest.mark.parametrize("family", seeds.FAMILIES)
def test_seeds_decode_alike_at_all_levels(family):
    paths = [path for which, path in SEEDS if which == family]
    assert paths
    for path in paths:
        which, code, shape, params, payload = seeds.fields(path.read_bytes())
        decoded = agreed(frame_of(names(family)[which], code, shape, params, payload))
        nbytes = int(np.prod(shape)) * dtypes.dtype_of(code).itemsize
        if len(payload) > nbytes:  # no frame is so long
            assert decoded is None, path
        else:
            assert decoded is not None, path
            assert len(decoded) == nbytes


@pytest.mark.parametrize("family", seeds.FAMILIES)
def test_damaged_seeds_decode_alike_at_all_levels(family):
    """Truncated seeds, and seeds with random bytes changed, decode alike at all levels."""
    rng = np.random.default_rng(0)
    refused = 0
    for path in [path for which, path in SEEDS if which == family]:
        which, code, shape, params, payload = seeds.fields(path.read_bytes())
        if not payload:
            continue
        for _ in range(8):
            bad = bytearray(payload)
            for at in rng.integers(0, len(bad), 3):
                bad[at] = rng.integers(256)
            if rng.integers(2):
                bad = bad[: rng.integers(len(bad))]
            refused += agreed(frame_of(names(family)[which], code, shape, params, bytes(bad))) is None
    assert refused  # at least the truncated ones


@pytest.mark.parametrize("family", seeds.FAMILIES)
def test_no_input_is_taken_for_a_frame(family):
    """inspect refuses seeds and regressions as frames, and levels agree on the regressions' payloads."""
    for path in [path for which, path in [*SEEDS, *REGRESSIONS] if which == family]:
        data = path.read_bytes()
        for frame in (data, b"CCF1" + data, data.ljust(HEADER_NBYTES, b"\0")):
            with pytest.raises(FrameError):
                inspect(frame)
    for path in [path for which, path in REGRESSIONS if which == family]:
        which, code, shape, params, payload = seeds.fields(path.read_bytes())
        known = [dtypes.code_of(dtype) for dtype in dtypes.CODES]
        name = names(family)[which % len(names(family))]
        frame = frame_of(name, code if code in known else known[0], shape, params, payload)
        with suppress(FrameError):  # not all are payloads of a valid frame
            inspect(frame)
            agreed(frame)

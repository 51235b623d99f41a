"""`float` and `mpc`: sums of what they decode, and damaged payloads and frames."""

import numpy as np
import pytest
from lossless_checks import DTYPES, check_add, check_damage, samples

import compcoll
from compcoll import FrameError
from compcoll.codecs.float import Float
from compcoll.codecs.mpc import MPC
from compcoll.core import dtypes

FLOATS = [d for d in DTYPES if d in dtypes.FLOATS]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_add(dtype):
    for n in (3000, 20000):
        check_add(Float(), samples(dtype, n)["noise"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mpc_add(dtype):
    for n in (100, 1000, 5000):
        check_add(MPC(), (samples(dtype, n)["wave"].real * 0).astype(dtype))
    check_add(MPC(), np.repeat(samples(dtype, 500)["wave"], 40))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["noise", "sparse", "bits"])
def test_float_damage(dtype, kind):
    rng = np.random.default_rng(7)
    for n in (100, 5000):
        check_damage(Float(), samples(dtype, n)[kind], rng)


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.complex128], ids=str)
@pytest.mark.parametrize("kind", ["wave", "bits"])
def test_mpc_damage(dtype, kind):
    rng = np.random.default_rng(7)
    for n in (5, 1000, 5000):
        check_damage(MPC(2), samples(np.dtype(dtype), n)[kind], rng)


@pytest.mark.parametrize(
    ("codec", "kind", "at"), [(Float(), "noise", 0), (MPC(), "wave", 4)], ids=["float", "mpc"]
)
def test_damaged_frame(codec, kind, at):
    """One changed bit of a payload's head, which no checksum guards."""
    frame = codec.encode(samples(np.dtype(np.float32), 5000)[kind], checksum=False).copy()
    frame[compcoll.inspect(frame).payload_offset + at] ^= 1
    with pytest.raises(FrameError, match="not a stream of this codec"):
        compcoll.decode(frame)

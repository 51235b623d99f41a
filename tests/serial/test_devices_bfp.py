"""bfp's kernels for a number of bits that the compiler knows, on the CPU: bytes are those of the codec."""

import numpy as np
import pytest
from executor import Executor, library_path
from floats import values
from test_devices_code import check, encode

from compcoll import codec, inspect
from compcoll.core import _cpu, dtypes
from compcoll.devices import kernels

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
TYPES = [np.dtype("f4"), np.dtype("f2"), dtypes.BFLOAT16]
BITS = range(2, 25)
TILE = 1024


@pytest.fixture(scope="module")
def device():
    return Executor(LIBRARY)


def falling(bits, dtype, n, seed):
    """Arrays of a tile whose blocks are nearly constant and fall: the value in front of a block is larger
    than those in it, and more than 2^22 steps.
    """
    rng = np.random.default_rng((bits, seed))
    falls = 1 - 2.0 ** (bits - 24) * rng.random((n, 16, 1)) ** 3
    x = (
        1000
        * rng.random((n, 1, 1))
        * np.cumprod(falls, axis=1)
        * (1 + 2.0**-23 * rng.integers(0, 2, (n, 16, 64)))
    )
    return list(x.reshape(n, TILE).astype(dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_bytes_are_those_of_the_cpu(device, bits, dtype):
    """Whole tiles and parts of one; smooth, rough and constant blocks, zeros, and steps of the least size."""
    real = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[str(dtype)]
    rng = np.random.default_rng(bits)
    smooth = np.cumsum(rng.standard_normal(2 * TILE + 70)) / 100
    tiny = np.ldexp(rng.standard_normal(TILE), rng.integers(-149, -120, TILE))
    mixed = np.where(np.arange(TILE) // 64 % 3, rng.standard_normal(TILE), np.arange(TILE) // 300)
    parts = (smooth, tiny, -mixed, np.zeros(TILE), smooth[: TILE - 1], smooth[:TILE])
    arrays = [x.astype(dtype) for x in parts]
    name = f"bfp:bits={bits}"
    kernel = kernels.encoders("bfp", dtype, codec(name).params(dtype, (1,)))[0]
    assert (kernel.module, kernel.name) == (f"bfp-{real}-{bits}", f"bfp_encode_{real}_{bits}")
    check(device, name, arrays + falling(bits, dtype, 8, 1))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.exhaustive(but=5)
def test_what_is_before_a_block_may_be_many_steps(device, bits):
    check(device, f"bfp:bits={bits}", falling(bits, "f4", 30, 2))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bits", [2, 7, 12])
def test_values_that_are_not_taken(device, bits, dtype):
    """NaN, infinities, and magnitudes from 2^125 on, wherever they are."""
    name = f"bfp:bits={bits}"
    arrays = [values(dtype, 2 * TILE + 5, seed) for seed in range(7)]
    for array, at in zip(arrays, (0, 31, 1023, 1024, 1500, 2050), strict=False):
        array[at] = [np.nan, np.inf, -np.inf][at % 3]
    arrays[5][2050] = 2.0**125 if dtype.itemsize == 4 or dtype == dtypes.BFLOAT16 else np.inf
    frames, results = encode(device, name, arrays)
    expected = [inspect(codec(name).encode(a)) for a in arrays]
    assert [isinstance(f, int) for f in frames] == [e.codec != "bfp" for e in expected]
    assert results["nbytes"][:5].tolist() == [_cpu.NONFINITE] * 5
    assert frames[5] == (_cpu.NONFINITE if dtype == np.float16 else _cpu.UNREPRESENTABLE)


@pytest.mark.parametrize(
    ("spec", "module"),
    [
        ("bfp:bits=7,dim=2", "bfp"),
        ("bfp:bits=7,rounding=stochastic", "bfp"),
        ("bfp:rel=1e-3", "bfp-f32-10"),
        ("bfp", "bfp-f32-8"),
    ],
)
def test_kernels_of_parameters(spec, module):
    params = codec(spec).params(np.dtype("f4"), (1,))
    assert kernels.modules([("bfp", np.dtype("f4"), params, 1)])[-1] == module
    assert kernels.decoders("bfp", np.dtype("f4"), params, True)[0].module == module

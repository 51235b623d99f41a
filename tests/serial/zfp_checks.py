"""What the tests of ``zfp`` share: guarded coding, and a comparison with the zfp library."""

import ml_dtypes
import numpy as np
import zfpy

from compcoll.codecs.zfp import ZFP
from compcoll.core import _cpu, dtypes

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SLACK = 64


def encode(a, rate):
    """(payload or status, bound, header words), with the bytes behind the payload checked."""
    codec = ZFP(rate)
    bits = codec.block_bits(a.dtype, a.ndim)
    real = a.view(dtypes.real_dtype(a.dtype)) if a.dtype.kind == "c" else a
    capacity = (int(np.prod([-(-n // 4) for n in real.shape])) * bits + 63) // 64 * 8
    dst = np.full(capacity + SLACK, 0xA5, np.uint8)
    n, bound, params = codec.encode_payload(a, dst[:capacity])
    assert (dst[capacity:] == 0xA5).all()
    if n < 0:
        return n, bound, params
    assert n == capacity
    return dst[:n], bound, params


def decode(payload, dtype, shape, params):
    """Decoded array or status, with the bytes behind the array checked."""
    size = int(np.prod(shape))
    dst = np.full(size * dtype.itemsize + SLACK, 0xA5, np.uint8)
    out = dst[: size * dtype.itemsize]
    status = _cpu.decode(ZFP._index, dtypes.code_of(dtype), shape, params, payload, out)
    assert (dst[size * dtype.itemsize :] == 0xA5).all()
    return out.view(dtype).reshape(shape) if status == 0 else status


def reference(a, rate):
    """The zfp library's stream, and what it decodes to."""
    stream = zfpy.compress_numpy(a, rate=rate, write_header=False)
    return stream, zfpy._decompress(stream, zfpy.dtype_to_ztype(a.dtype), a.shape, out=None, rate=rate)


def check(a, rate):
    payload, bound, params = encode(a, rate)
    stream, values = reference(a, rate)
    assert payload.tobytes() == stream, (a.shape, rate)
    out = decode(payload, a.dtype, a.shape, params)
    assert out.tobytes() == values.tobytes(), (a.shape, rate)
    error = np.abs(out.astype(np.longdouble) - a.astype(np.longdouble)).max()
    assert error <= bound, (a.shape, rate)
    assert bound / 12 <= np.abs(a).max()

"""``zfp`` next to pages that may not be touched: blocks that are partly outside of the array, and its end."""

import ctypes
import mmap
from itertools import product

import numpy as np
import pytest
import zfpy

from compcoll.codecs.zfp import ZFP
from compcoll.core import _cpu, dtypes

PAGE = mmap.PAGESIZE
NO_ACCESS = 0

libc = ctypes.CDLL(None, use_errno=True)
if not hasattr(libc, "mprotect"):
    pytest.skip("pages cannot be protected here", allow_module_level=True)


class Guarded:
    """Bytes that begin or end where a page without access does."""

    def __init__(self, room):
        self.middle = -(-room // PAGE) * PAGE
        self.memory = mmap.mmap(-1, self.middle + 2 * PAGE)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        for begin in (0, self.middle + PAGE):
            address = ctypes.c_void_p(self.bytes.ctypes.data + begin)
            if libc.mprotect(address, ctypes.c_size_t(PAGE), NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")

    def take(self, nbytes, at_end):
        begin = PAGE + (self.middle - nbytes if at_end else 0)
        return self.bytes[begin : begin + nbytes]


@pytest.fixture(scope="module")
def pages():
    return [Guarded(1 << 18) for _ in range(3)]


SHAPES = {
    1: [(1,), (3,), (61,), (64,), (67,)],
    2: [(3, 3), (5, 70), (70, 5), (9, 21), (7, 67), (33, 13), (130, 3), (3, 130)],
    3: [(3, 2, 3), (5, 6, 23), (4, 4, 65), (9, 7, 17), (1, 30, 19), (30, 1, 6), (41, 3, 2)],
}


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda t: t.__name__)
def test_no_byte_outside_of_the_buffers(level, pages, dtype, ndim):
    """Encoding, decoding and adding touch only their buffers, and the values are the zfp library's."""
    rng = np.random.default_rng(13)
    dtype = np.dtype(dtype)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    code, wide_code = dtypes.code_of(dtype), dtypes.code_of(wide)
    source, stream, result = pages
    for shape, rate, at_end in product(SHAPES[ndim], (3, 4.4, 8, 16), (False, True)):
        codec = ZFP(rate)
        size = int(np.prod(shape))
        a = source.take(size * dtype.itemsize, at_end).view(dtype).reshape(shape)
        a[...] = rng.standard_normal(shape)
        blocks = int(np.prod([-(-n // 4) for n in shape]))
        room = (blocks * codec.block_bits(dtype, ndim) + 63) // 64 * 8
        payload = stream.take(room, at_end)
        n, _, params = codec.encode_payload(a, payload)
        assert n == room
        theirs = zfpy.compress_numpy(a.astype(wide), rate=rate, write_header=False)
        assert payload.tobytes() == theirs, (shape, rate)
        values = zfpy._decompress(theirs, zfpy.dtype_to_ztype(wide), shape, out=None, rate=rate)

        out = result.take(a.nbytes, at_end)
        assert _cpu.decode(ZFP._index, code, shape, params, payload, out) == 0
        assert out.tobytes() == values.astype(dtype).tobytes(), (shape, rate)
        total = result.take(size * wide.itemsize, at_end)
        total.view(wide)[:] = 1
        assert _cpu.decode_add(ZFP._index, code, shape, params, payload, total, wide_code) == 0
        expected = 1 + values.astype(dtype).astype(wide)
        assert total.tobytes() == expected.astype(wide).tobytes(), (shape, rate)

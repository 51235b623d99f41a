"""Guarded arrays on a GPU, and codecs on them; the GPU is CuPy's or the stand-in's."""

import numpy as np
from floats import same

import compcoll
from compcoll import codec, inspect
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.core import dtypes
from compcoll.devices.memory import wrap
from compcoll.frame import HEADER_NBYTES

GUARD = 256


class Room:
    """Poisoned bytes of a GPU between guards, at a multiple of 16 plus ``shift``."""

    def __init__(self, cupy, nbytes: int, shift: int = 0):
        self._whole = wrap(cupy.full(nbytes + 2 * GUARD, 0xA5, np.uint8))
        self._inside = slice(GUARD + shift, GUARD + shift + nbytes)
        self.memory = self._whole[self._inside]

    @property
    def bytes(self) -> np.ndarray:
        """A copy on the host, after checking that the guards are untouched."""
        whole = np.asarray(self._whole)
        assert (whole[: self._inside.start] == 0xA5).all()
        assert (whole[self._inside.stop :] == 0xA5).all()
        return whole[self._inside]


class Array:
    """A GPU copy of an array of any dtype, since not every CuPy has bfloat16."""

    def __init__(self, cupy, values, shift=0):
        self.memory = Room(cupy, values.nbytes, shift).memory.view(values.dtype)
        self.memory.write(np.ascontiguousarray(values).reshape(-1))
        self.dtype, self.shape = values.dtype, values.shape

    @property
    def __cuda_array_interface__(self):
        return {**self.memory.__cuda_array_interface__, "shape": self.shape}


def encode(cupy, spec, values, shift=0):
    """Encode an array on the GPU; return the frame's bytes on the host."""
    room = Room(cupy, HEADER_NBYTES + values.nbytes + SLACK)
    nbytes = codec(spec).encode(Array(cupy, values, shift), room.memory).nbytes
    return room.bytes[:nbytes]


def decode(cupy, frame, start=None, shift=0):
    """Decode a frame on the GPU; or add the values of a host frame to ``start`` on the GPU."""
    info = inspect(frame)
    dtype = info.dtype if start is None else start.dtype
    room = Room(cupy, info.size * dtype.itemsize, shift * dtype.itemsize // info.dtype.itemsize)
    if start is None:
        compcoll.decode(Array(cupy, frame).memory, room.memory.view(dtype))
    else:
        room.memory.write(start)
        decode_add(frame, room.memory.view(dtype))
    return room.bytes.view(dtype)


def same_numbers(a, b):
    """True if two arrays have the same bytes, but for the bits of a NaN."""
    a, b = (np.asarray(x).reshape(-1) for x in (a, b))
    a, b = (x.view(dtypes.real_dtype(x.dtype)) for x in (a, b))
    if a.dtype.kind in "biu":
        return same(a, b)
    missing = np.isnan(b)
    return same(*(np.where(missing, 0, x) for x in (a, b)))


def check(cupy, spec, values, shift=0):
    """Check that an array's frame, values and sums equal the host's; return the codec of its frame."""
    host = codec(spec).encode(values)
    what = spec, values.dtype, values.shape
    assert np.array_equal(encode(cupy, spec, values, shift), host), what
    decoded, expected = decode(cupy, host, None, shift), compcoll.decode(host).reshape(-1)
    assert same(decoded, expected), what
    start = np.linspace(-3, 5, values.size).astype(accumulator_dtype(values.dtype))
    with np.errstate(all="ignore"):
        total = decode_add(host, start.copy().reshape(values.shape))
    assert same_numbers(decode(cupy, host, start, shift), total), what
    return inspect(host).codec

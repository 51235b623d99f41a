# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c++
"""Bindings of code that needs no MPI: schedules, and single calls of the CPU codecs without the GIL.

Codecs come from the table of csrc/abi.h; none is known here by name.
"""

import os
from contextlib import nullcontext
from traceback import clear_frames

import numpy as np

from compcoll.core import dtypes
from compcoll.core.errors import FrameError

cimport numpy as cnp
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, INT64_MIN, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cnp.import_array()


NONFINITE, UNREPRESENTABLE, TOO_LARGE, BAD_STREAM, UNSUPPORTED = -1, -2, -3, -4, -5

cdef const Level* active = NULL


def available_levels():
    """Names of the instruction-set levels that this processor can run, best first."""
    cdef const Level* const* found = levels()
    names = []
    while found[len(names)]:
        names.append(found[len(names)].name.decode())
    return names


def level():
    """Name of the instruction-set level in use."""
    return active.name.decode()


def set_level(str name):
    """Switch to one of `available_levels()`; for tests. No codec may be running."""
    global active
    names = available_levels()
    if name not in names:
        raise ValueError(f"CPU level {name!r} is not one of {', '.join(names)}, which this processor can run")
    active = levels()[names.index(name)]


asked = os.environ.get("COMPCOLL_CPU")
try:
    set_level(asked or available_levels()[0])
except ValueError as error:
    raise ValueError(f"COMPCOLL_CPU = {asked!r}: {error}") from None


def index(str name):
    """Position of a codec in the table, or -1."""
    cdef int i = 0
    while active.codecs[i]:
        if active.codecs[i].name.decode() == name:
            return i
        i += 1
    return -1


cdef const Codec* kernels(int codec) except NULL:
    if codec < 0:
        raise NotImplementedError("a codec without kernels has to define encode_payload and decode_payload")
    return active.codecs[codec]


def can_add(int codec):
    """True if frames of a codec can be summed without decoding."""
    return codec >= 0 and kernels(codec).add != NULL


cdef Args arguments(int dtype, tuple shape, tuple params):
    cdef Args args
    cdef int i
    args.dtype = dtype
    args.ndim = len(shape)
    for i in range(3):
        args.shape[i] = shape[i] if i < len(shape) else 1
    args.params[0] = params[0]
    args.params[1] = params[1]
    args.capacity = 0
    args.acc_dtype = 0
    args.bound = 0.0
    args.base = NULL
    return args


# An empty buffer has no first element to point at.
cdef const uint8_t* begin(const uint8_t[::1] view) noexcept:
    return &view[0] if view.shape[0] else NULL


def encode(int codec, int dtype, tuple shape, tuple params, const uint8_t[::1] src, uint8_t[::1] dst,
           const uint8_t[::1] base=None):
    """Return (payload bytes or a negative status, bound of real numbers, params as the codec left them)."""
    cdef const Codec* found = kernels(codec)
    cdef Args args = arguments(dtype, shape, params)
    cdef const uint8_t* s = begin(src)
    cdef uint8_t* d = <uint8_t*>begin(dst)
    cdef int64_t n
    args.capacity = dst.shape[0]
    if base is not None:
        args.base = begin(base)
    with nogil:
        n = found.encode(&args, s, d)
    return n, args.bound, (args.params[0], args.params[1])


def reconstruct(int codec, int dtype, tuple shape, tuple params, const uint8_t[::1] src, uint8_t[::1] dst,
                uint8_t[::1] values):
    """Like `encode`, but also writes the decoded values to `values`, which may be `src`."""
    cdef const Codec* found = kernels(codec)
    cdef Args args = arguments(dtype, shape, params)
    cdef const uint8_t* s = begin(src)
    cdef uint8_t* d = <uint8_t*>begin(dst)
    cdef uint8_t* v = <uint8_t*>begin(values)
    cdef int64_t n
    args.capacity = dst.shape[0]
    with nogil:
        n = found.reconstruct(&args, s, d, v)
    return n, args.bound, (args.params[0], args.params[1])


def decode(int codec, int dtype, tuple shape, tuple params, const uint8_t[::1] payload, uint8_t[::1] dst,
           const uint8_t[::1] base=None, bint past_cache=False):
    """Return 0 or a negative status. ``base``: as many bytes as ``dst``, for codecs that need one."""
    cdef const Codec* found = kernels(codec)
    cdef Args args = arguments(dtype, shape, params)
    cdef const uint8_t* p = begin(payload)
    cdef uint8_t* d = <uint8_t*>begin(dst)
    cdef int64_t status
    if base is not None:
        args.base = begin(base)
    args.past_cache = past_cache
    with nogil:
        status = found.decode(&args, p, payload.shape[0], d)
    return status


def decode_add(int codec, int dtype, tuple shape, tuple params, const uint8_t[::1] payload,
               uint8_t[::1] dst, int acc_dtype):
    """Return 0, a negative status, or None if the codec has no fused form."""
    cdef const Codec* found = kernels(codec)
    cdef Args args = arguments(dtype, shape, params)
    cdef const uint8_t* p = begin(payload)
    cdef uint8_t* d = <uint8_t*>begin(dst)
    cdef int64_t status
    if found.decode_add == NULL:
        return None
    args.acc_dtype = acc_dtype
    with nogil:
        status = found.decode_add(&args, p, payload.shape[0], d)
    return status


def add(int codec, int dtype, tuple shape, tuple params, const uint8_t[::1] a, const uint8_t[::1] b,
        uint8_t[::1] dst):
    """Return (payload bytes of the sum or a negative status, bound, params as the codec left them)."""
    cdef const Codec* found = kernels(codec)
    cdef Args args = arguments(dtype, shape, params)
    cdef const uint8_t* pa = begin(a)
    cdef const uint8_t* pb = begin(b)
    cdef uint8_t* d = <uint8_t*>begin(dst)
    cdef int64_t n
    args.capacity = dst.shape[0]
    with nogil:
        n = found.add(&args, pa, a.shape[0], pb, b.shape[0], d)
    return n, args.bound, (args.params[0], args.params[1])


def modulus_bound(bint parts, double bound):
    """Bound of |x - x'| for complex numbers whose ``parts`` have this bound; else the bound itself."""
    return complex_bound(parts, bound)


def checksum(const uint8_t[::1] data):
    """32-bit checksum of csrc/checksum.h."""
    cdef const uint8_t* p = begin(data)
    cdef uint64_t n = data.shape[0]
    cdef uint32_t value
    with nogil:
        value = active.checksum(p, n)
    return value


include "frames.pxi"

include "schedules.pxi"

include "trial_window.pxi"

# Codecs that a run of the engine is given, and statistics that it gives.

from math import isnan

from compcoll.core import _cpu


cdef class Coding:
    """The codecs to try in turn for blocks of a type.

    Parameters
    ----------
    dtype : int
        Its code.
    lossless : bool
        Whether a lossless codec was asked for.
    attempts : sequence of (int, three of (int, int))
        Places in the table of codecs, -1 for the choice of ``lossless``, -2 for ``encode``, and parameters
        for blocks of 1, 2 and 3 dimensions.
    encode, decode : callable
        ``encode(dtype, shape, src, carried, out)`` and ``decode(frame, dtype, dst, adding)``, with memory as
        uint8 arrays, for what is not in the table; the first one returns the bytes of the frame.
    """

    cdef CCoding own
    cdef object encode, decode
    cdef readonly object failed

    def __init__(self, int dtype, bint lossless, attempts, encode, decode):
        cdef CAttempt attempt
        cdef int ndim
        use_level(self.own, _cpu.active_address())
        self.own.dtype, self.own.lossless = dtype, lossless
        for place, params in attempts:
            attempt.codec = place
            for ndim in range(3):
                attempt.params[ndim][0], attempt.params[ndim][1] = params[ndim]
            self.own.attempts.push_back(attempt)
        self.encode, self.decode = encode, decode
        self.own.callbacks.context = <void*>self
        self.own.callbacks.encode = call_encode
        self.own.callbacks.decode = call_decode


def memory_at(uintptr_t address, size_t nbytes):
    """Bytes of memory as a uint8 array, which does not own them."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


cdef int64_t call_encode(void* context, uint32_t dtype, const void* src, uint32_t ndim,
                         const uint64_t* shape, double carried, void* out) noexcept with gil:
    cdef Coding coding = <Coding>context
    cdef uint32_t i
    try:
        dims = tuple([shape[i] for i in range(ndim)])
        with kept_back():
            return coding.encode(dtype, dims, <uintptr_t>src, carried, <uintptr_t>out)
    except BaseException as problem:
        coding.failed = problem
        return -1


cdef int64_t call_decode(void* context, const void* frame, uint64_t nbytes, uint32_t dtype, uint64_t n,
                         void* dst, int32_t adding) noexcept with gil:
    cdef Coding coding = <Coding>context
    try:
        with kept_back():
            coding.decode(memory_at(<uintptr_t>frame, nbytes), dtype, n, <uintptr_t>dst, bool(adding))
        return 0
    except BaseException as problem:
        coding.failed = problem
        return -1


cdef class Outcome:
    """Statistics of a run; see `compcoll.Report`.

    Attributes
    ----------
    seconds : float
        From its begin to its end.
    base_nbytes : int
        Of the values that are kept until the call starts again.
    """

    cdef Stats stats
    cdef readonly double seconds
    cdef readonly uint64_t base_nbytes

    @property
    def raw_nbytes(self):
        return self.stats.raw_nbytes

    @property
    def wire_nbytes(self):
        return self.stats.wire_nbytes

    @property
    def inside_nbytes(self):
        return self.stats.inside_nbytes

    @property
    def messages(self):
        return self.stats.messages

    @property
    def fallbacks(self):
        return self.stats.fallbacks

    @property
    def bound(self):
        """Largest absolute error of any value of the result, None where it is not known."""
        return None if isnan(self.stats.bound) else self.stats.bound

    @property
    def codecs(self):
        """Frames encoded, by the codec that they name."""
        cdef size_t i
        cdef dict used = {}
        for i in range(self.stats.used.size()):
            name = int(self.stats.used[i].first).to_bytes(8, "little").rstrip(b"\0").decode("ascii")
            used[name] = self.stats.used[i].second
        return used

    @property
    def dimensions(self):
        """Frames encoded, by the number of dimensions of their blocks."""
        cdef int ndim
        return {ndim: self.stats.dimensions[ndim] for ndim in range(4) if self.stats.dimensions[ndim]}

    @property
    def stages(self):
        """Seconds of encoding and decoding, over all threads, of waiting, and in all."""
        return {
            "encode": self.stats.encode_seconds, "decode": self.stats.decode_seconds,
            "wait": self.stats.wait_seconds, "total": self.seconds,
        }

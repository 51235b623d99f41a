# Statistics that a run of the engine gives.

from math import isnan


def memory_at(uintptr_t address, size_t nbytes):
    """Bytes of memory as a uint8 array, which does not own them."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


cdef class RunStatistics:
    """Statistics of a run; see `compcoll.Report`.

    Attributes
    ----------
    seconds : float
        From its begin to its end.
    base_nbytes : int
        Of the values that are kept until the call starts again.
    """

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
    def workers(self):
        return self.stats.workers

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

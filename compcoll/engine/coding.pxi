# Statistics of a run of the engine.

from math import isnan


def memory_at(uintptr_t address, size_t nbytes):
    """Memory as a uint8 array that does not own it."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


cdef class RunStatistics:
    """Statistics of a run; see `compcoll.Report`.

    Attributes
    ----------
    seconds : float
        Time from the run's beginning to its end.
    base_nbytes : int
        Bytes of the values that are kept until the call starts again.
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
        """Largest absolute error of any value of the result, or None if unknown."""
        return None if isnan(self.stats.bound) else self.stats.bound

    @property
    def codecs(self):
        """Number of encoded frames, by the codec that they name."""
        cdef size_t i
        cdef dict used = {}
        for i in range(self.stats.used.size()):
            name = int(self.stats.used[i].first).to_bytes(8, "little").rstrip(b"\0").decode("ascii")
            used[name] = self.stats.used[i].second
        return used

    @property
    def dimensions(self):
        """Number of encoded frames, by the number of dimensions of their blocks."""
        cdef int ndim
        return {ndim: self.stats.dimensions[ndim] for ndim in range(4) if self.stats.dimensions[ndim]}

    @property
    def stages(self):
        """Seconds of encoding and decoding (summed over threads), of waiting, and in all."""
        return {
            "encode": self.stats.encode_seconds, "decode": self.stats.decode_seconds,
            "wait": self.stats.wait_seconds, "total": self.seconds,
        }

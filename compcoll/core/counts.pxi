# How often calls of one kind were made (csrc/layer/count.h).


cdef class Count:
    """Number of calls of one kind, and the number after which their decision is renewed.

    Parameters
    ----------
    most : int
    timed : bool

    Attributes
    ----------
    calls, most : int
    seconds : list of float
        Of a ``timed`` one what each call took; infinite where it raised, or is still to come.
    """

    def __init__(self, int64_t most, bint timed=False):
        self.own = shared_ptr[CCount](new CCount(most, timed))

    @property
    def calls(self):
        return self.own.get().calls.load()

    @calls.setter
    def calls(self, int64_t n):
        self.own.get().calls.store(n)

    @property
    def most(self):
        return self.own.get().most

    @property
    def seconds(self):
        return list(self.own.get().seconds)

    def record(self, size_t call, double seconds):
        """Record what a call took."""
        if call < self.own.get().seconds.size():
            self.own.get().seconds[call] = seconds

# Number and duration of calls of one kind (csrc/layer/trial_window.h).


cdef class TrialWindow:
    """A block of calls of one kind, after which their decision is renewed.

    Parameters
    ----------
    most : int
        Number of calls in the block.
    skip : int
        Number of calls at its beginning that are not measured.

    Attributes
    ----------
    calls : int
        Number of calls that have started.
    since : float
        Start of the first measured call, in seconds of a clock with an arbitrary origin; 0 before that.
    seconds : float
        Time in measured calls that have ended, on this rank.
    raw_nbytes, wire_nbytes : int
        Bytes that this rank sent in these calls, before and after compression.
    """

    def __init__(self, int64_t most, int64_t skip=0):
        self.own = make_shared[CTrialWindow](most, skip)

    @property
    def calls(self):
        return self.own.get().calls.load()

    @property
    def most(self):
        return self.own.get().most

    @property
    def skip(self):
        return self.own.get().skip

    @property
    def since(self):
        return self.own.get().since

    @property
    def seconds(self):
        return self.own.get().seconds

    @property
    def raw_nbytes(self):
        return self.own.get().raw_nbytes

    @property
    def wire_nbytes(self):
        return self.own.get().wire_nbytes

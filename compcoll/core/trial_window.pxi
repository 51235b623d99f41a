# How often calls of one kind were made, and how long they took (csrc/layer/trial_window.h).


cdef class TrialWindow:
    """A block of calls of one kind, after which their decision is renewed.

    Parameters
    ----------
    most : int
        Calls of the block.
    skip : int
        Those at its beginning that are not measured.

    Attributes
    ----------
    calls : int
        Those that have started.
    since : float
        Start of the first measured one, in seconds of a clock without a fixed beginning; 0 before that.
    seconds : float
        In measured calls that have ended, on this rank.
    raw_nbytes, wire_nbytes : int
        Bytes that this rank sent in these, before and after compression.
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

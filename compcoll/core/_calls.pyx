# cython: language_level=3
"""Totals of calls, and tags of a communicator's calls."""

from weakref import ref


cdef class CallTotals:
    """Calls of an operation on all communicators of this process, dead ones included.

    Attributes
    ----------
    calls : int
        Those that were begun, on whichever way.
    accelerated : int
        Those that have ended and did not go to MPI unchanged.
    raw_nbytes, wire_nbytes : int
        Of these, as in `compcoll.Report`.
    """

    cpdef add(self, outcome, bint first=True):
        """Count an accelerated call; ``first``: or a further part of one."""
        self.accelerated += first
        self.raw_nbytes += outcome.raw_nbytes
        self.wire_nbytes += outcome.wire_nbytes


#: Of all operations that were called, by their names.
totals = {}


cpdef CallTotals totals_of(str op):
    """The totals of an operation."""
    found = totals.get(op)
    if found is None:
        found = totals[op] = CallTotals()
    return found


cdef class CallTags:
    """Tags of a communicator's calls, reused in rotation.

    Parameters
    ----------
    first, n : int
        The first tag, and the number of tags of one call.
    turns : int
        Number of calls after which tags are used again.

    """

    def __init__(self, int first, int n, int turns):
        self.first, self.n, self.turns, self.calls = first, n, turns, 0
        self.under_way = {}

    cpdef int next(self) except -1:
        """The first tag of the next call; joins an earlier call that still uses it."""
        cdef int first = self.first + (self.calls + 1) % self.turns * self.n
        if first in self.under_way:
            join_call(self.under_way[first])
            self.under_way.pop(first, None)
        self.calls += 1
        return first

    def leave(self, int first, call):
        """Register a call that still uses these tags when its method returns; it has a ``join()``."""
        self.under_way[first] = ref(call)

    def join(self):
        """Wait for all outstanding calls."""
        for call in list(self.under_way.values()):
            join_call(call)


cdef join_call(reference):
    call = reference()
    if call is not None:
        call.join()

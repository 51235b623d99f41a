# cython: language_level=3
"""Tags of a communicator's calls."""

from weakref import ref


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

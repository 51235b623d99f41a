# Calls of a client that holds no requests itself, as torch's backend.

#: By their numbers, until they have ended: MPI may write to what they refer to.
_started = {}
cdef uint64_t n_started = 0


cdef class Started:
    """The calls of one operation, with the comparison of what the ranks have called.

    Parameters
    ----------
    comm : MPI.Intracomm
        Marked.
    operation : object
        What they belong to.
    """

    cdef shared_ptr[COperationGroup] own
    cdef shared_ptr[CComm] comm
    cdef uint64_t number
    cdef bint is_listed
    cdef readonly object operation
    cdef readonly list calls

    def __init__(self, comm, operation):
        global n_started
        n_started += 1
        self.number, self.operation, self.calls = n_started, operation, []
        self.comm = find_by(marked(comm).number())
        self.own = shared_ptr[COperationGroup](new COperationGroup(self.number))

    def compare(self, str text):
        """Begin to compare words that all ranks have alike; before the calls."""
        cdef string words = text.encode()
        cdef int error
        with nogil:
            error = self.own.get().compare(self.comm, words)
        check_mpi(error)

    def add(self, request):
        """Take over the request of a call."""
        status = MPI.Status()
        self.calls.append((request, status))
        cdef Word* place = <Word*><uintptr_t>MPI._addressof(request)
        cdef void* told = <void*><uintptr_t>MPI._addressof(status)
        with nogil:
            self.own.get().add(place, told, self.comm.get())

    cdef keep(self):
        """Add them to the table once: `take_done` may take them from there before a wait sees their end."""
        if not self.is_listed:
            self.is_listed = True
            _started[self.number] = self

    def submit(self):
        """Leave them to the progress thread; `take_done` tells when they have ended."""
        self.keep()
        with nogil:
            self.own.get().submit()

    def wait(self, double seconds):
        """Wait so long at most; whether they have ended.

        Raises
        ------
        BaseException
            Raised by the handler of a second signal; the calls go on.
        """
        cdef int how
        self.keep()
        with nogil:
            how = <int>self.own.get().wait(seconds, signalled)
        if how == INTERRUPTED:
            raise_ending()
        if not self.own.get().ended():
            return False
        _started.pop(self.number, None)
        return True

    def complete(self, double seconds):
        """Complete the requests of calls that have ended.

        Parameters
        ----------
        seconds : float
            For which other ranks are waited for, to tell what they have called where that differs.

        Raises
        ------
        MismatchError, TimeoutError, MPI.Exception
        """
        cdef string text
        if self.own.get().differs():
            with nogil:
                text = self.own.get().difference(seconds)
            raise MismatchError(text.decode())
        if self.own.get().is_late():
            raise stalled()
        check_mpi(self.own.get().error())
        for request, status in self.calls:
            if request != MPI.REQUEST_NULL:
                request.Wait(status)

    def notes(self):
        """Outcomes of the calls, in their order."""
        cdef Notes notes = Notes()
        notes.own = self.own.get().notes()
        return notes


cdef class Notes:
    """Outcomes of several calls."""

    cdef vector[CNote] own

    def read(self):
        """Of each call as `last_of` has it."""
        cdef size_t i
        return [
            last_from(self.own[i].outcome) if self.own[i].outcome.get() != NULL
            else NAMES[self.own[i].small] if self.own[i].small >= 0 else None
            for i in range(self.own.size())
        ]


def take_done(double seconds) -> list:
    """Take submitted calls that have ended, at the first one, after so many seconds, or at `wake_client`."""
    cdef vector[uint64_t] numbers
    with nogil:
        numbers = c_take_ended(seconds)
    return [one for number in numbers if (one := _started.pop(number, None)) is not None]


def wake_client():
    """Have a thread in `take_done` come back."""
    c_wake_client()


def set_phase(int phase):
    """Say which of a communicator's policies calls of this thread come under."""
    c_set_phase(phase)

# Calls of a client that holds no requests itself, such as torch's backend.

#: Groups in flight by number: MPI may write to their buffers.
_in_flight = {}
cdef uint64_t n_groups = 0


cdef class OperationGroup:
    """The calls of one operation, with the comparison of the ranks' calls.

    Parameters
    ----------
    comm : MPI.Intracomm
        A marked communicator.
    work : object
        The operation; `take_ended` returns it.
    """

    cdef shared_ptr[COperationGroup] own
    cdef shared_ptr[CComm] marked_comm
    cdef uint64_t number
    cdef bint is_listed
    cdef object comm, work
    cdef list calls
    #: True if a call, or the comparison, has started.
    cdef readonly bint begun

    def __init__(self, comm, work):
        global n_groups
        n_groups += 1
        self.number, self.comm, self.work, self.calls = n_groups, comm, work, []
        self.marked_comm = find_by(marked(comm).number())
        self.own = shared_ptr[COperationGroup](new COperationGroup(self.number))

    def start(self, calls, int phase, str text):
        """Start calls in this thread.

        Parameters
        ----------
        calls : sequence of MpiCall
        phase : int
            Number of the communicator's policy for them.
        text : str or None
            Description of the operation that must agree on all ranks; None if nothing is compared.
        """
        if text is not None:
            self.compare(text.encode())
            self.begun = True
        c_set_phase(phase)
        try:
            for call in calls:
                self.add(call.start(self.comm))
                self.begun = True
        finally:
            c_set_phase(0)

    cdef compare(self, string text):
        cdef int error
        with nogil:
            error = self.own.get().compare(self.marked_comm, text)
        check_mpi(error)

    cdef add(self, request):
        status = MPI.Status()
        self.calls.append((request, status))
        cdef Word* place = <Word*><uintptr_t>MPI._addressof(request)
        cdef void* told = <void*><uintptr_t>MPI._addressof(status)
        with nogil:
            self.own.get().add(place, told, self.marked_comm.get())

    cdef keep(self):
        """Add the group to the table once: `take_ended` may remove it before a wait sees its end."""
        if not self.is_listed:
            self.is_listed = True
            _in_flight[self.number] = self

    def submit(self):
        """Hand the calls to the progress thread; `take_ended` returns the operation after they complete."""
        self.keep()
        with nogil:
            self.own.get().submit()

    def wait(self, double seconds):
        """Wait for at most ``seconds``; True if all calls have completed.

        Raises
        ------
        BaseException
            Raised by the handler of a second signal; the calls stay in flight.
        """
        cdef int how
        self.keep()
        with nogil:
            how = <int>self.own.get().wait(seconds, signalled)
        if how == INTERRUPTED:
            raise_ending()
        if not self.own.get().ended():
            return False
        _in_flight.pop(self.number, None)
        return True

    def tell_long_wait(self):
        """Let calls of the engine say on stderr that they wait; False if none waits."""
        cdef cbool any_waits
        with nogil:
            any_waits = self.own.get().tell_long_wait_of_calls()
        return any_waits

    def outcomes(self, double seconds):
        """Complete the requests of calls that have ended.

        Parameters
        ----------
        seconds : float
            Time to wait for the other ranks' descriptions if calls do not match.

        Returns
        -------
        list of MPI.Status
        Notes

        Raises
        ------
        MismatchError, TimeoutError, MPI.Exception
        """
        cdef string text
        cdef Notes notes = Notes()
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
        notes.own = self.own.get().notes()
        return [status for _, status in self.calls], notes


cdef class Notes:
    """Outcomes of several calls."""

    cdef vector[CNote] own

    def read(self):
        """Each call's outcome, in the form that `last_of` returns."""
        cdef size_t i
        return [
            last_from(self.own[i].outcome) if self.own[i].outcome.get() != NULL
            else NAMES[self.own[i].small] if self.own[i].small >= 0 else None
            for i in range(self.own.size())
        ]


def take_ended(double seconds) -> list:
    """Return the operations of submitted groups that have ended.

    Waits for the first one, for at most ``seconds``, or until `wake_client`.
    """
    cdef vector[uint64_t] numbers
    with nogil:
        numbers = c_take_ended(seconds)
    groups = [one for number in numbers if (one := _in_flight.pop(number, None)) is not None]
    return [(<OperationGroup>one).work for one in groups]


def wake_client():
    """Make a thread in `take_ended` return."""
    c_wake_client()

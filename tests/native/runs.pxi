# Runs of single schedules, and the messages that this process receives.


cdef extern from "engine/engine.h" namespace "compcoll::engine" nogil:
    cdef cppclass CMarks "compcoll::engine::Marks":
        CMarks() except +
        cbool record(CGpu*, CDeviceFault*)
    cdef cppclass CBases "compcoll::engine::Bases":
        pass
    cdef cppclass CTags "compcoll::engine::Tags":
        int first, n
    cdef cppclass CRecvHook "compcoll::engine::RecvHook":
        void (*arrived)(void*, uint8_t*, uint64_t) noexcept nogil
    cdef cppclass CTask "compcoll::engine::Task":
        pass
    cdef cppclass CRun "compcoll::engine::Run" (CTask):
        const Error& error()
        const Stats& stats()
    CRecvHook the_recv_hook "compcoll::engine::Run::recv_hook"
    cdef cppclass CPlace "compcoll::engine::Place":
        CPlace(uint8_t*)
        CGpu* gpu
    cdef cppclass Wire:
        pass
    cdef cppclass CLibrary "compcoll::engine::Library":
        pass
    unique_ptr[Wire] make_wire(const CLibrary&, uint64_t)
    cdef cppclass CEngine "compcoll::engine::Engine":
        shared_ptr[CRun] begin(
            shared_ptr[CSchedule], const CCoding&, const CCoding&, vector[CPlace], unique_ptr[Wire], CTags,
            shared_ptr[CMarks], cbool, shared_ptr[CBases]
        ) except +
        CEnd wait(const vector[shared_ptr[CTask]]&, double, cbool (*)() noexcept nogil)

cdef extern from "layer/engine.h" namespace "compcoll::layer" nogil:
    CEngine& the_engine()
    const CLibrary& engine_library()


def set_recv_hook(recv_hook):
    """Call ``recv_hook(message)`` with each message that arrives, a uint8 array; None removes the hook."""
    global _recv_hook
    _recv_hook = recv_hook
    if recv_hook is None:
        the_recv_hook.arrived = NULL
    else:
        the_recv_hook.arrived = call_recv_hook


_recv_hook = None


cdef void call_recv_hook(void* context, uint8_t* data, uint64_t nbytes) noexcept with gil:
    _recv_hook(memory_at(<uintptr_t>data, nbytes))


cdef class Running:
    """A schedule being run.

    Parameters
    ----------
    compiled : Compiled
    coding : Coding
    comm : int
        Handle of a private communicator with the error handler ``ERRORS_RETURN``.
    first, n : int
        The first tag of the call, and how many it has.
    buffers : list of numpy.ndarray or DeviceArray
        The caller's buffers, in the order of the schedule.
    direct : bool
        True if MPI accepts frames in GPU memory.
    """

    cdef shared_ptr[CRun] run
    cdef Coding coding
    cdef list buffers
    cdef readonly RunStatistics outcome

    def __init__(
        self, Compiled compiled, Coding coding, uint64_t comm, int first, int n, list buffers, *,
        bint direct=False,
    ):
        cdef vector[CPlace] places
        cdef shared_ptr[CMarks] marks
        cdef shared_ptr[CBases] kept
        cdef CDeviceFault fault
        cdef CTags tags
        places.reserve(len(buffers))
        for buffer in buffers:
            places.push_back(CPlace(<uint8_t*><uintptr_t>address_of(buffer)))
            if isinstance(buffer, np.ndarray):
                continue
            places.back().gpu = gpu_of_number(buffer.gpu)
            if marks.get() == NULL:
                marks = shared_ptr[CMarks](new CMarks())
            if not record(marks.get(), places.back().gpu, &fault):
                raise RuntimeError(fault.text().decode())
        self.coding, self.buffers, self.outcome = coding, buffers, RunStatistics()
        self.outcome.seconds = perf_counter()
        tags.first, tags.n = first, n
        self.run = the_engine().begin(
            compiled.own, coding.own, coding.own, places, make_wire(engine_library(), comm), tags, marks,
            direct, kept,
        )

    cdef conclude(self):
        """Record the run's statistics."""
        self.outcome.seconds = perf_counter() - self.outcome.seconds
        self.outcome.stats = self.run.get().stats()

    cdef check(self):
        """Raise the run's error, if it has one."""
        cdef const Error* error = &self.run.get().error()
        if error.problem != Problem.NONE:
            raise self.coding.failed if error.problem == Problem.CALLBACK else problem_of(error)


def address_of(array) -> int:
    """The address of an array's first byte."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.address


cdef CGpu* gpu_of_number(int number) noexcept:
    with nogil:
        return gpu_by_number(number)


cdef cbool record(CMarks* marks, CGpu* gpu, CDeviceFault* fault) noexcept:
    with nogil:  # recording may need the interpreter's lock
        return marks.record(gpu, fault)


def wait(*runs, double limit=inf):
    """Progress runs until all are complete, and raise the first error of any.

    Parameters
    ----------
    limit : float
        Seconds after which to return while runs are outstanding.

    Returns
    -------
    bool
        True if all are complete.

    Raises
    ------
    TimeoutError
        If no run progressed for COMPCOLL_TIMEOUT.
    BaseException
        Raised by the handler of a second signal.
    """
    cdef vector[shared_ptr[CTask]] tasks
    cdef Running run
    for run in runs:
        tasks.push_back(static_pointer_cast[CTask, CRun](run.run))
    cdef int end
    with nogil:
        end = <int>the_engine().wait(tasks, limit, signalled)
    if end == LATER:
        return False
    for run in runs:
        run.conclude()
        if end != DONE:
            Py_INCREF(run)  # for good, as MPI may still write to its buffers
    if end == INTERRUPTED:
        raise_ending()
    if end == TIMEOUT:
        raise stalled()
    for run in runs:
        run.check()
    return True

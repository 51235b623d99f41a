# cython: language_level=3
# distutils: language = c++
"""Bindings of the compiled engine (csrc/engine), which runs schedules without Python."""

import ctypes
import os
import traceback
from math import inf, prod
from time import perf_counter

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.core.errors import FallbackError, FrameError, MismatchError, PolicyError
from compcoll.engine.finalize import before_finalize, call_all, watch_exit
from compcoll.operations import OPERATIONS

cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, static_pointer_cast, unique_ptr
from libcpp.pair cimport pair
from libcpp.utility cimport move
from libcpp.vector cimport vector

from compcoll.core._calls cimport CallTags
from compcoll.core._cpu cimport CCount, Compiled, Count, CSchedule
from compcoll.core._gpu cimport (
    CAttempt, CCoding, CDeviceFault, CGpu, CMarks, Error, gpu_by_number, use_level,
)
from compcoll.engine.native cimport (
    CBases, CCompletion, CEnd, CEngine, CLaunch, CLayout, CLibrary, CNeighbours, CPendingTask, CPlace,
    create_segment, CRun, CSegment, CSegmentAddress, CSharedMemory, CTags, CTask, CTaskGroup, error_of,
    finished_by, gather, GpuRef, Handle, make_node_wire, make_request, make_wire, of_callback, open_segment,
    scatter, Stats, the_recv_hook, Wire,
)

cnp.import_array()


include "signals.pxi"
include "layout.pxi"
include "coding.pxi"
include "shared_memory.pxi"


#: How a wait ended.
DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER = range(5)
#: Kinds of errors (csrc/engine/coding.h).
NO_PROBLEM, HEADER, CHECKSUM, PAYLOAD, MISMATCH, POISONED, MPI_ERROR, CALLBACK, MEMORY = range(9)
BASE, DEVICE = 11, 12

cdef double inf_ = inf
cdef CLibrary library
cdef CEngine* engine = NULL
#: Seconds without any message after which a call gives up; like MPI, it waits for ever by default.
stall_seconds = inf


def start(bint threaded, double seconds):
    """Make the process's engine, where there is none yet.

    Parameters
    ----------
    threaded : bool
        Whether threads of its own may call MPI.
    seconds : float
        Time without any message after which a wait is given up.
    """
    global engine, library, stall_seconds
    if engine == NULL:
        stall_seconds = seconds
        start_with_thread_states(threaded, seconds)
        engine = &the_engine()
        library = engine_library()
        before_finalize(_join_left)


#: Seconds for which operations whose requests the program has freed may still go on when MPI ends.
cdef double LAST_SECONDS = 1.0


def _join_left():
    # MPI may wait for the requests of what is under way: their messages have arrived in a correct program.
    until = perf_counter() + LAST_SECONDS
    for task in list(_left):
        join(task, max(until - perf_counter(), 0.0))


cpdef uint32_t offset_of(str field) except *:
    """Offset of a status's field, found by storing a marker in it."""
    status, marker = MPI.Status(), 0x1b2c3d4e
    setattr(status, field, marker)
    nbytes = ctypes.string_at(MPI._addressof(status), MPI._sizeof(MPI.Status))
    return nbytes.index(marker.to_bytes(4, "little"))


def handle(of) -> int:
    """The MPI library's handle of an mpi4py object."""
    return MPI._handleof(of)


def set_workers(int n):
    """Set the number of worker threads that encode and decode; no operation may be outstanding."""
    with nogil:  # threads that end need the interpreter's lock
        engine.set_workers(n)


def workers() -> int:
    """The number of worker threads that encode and decode."""
    return engine.workers()


def idle_nbytes() -> int:
    """Bytes of free scratch memory in the pool."""
    return engine.pool().idle_nbytes()


def set_recv_hook(recv_hook):
    """Call ``recv_hook(message)`` with each message that arrives, a uint8 array, or never; for tests."""
    global _recv_hook
    _recv_hook = recv_hook
    if recv_hook is None:
        the_recv_hook.arrived = NULL
    else:
        the_recv_hook.arrived = call_recv_hook


_recv_hook = None


cdef void call_recv_hook(void* context, uint8_t* data, uint64_t nbytes) noexcept with gil:
    _recv_hook(memory_at(<uintptr_t>data, nbytes))


# -- tasks


cdef class Task:
    """An operation that the engine progresses, and that can be waited for.

    Attributes
    ----------
    end : int or None
        How the wait for it ended; None before a wait has completed.
    """

    cdef shared_ptr[CTask] task
    cdef shared_ptr[CPendingTask] left
    cdef readonly object end
    cdef object finished

    @property
    def done(self):
        """Whether it is complete."""
        return self.end is not None or self.task.get().done()

    @property
    def ended(self):
        """Whether the engine has finished it, of a task that was handed over by `leave`."""
        return self.end is not None or self.left.get() != NULL and self.left.get().ended()

    cdef settle(self, int end):
        """Record how the wait for it ended."""
        self.end = end

    cdef shared_ptr[CTask] until(self, bint launched):
        """The C++ task to wait for: ``launched``, one that ends when all of it was given to the device."""
        return self.task

    def check(self):
        """Raise the task's error, if it has one."""


cdef class Request(Task):
    """Completion of an mpi4py request.

    Parameters
    ----------
    request : MPI.Request
    status : MPI.Status
        Filled when the request is complete.
    nbytes : int
        Upper limit of the message's size.
    """

    cdef readonly object request, status

    def __init__(self, request, status=None, uint64_t nbytes=0):
        self.request, self.status = request, MPI.Status() if status is None else status
        self.task = shared_ptr[CTask](make_request(
            library, <void*><uintptr_t>MPI._addressof(self.request),
            <void*><uintptr_t>MPI._addressof(self.status), nbytes,
        ))

    def check(self):
        check_mpi(error_of(self.task.get()[0]))


cdef check_mpi(int error):
    if error:
        raise MPI.Exception(error)


cdef class Running(Task):
    """A schedule being run.

    Parameters
    ----------
    compiled : Compiled
    coding : Coding
    comm : int
        Handle of a private communicator with the error handler ``ERRORS_RETURN``.
    first, n : int
        The tags of the call.
    buffers : list of numpy.ndarray or DeviceArray
        The caller's, in the order of the schedule.
    direct : bool
        Whether MPI takes frames in memory of GPUs.
    inside : Coding, optional
        For messages inside a node; ``coding`` by default.
    neighbours : Neighbours, optional
        Ranks that share memory with this one.
    """

    cdef CRun* run
    cdef Compiled compiled
    cdef readonly Coding coding
    cdef Coding inside
    cdef readonly Outcome outcome
    cdef readonly int first_tag
    cdef object keep, failed

    def __init__(
        self, Compiled compiled, Coding coding, comm, int first, int n, list buffers, Coding inside=None,
        Neighbours neighbours=None, bint direct=False,
    ):
        cdef vector[CPlace] places
        cdef shared_ptr[CMarks] marks
        cdef CDeviceFault fault
        places.reserve(len(buffers))
        for buffer in buffers:
            places.push_back(CPlace(address_of(buffer)))
            if isinstance(buffer, np_ndarray):
                continue
            places.back().gpu = gpu_of_number(buffer.gpu)
            if marks.get() == NULL:
                marks = shared_ptr[CMarks](new CMarks())
            if not record(marks.get(), places.back().gpu, &fault):
                raise RuntimeError(fault.text().decode())
        self.keep = buffers
        self.begin(compiled, coding, inside, comm, neighbours, first, n, places, marks, direct)

    cdef begin(self, Compiled compiled, Coding coding, Coding inside, uint64_t comm, Neighbours neighbours,
               int first, int n, vector[CPlace] places, shared_ptr[CMarks] marks, bint direct):
        cdef CTags tags
        cdef shared_ptr[CRun] run
        cdef shared_ptr[CBases] kept
        cdef unique_ptr[Wire] wire = make_wire(library, comm)
        if neighbours is not None:
            wire = make_node_wire(move(wire), neighbours.own)
        tags.first, tags.n = first, n
        self.first_tag = first
        self.compiled, self.coding, self.inside = compiled, coding, coding if inside is None else inside
        self.outcome = Outcome()
        self.outcome.seconds = now()
        run = engine.begin(
            compiled.own, coding.own, self.inside.own, places, move(wire), tags, marks, direct, kept,
        )
        self.run = run.get()
        self.task = static_pointer_cast[CTask, CRun](run)

    cdef shared_ptr[CTask] until(self, bint launched):
        if not launched:
            return self.task
        return shared_ptr[CTask](<CTask*>new CLaunch(static_pointer_cast[CRun, CTask](self.task)))

    cdef settle(self, int end):
        """Record the run's statistics."""
        if end == DONE and not self.run.done():  # it was only launched
            return
        self.end = end
        self.outcome.seconds = now() - self.outcome.seconds
        self.outcome.stats = self.run.stats()

    def fail(self, problem):
        """Run without values: the other ranks get an error, and `check` raises ``problem`` here."""
        if self.failed is None:
            self.failed = problem
        self.run.fail(of_callback())

    def order(self, events):
        """Order the run after these events of GPUs, by their numbers, instead of the caller's streams.

        Before the first step; each event has its handle as ``ptr``.
        """
        cdef vector[pair[GpuRef, Handle]] own
        self.keep = self.keep, events
        for gpu, event in events:
            own.push_back(pair[GpuRef, Handle](gpu_of_number(gpu), <void*><uintptr_t>event.ptr))
        self.run.order(own)

    @property
    def ends(self):
        """Of a launched run: GPUs, and CUDA's handles of events that follow its work on them."""
        cdef vector[pair[GpuRef, Handle]] own = self.run.ends()
        cdef size_t i
        return [(own[i].first.number, <uintptr_t>own[i].second) for i in range(own.size())]

    def check(self):
        if <int>self.run.error().problem:
            raise self.problem()

    cdef problem(self):
        cdef const Error* error = &self.run.error()
        if <int>error.problem != CALLBACK:
            return problem_of(error)
        return self.coding.failed if self.failed is None else self.failed


cdef problem_of(const Error* error):
    """The exception for an error of the engine."""
    from compcoll.engine.problems import exception

    if <int>error.problem == DEVICE:
        return RuntimeError(error.fault.text().decode())
    header = error.header
    return exception(
        <int>error.problem, error.status, <bytes>error.bytes[:80], error.available, error.expected,
        error.expected_dtype, int(header.codec).to_bytes(8, "little").rstrip(b"\0").decode(),
        header.dtype, header.size(), header.payload_nbytes, header.checksum,
    )


cdef uint8_t* address_of(array) except? NULL:
    if isinstance(array, np_ndarray):
        return <uint8_t*>cnp.PyArray_DATA(array)
    return <uint8_t*><uintptr_t>array.address


cdef CGpu* gpu_of_number(int number) noexcept:
    with nogil:
        return gpu_by_number(number)


cdef cbool record(CMarks* marks, CGpu* gpu, CDeviceFault* fault) noexcept:
    with nogil:  # who asks for a stream may need the interpreter's lock
        return marks.record(gpu, fault)


cdef class TaskGroup(Task):
    """Several tasks as one, which is complete when all of them are.

    Parameters
    ----------
    tasks : sequence of Task
    """

    cdef readonly list tasks

    def __init__(self, tasks):
        cdef vector[shared_ptr[CTask]] parts
        cdef Task task
        self.tasks = list(tasks)
        for task in self.tasks:
            parts.push_back(task.task)
        self.task = shared_ptr[CTask](new CTaskGroup(parts))

    cdef settle(self, int end):
        cdef Task task
        self.end = end
        for task in self.tasks:
            task.settle(end)

    def check(self):
        for task in self.tasks:
            task.check()


cdef class PreparedCall:
    """A collective that is ready to be started, any number of times.

    Parameters
    ----------
    op : str
    decision : Decision
    compiled : Compiled
    coding, inside : Coding
    tags : CallTags
    comm : int
    neighbours : Neighbours or None
        As of a `Running`.
    direct : bool
        As of a `Running`.
    """

    cdef readonly str op
    cdef readonly object decision
    cdef bint direct
    cdef Compiled compiled
    cdef Coding coding, inside
    cdef CallTags tags
    cdef uint64_t comm
    cdef Neighbours neighbours
    cdef vector[int] which
    cdef vector[size_t] offsets

    def __init__(
        self, str op, decision, Compiled compiled, Coding coding, Coding inside, CallTags tags, uint64_t comm,
        Neighbours neighbours, bint direct=False
    ):
        self.op, self.decision, self.compiled, self.direct = op, decision, compiled, direct
        self.coding, self.inside = coding, inside
        self.tags, self.comm, self.neighbours = tags, comm, neighbours

    def place(self, places):
        """Say where each block lies: in the buffer that is sent (0) or received (1), and at which byte."""
        for which, offset in places:
            self.which.push_back(which)
            self.offsets.push_back(offset)

    @property
    def failed(self):
        """The exception that a codec of another package has raised; None where none has."""
        return self.coding.failed if self.inside.failed is None else self.inside.failed

    @property
    def is_placed(self):
        """Whether `start_on` can find the blocks."""
        return not self.which.empty()

    def start(self, list blocks, tags=None):
        """Start it on blocks; ``tags``: the first and how many, in place of those of the next call."""
        first, n = (self.tags.next(), self.tags.n) if tags is None else tags
        return Running(
            self.compiled, self.coding, self.comm, first, n, blocks, self.inside, self.neighbours,
            self.direct,
        )

    def fits(self, send, recv):
        """Whether it can be started on these: contiguous arrays, to be written where received, apart."""
        cdef int which
        for which in self.which:
            if type(recv if which else send) is not np_ndarray:
                return False
        return usable(send, False) and usable(recv, True) and not overlap(send, recv)

    def start_on(self, send, recv):
        """Start it on arrays; None where it does not fit them."""
        cdef uint8_t* data[2]
        cdef vector[CPlace] found
        cdef Running running
        cdef size_t i
        if not self.fits(send, recv):
            return None
        data[0] = <uint8_t*>cnp.PyArray_DATA(send) if type(send) is np_ndarray else NULL
        data[1] = <uint8_t*>cnp.PyArray_DATA(recv) if type(recv) is np_ndarray else NULL
        found.reserve(self.which.size())
        for i in range(self.which.size()):
            found.push_back(CPlace(data[self.which[i]] + self.offsets[i]))
        running = Running.__new__(Running)
        running.keep = send, recv
        running.begin(
            self.compiled, self.coding, self.inside, self.comm, self.neighbours, self.tags.next(),
            self.tags.n, found, shared_ptr[CMarks](), False,
        )
        return running


cdef type np_ndarray = np.ndarray


cdef bint usable(array, bint written):
    """Whether an array is contiguous and, where ``written``, writable; True of anything but an array."""
    if type(array) is not np_ndarray:
        return True
    cdef int flags = cnp.NPY_ARRAY_C_CONTIGUOUS | (cnp.NPY_ARRAY_WRITEABLE if written else 0)
    return cnp.PyArray_CHKFLAGS(<cnp.ndarray>array, flags)


cdef bint overlap(a, b):
    cdef char* first
    cdef char* second
    if type(a) is not np_ndarray or type(b) is not np_ndarray:
        return False
    first, second = <char*>cnp.PyArray_DATA(<cnp.ndarray>a), <char*>cnp.PyArray_DATA(<cnp.ndarray>b)
    return (first < second + cnp.PyArray_NBYTES(<cnp.ndarray>b)
            and second < first + cnp.PyArray_NBYTES(<cnp.ndarray>a))


cdef double now() noexcept:
    return perf_counter()


#: Tasks kept alive for good, as MPI may still write to their buffers.
_abandoned = []


def wait(*tasks, others=(), double limit=inf, bint launched=False):
    """Progress tasks until all are complete, and raise the first error of any.

    Parameters
    ----------
    others : sequence of Task
        Progressed as well, but not waited for.
    limit : float
        Seconds after which to return while tasks are outstanding.
    launched : bool
        Whether to return as soon as all work of a run on a device was given to the device, with nothing
        left to start.

    Returns
    -------
    bool
        Whether all are complete.

    Raises
    ------
    TimeoutError
        Where no task progressed for `stall_seconds`; the tasks are abandoned.
    BaseException
        Raised by the handler of a second signal; the tasks are abandoned.
    """
    cdef vector[shared_ptr[CTask]] some, more
    cdef Task task
    for task in tasks:
        some.push_back(task.until(launched))
    for task in others:
        more.push_back(task.task)
    cdef int end
    with nogil:
        end = <int>engine.wait(some, more, limit, signalled)
    if end == LATER:
        return False
    for task in tasks:
        task.settle(end)
    if end != DONE:
        _abandon([*tasks, *others])
        if end == INTERRUPTED:
            raise_ending()
        if end == TIMEOUT:
            raise stalled()
    for task in tasks:
        task.check()
    return True


def stalled():
    """The error of tasks that made no progress for `stall_seconds`."""
    text = f"waited for messages for more than COMPCOLL_TIMEOUT = {stall_seconds:g} s"
    return TimeoutError(f"{text}; the communicator is in an error state")


def _abandon(tasks):
    """Keep tasks alive for good, as MPI may still write to their buffers."""
    for task in tasks:
        Py_INCREF(task)
    _abandoned.extend(tasks)


# -- tasks that are left to the engine


def leave(Task task, finished=None, *, bint launched=False):
    """Hand a task over to the engine, to be progressed in the background.

    Parameters
    ----------
    task : Task
    finished : callable, optional
        ``finished(end)`` is called in the thread that completes the task.
    launched : bool
        As of `wait`.
    """
    cdef shared_ptr[CCompletion] completion
    task.finished = finished
    _drop_ended()
    _left.append(task)
    task.left = engine.leave(task.until(launched), finished_by(was_left, <void*>task), completion)


#: Tasks handed over to the engine.
_left = []


def _drop_ended():
    """Release tasks, and so buffers, that the engine has finished."""
    _left[:] = [other for other in _left if not is_over(other)]


cdef bint is_over(Task task):
    """Whether the engine has released a task; its request may be complete a moment earlier."""
    return task.left.get() != NULL and task.left.get().ended()


def join(Task task, double seconds=inf):
    """Wait for a task that was handed over, for at most ``seconds``; whether it is complete.

    Raises
    ------
    BaseException
        Raised by the handler of a second signal; the task is still outstanding.
    """
    cdef shared_ptr[CPendingTask] left = task.left  # which a callback may leave again
    cdef int end
    with nogil:
        end = <int>engine.join(left.get()[0], seconds, signalled)
    if end == INTERRUPTED:
        raise_ending()
    return left.get().ended()


cdef void was_left(void* context, int end) noexcept with gil:
    cdef Task task = <Task>context
    task.settle(end)
    finished, task.finished = task.finished, None
    if end != DONE:
        _abandon([task])
    if finished is not None:
        with kept_back():
            finished(end)


def crowd():
    """Leave cores to other ranks of the node while a long call waits: they are more than cores."""
    engine.progress().crowd()


def progress():
    """Progress tasks that were handed over, where the engine has no progress thread."""
    cdef cbool moved
    with nogil:
        moved = engine.progress().step_alone()
    return moved


include "layer.pxi"

hook()
_connect()

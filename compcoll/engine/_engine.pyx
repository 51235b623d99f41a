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
from compcoll.engine.finalize import call_all, watch_exit
from compcoll.engine.memory import memory_nbytes
from compcoll.operations import OPERATIONS

cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, static_pointer_cast
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from compcoll.core._cpu cimport (
    CCoding, CCount, CDeviceFault, CGpu, Coding, Compiled, Count, CSchedule, Error, exception_of, Problem,
)
from compcoll.core._gpu cimport CMarks, gpu_by_number
from compcoll.engine.native cimport (
    CBases, CEnd, CEngine, CLayout, CLibrary, CNeighbours, CPlace, create_segment, CRun, CSegment,
    CSegmentAddress, CSharedMemory, CTags, CTask, gather, make_wire, open_segment, scatter, Stats,
    the_recv_hook,
)

cnp.import_array()


include "signals.pxi"
include "layout.pxi"
include "coding.pxi"
include "shared_memory.pxi"


#: How a wait ended.
DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER = range(5)

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


def start_threads() -> bool:
    """Start the threads that progress calls and ask Python; False if one cannot be started."""
    cdef cbool all_there
    with nogil:
        all_there = c_start_threads()
    return all_there


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


# -- runs


cdef check_mpi(int error):
    if error:
        raise MPI.Exception(error)


cdef class Running:
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
    """

    cdef shared_ptr[CRun] run
    cdef Coding coding
    cdef list buffers
    cdef readonly Outcome outcome

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
            places.push_back(CPlace(address_of(buffer)))
            if isinstance(buffer, np_ndarray):
                continue
            places.back().gpu = gpu_of_number(buffer.gpu)
            if marks.get() == NULL:
                marks = shared_ptr[CMarks](new CMarks())
            if not record(marks.get(), places.back().gpu, &fault):
                raise RuntimeError(fault.text().decode())
        self.coding, self.buffers, self.outcome = coding, buffers, Outcome()
        self.outcome.seconds = now()
        tags.first, tags.n = first, n
        self.run = engine.begin(
            compiled.own, coding.own, coding.own, places, make_wire(library, comm), tags, marks, direct, kept
        )

    cdef conclude(self):
        """Record the run's statistics."""
        self.outcome.seconds = now() - self.outcome.seconds
        self.outcome.stats = self.run.get().stats()

    cdef check(self):
        """Raise the run's error, if it has one."""
        cdef const Error* error = &self.run.get().error()
        if error.problem != Problem.NONE:
            raise self.coding.failed if error.problem == Problem.CALLBACK else problem_of(error)


cdef problem_of(const Error* error):
    """The exception for an error of the engine."""
    header = error.header
    if error.problem == Problem.MESSAGES:
        what = "more" if error.status else "fewer"
        return MismatchError(
            f"another rank sends {what} chunks than this one expects: the ranks' counts or types differ"
        )
    if error.problem == Problem.MISMATCH:
        came, expected = dtypes.dtype_of(header.dtype), dtypes.dtype_of(error.expected_dtype)
        return MismatchError(
            f"a frame of {header.size()} {came} came for a block of {error.expected} {expected}: the ranks' "
            "counts or types differ"
        )
    if error.problem == Problem.POISONED:
        return FrameError("another rank met an error before it could send this block")
    if error.problem == Problem.MPI:
        return MPI.Exception(error.status) if error.status > 0 else ValueError("a message of more than 2 GiB")
    return exception_of(error)


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


cdef class PreparedCall:
    """A collective that is ready to be served.

    Parameters
    ----------
    decision : Decision
    compiled : Compiled
    coding, inside : Coding
        Between nodes, and inside them.
    neighbours : Neighbours or None
        Ranks that share memory with this one.
    direct : bool
        Whether MPI takes frames in memory of GPUs.
    """

    cdef readonly object decision
    cdef Compiled compiled
    cdef Coding coding, inside
    cdef Neighbours neighbours
    cdef bint direct

    def __init__(
        self, decision, Compiled compiled, Coding coding, Coding inside, Neighbours neighbours, bint direct
    ):
        self.decision, self.compiled, self.direct = decision, compiled, direct
        self.coding, self.inside, self.neighbours = coding, inside, neighbours

    @property
    def failed(self):
        """The exception that a codec of another package has raised; None where none has."""
        return self.coding.failed if self.inside.failed is None else self.inside.failed


cdef type np_ndarray = np.ndarray


cdef double now() noexcept:
    return perf_counter()


#: Runs kept alive for good, as MPI may still write to their buffers.
_abandoned = []


def wait(*runs, double limit=inf):
    """Progress runs until all are complete, and raise the first error of any.

    Parameters
    ----------
    limit : float
        Seconds after which to return while runs are outstanding.

    Returns
    -------
    bool
        Whether all are complete.

    Raises
    ------
    TimeoutError
        Where no run progressed for `stall_seconds`; the runs are abandoned.
    BaseException
        Raised by the handler of a second signal; the runs are abandoned.
    """
    cdef vector[shared_ptr[CTask]] tasks
    cdef Running run
    for run in runs:
        tasks.push_back(static_pointer_cast[CTask, CRun](run.run))
    cdef int end
    with nogil:
        end = <int>engine.wait(tasks, limit, signalled)
    if end == LATER:
        return False
    for run in runs:
        run.conclude()
    if end != DONE:
        _abandon(runs)
        if end == INTERRUPTED:
            raise_ending()
        if end == TIMEOUT:
            raise stalled()
    for run in runs:
        run.check()
    return True


def stalled():
    """The error of calls that made no progress for `stall_seconds`."""
    text = f"waited for messages for more than COMPCOLL_TIMEOUT = {stall_seconds:g} s"
    return TimeoutError(f"{text}; the communicator is in an error state")


def _abandon(runs):
    """Keep runs alive for good, as MPI may still write to their buffers."""
    for run in runs:
        Py_INCREF(run)
    _abandoned.extend(runs)


def crowd():
    """Leave cores to other ranks of the node while a long call waits: they are more than cores."""
    engine.progress().crowd()


include "layer.pxi"

hook()
_connect()

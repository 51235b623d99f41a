# cython: language_level=3
# distutils: language = c++
"""Bindings of the compiled engine (csrc/engine), which runs schedules without Python."""

import ctypes
import os
import traceback
from math import inf, prod

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.core.errors import FallbackError, FrameError, MismatchError, PolicyError
from compcoll.engine.finalize import call_all, watch_exit
from compcoll.engine.memory import memory_nbytes
from compcoll.operations import OPERATIONS

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from compcoll.core._cpu cimport Coding, Compiled, Error, exception_of, Problem, TrialWindow
from compcoll.engine.layer cimport *
from compcoll.engine.native cimport (
    CEngine, CHelp, CNeighbours, create_segment, CSegment, CSegmentAddress, CSharedMemory, open_segment,
)


include "signals.pxi"
include "coding.pxi"
include "shared_memory.pxi"


#: Outcomes of a wait.
DONE, TIMEOUT, INTERRUPTED, BROKEN, LATER = range(5)

#: When workers help: in long calls, as many as there are free cores; in long calls, all; in all calls.
FREE, NAMED, ALWAYS = range(3)

cdef CEngine* engine = NULL
#: Seconds without any message after which a call gives up; like MPI, it waits for ever by default.
stall_seconds = inf


def start(bint threaded, double seconds, double notice_seconds=inf):
    """Make the process's engine, if there is none yet.

    Parameters
    ----------
    threaded : bool
        True if the engine's threads may call MPI.
    seconds : float
        Time without any message after which a wait gives up.
    notice_seconds : float
        Time without any message after which a call says on stderr that it waits.
    """
    global engine, stall_seconds
    if engine == NULL:
        stall_seconds = seconds
        start_with_thread_states(threaded, seconds, notice_seconds)
        engine = &the_engine()


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


def set_workers(int n, int help=FREE):
    """Set the number of worker threads that encode and decode; no operation may be outstanding.

    ``help``: `FREE`, `NAMED` or `ALWAYS`, see csrc/engine/workers.h.
    """
    with nogil:  # ending threads need the interpreter's lock
        engine.set_workers(n, <CHelp>help)


def workers() -> int:
    """The number of worker threads that encode and decode."""
    return engine.workers()


def idle_nbytes() -> int:
    """Bytes of free scratch memory in the pool."""
    return engine.pool().idle_nbytes()


cdef check_mpi(int error):
    if error:
        raise MPI.Exception(error)


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


cdef class PreparedCall:
    """A collective that is ready to be served.

    Parameters
    ----------
    decision : Decision
    compiled : Compiled
    coding, inside : Coding
        Codecs between nodes, and inside them.
    neighbours : Neighbours or None
        Ranks that share memory with this one.
    direct : bool
        True if MPI takes frames in GPU memory.
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
        """The exception that a codec of another package has raised, or None."""
        return self.coding.failed if self.inside.failed is None else self.inside.failed


def stalled():
    """The error of calls that made no progress for `stall_seconds`."""
    text = f"a call has waited more than COMPCOLL_TIMEOUT = {stall_seconds:g} s"
    return TimeoutError(f"{text}; the communicator is in an error state")


def set_oversubscribed():
    """Leave cores to other ranks while a long call waits, since the node has more ranks than cores."""
    engine.progress().set_oversubscribed()


include "lifecycle.pxi"
include "library.pxi"
include "communicators.pxi"
include "statistics.pxi"
include "errors.pxi"
include "decisions.pxi"
include "client.pxi"

hook()
_connect()

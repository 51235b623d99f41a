# cython: language_level=3
"""The methods of messages and objects, replaced by ones that note when a call began and ended.

Nothing is in the way of a program that is not watched. In one that is, each call of a method of
`compcoll.tracing.names.CALLS` becomes a `Record`; what such a method calls by itself is part of it. The layer
records collectives (csrc/layer/record.cpp).
"""

from functools import update_wrapper

import numpy as np
from mpi4py import MPI

cimport numpy as cnp
from cpython.object cimport PyObject

from libc.stdint cimport uintptr_t

from compcoll.engine._engine import GO_QUIET, last_of, number_of

from compcoll.core.vectorcall cimport (
    PyMethod_New, PyObject_Vectorcall, PyTuple_GET_SIZE, PyVectorcall_NARGS, serve_vectorcalls,
    vectorcallfunc,
)
from compcoll.tracing.names import described_nbytes, facts_of, is_ours

cdef extern from "frameobject.h":
    ctypedef struct PyFrameObject:
        pass
    ctypedef struct PyCodeObject:
        pass
    PyFrameObject* PyEval_GetFrame()
    PyFrameObject* PyFrame_GetBack(PyFrameObject*)
    PyCodeObject* PyFrame_GetCode(PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    void Py_XINCREF(PyFrameObject*)
    void Py_DECREF(PyCodeObject*)
    void Py_XDECREF(PyFrameObject*)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec, tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec*)

cdef extern from "<stdio.h>" nogil:
    int snprintf(char*, size_t, const char*, ...)

cdef extern from *:
    """
    /* The record of the call that is under way on this thread; borrowed. */
    static __thread PyObject* current = 0;
    """
    PyObject* current

cnp.import_array()

ctypedef void (*GoQuiet)(int) noexcept nogil
#: Begins or ends that the layer records no call of this thread.
cdef GoQuiet go_quiet = <GoQuiet><uintptr_t>GO_QUIET
cdef type ndarray = np.ndarray
cdef type Request = MPI.Request
cdef object IN_PLACE = MPI.IN_PLACE


cdef inline double now() noexcept nogil:
    """`time.perf_counter`."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


cdef class Record:
    """A call.

    Attributes
    ----------
    name : str
        Of the method.
    comm : CommFacts
    nbytes : int
        Of the buffer that a rank which sends gives it; 0 where its arguments do not tell.
    sends : bool
        Whether that buffer is one that this rank sends from.
    calls : int
        More than one where several that are alike are one record, with the sum of their times.
    start, end : float
        `time.perf_counter`, when the method was called, and when it had returned or its request was done.
    returned : float
        When the method had returned.
    accelerated : bool
    last
        The communicator's record of it, as `compcoll.engine._engine.last_of`; None of what is MPI's alone.
    problem : str or None
        Type of the exception that it raised.
    code, instruction
        Where the program called it: a code object and the offset in it.
    late : bool
        Whether `end` is when the request was seen to be complete, which was not waited for by itself.
    """

    cdef public str name
    cdef public object comm, last, code
    cdef public Py_ssize_t nbytes, calls
    cdef public bint sends, accelerated, late
    cdef public double start, end, returned
    cdef public str problem
    cdef public int instruction

    def __cinit__(self):
        self.calls = 1

    cpdef bint is_like(self, Record other):
        """Whether all but the times of a call, and of one that was accelerated what it did, is the same."""
        return (
            self.instruction == other.instruction and self.code is other.code and self.name is other.name
            and self.comm is other.comm and self.nbytes == other.nbytes and self.sends == other.sends
            and self.accelerated == other.accelerated
            and (self.accelerated or self.last is other.last or self.last == other.last)
        )

    @property
    def place(self):
        """A number that calls from the same place have in common."""
        return <size_t><PyObject*>self.code + <size_t>self.instruction

    @property
    def times(self):
        """Seconds of its method where these are fewer, its start and its duration, as in JSON."""
        cdef char text[160]
        cdef int n = 0
        if self.returned != self.end:
            n = snprintf(text, 64, b',"returned":%.9f', self.returned - self.start)
        snprintf(text + n, 96, b',"start":%.9f,"total":%.9f}\n', self.start, self.end - self.start)
        return text.decode("ascii")

    @property
    def seconds(self):
        """Seconds that its method took."""
        return self.returned - self.start


cdef class Recorder:
    """A sink of records.

    Parameters
    ----------
    take : callable
        ``take(records)`` is called with a list of them, now and then.
    began : callable or None
        ``began(record, request)`` gives what a method that returned a request is to return; the record is not
        taken then, before it is given to `add`.
    most : int
        Records that are kept before they are taken.
    """

    cdef object taken, began
    cdef Py_ssize_t most
    cdef list records

    def __init__(self, take, began, Py_ssize_t most):
        self.taken, self.began, self.most = take, began, most
        self.records = []

    cpdef add(self, Record record):
        """Keep a record."""
        self.records.append(record)
        if len(self.records) >= self.most:
            self.flush()

    def flush(self):
        """Have all records taken that are kept."""
        records, self.records = self.records, []
        if records:
            self.taken(records)


cdef Recorder active = None


def record_with(Recorder recorder):
    """Note calls from now on; None ends that."""
    global active
    active = recorder


cdef class Watched:
    """A method that is noted.

    Parameters
    ----------
    name : str
    plain : callable
        The call that it stands for.
    receives, from_root : bool
        Whether its buffer is one that it receives into; whether only the root sends.
    """

    cdef vectorcallfunc vectorcall
    cdef object plain
    cdef str name
    cdef bint receives, from_root
    cdef dict __dict__

    def __init__(self, str name, plain, bint receives, bint from_root):
        self.vectorcall = call
        self.name, self.plain, self.receives, self.from_root = name, plain, receives, from_root
        update_wrapper(self, plain)

    def __get__(self, comm, owner):
        return self if comm is None else PyMethod_New(self, comm)

    cdef describe(self, Record record, comm, PyObject* const* args, Py_ssize_t n):
        """Note what the arguments say; ``args`` are n values behind the communicator."""
        cdef Py_ssize_t i
        cdef object root = 0
        record.sends = not self.receives
        if n:
            record.nbytes = nbytes_of(<object>args[0])
        if self.from_root:
            for i in range(1, n):
                if type(<object>args[i]) is int:
                    root = <object>args[i]
            record.sends = root == comm.rank
        if record.comm.size == 1:
            record.sends = False


cdef object call(object method, PyObject* const* args, size_t flagged, PyObject* names):
    cdef Watched self = <Watched>method
    cdef Py_ssize_t n = PyVectorcall_NARGS(flagged), named = 0 if names is NULL else PyTuple_GET_SIZE(names)
    cdef Record record
    cdef Recorder recorder = active
    if current is not NULL or recorder is None or n == 0:
        return PyObject_Vectorcall(self.plain, args, flagged, names)
    record = Record.__new__(Record)
    comm = <object>args[0]
    record.name, record.comm = self.name, facts_of(number_of(comm), comm.Get_name())
    messages = comm._state
    before = messages.swap_last(None)
    count = comm.calls_accelerated
    current_is(record)
    record.start = now()
    try:
        result = PyObject_Vectorcall(self.plain, args, flagged, names)
    except BaseException as problem:
        record.problem = type(problem).__name__
        raise
    finally:
        record.end = record.returned = now()
        current_is(None)
        record.last = messages.last
        if record.last is None:
            messages.swap_last(before)
        record.accelerated = comm.calls_accelerated != count
        if record.accelerated and record.last is None:
            record.last = last_of(comm)  # of the bytes of an object
        self.describe(record, comm, args + 1, n + named - 1)
        record.code, record.instruction = find_site()
        if record.problem is not None:
            recorder.add(record)
    if recorder.began is not None and isinstance(result, Request):
        return recorder.began(record, result)
    recorder.add(record)
    return result


cdef inline void current_is(Record record):
    global current
    go_quiet(-1 if record is None else 1)
    current = NULL if record is None else <PyObject*>record


cdef inline Py_ssize_t nbytes_of(object value) except -1:
    if type(value) is ndarray:
        return cnp.PyArray_NBYTES(<cnp.ndarray>value)
    return 0 if value is None or value is IN_PLACE else described_nbytes(value)


# -- where the program called


#: Of each code object, by its address, itself and whether it is compcoll's or mpi4py's.
cdef dict known_code = {}


def find_site():
    """Code object and instruction of the innermost frame that is neither compcoll's nor mpi4py's."""
    found = None, 0
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyFrameObject* outer
    cdef PyCodeObject* address
    Py_XINCREF(frame)
    while frame is not NULL:
        address = PyFrame_GetCode(frame)
        code = <object><PyObject*>address
        Py_DECREF(address)  # one reference is in `code`
        known = known_code.get(<size_t>address)
        if known is None:
            known = known_code[<size_t>address] = code, is_ours(code)
        if not (<tuple>known)[1]:
            found = code, PyFrame_GetLasti(frame)
            break
        outer = PyFrame_GetBack(frame)
        Py_XDECREF(frame)
        frame = outer
    Py_XDECREF(frame)
    return found


cdef void serve():
    cdef Watched any = Watched.__new__(Watched)
    serve_vectorcalls(Watched, <char*>&any.vectorcall - <char*><PyObject*>any)


serve()

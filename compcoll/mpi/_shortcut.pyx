# cython: language_level=3
"""The way of small messages: from the method straight to mpi4py's own.

A small call takes a few microseconds, so what precedes it has to take a few hundred nanoseconds at most. A
`Method` is a method of a communicator that looks at its buffer, and hands the arguments on as they came: to
mpi4py's method if the message is sure to be MPI's to send, else to a method in Python that finds out.
"""

from functools import update_wrapper

import numpy as np
from mpi4py import MPI

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t

from compcoll.core._calls cimport CallTotals, totals_of
from compcoll.core.vectorcall cimport (
    PyMethod_New, PyObject_Vectorcall, PyVectorcall_NARGS, serve_vectorcalls, vectorcallfunc,
)
from compcoll.engine._engine import NOTE_MESSAGE
from compcoll.engine._interrupts cimport deferred
from compcoll.mpi.datatypes import LACKS_FLOAT16

cnp.import_array()

cdef type ndarray = np.ndarray
cdef type Datatype = MPI.Datatype
#: A type that only the full way can give to MPI.
cdef int UNKNOWN = <int>cnp.NPY_FLOAT16 if LACKS_FLOAT16 else -1
ctypedef void (*Note)(uint64_t) noexcept nogil
#: Tells the layer that the last call of a communicator was a message.
cdef Note note_message = <Note><uintptr_t>NOTE_MESSAGE


cdef class Gate:
    """What messages of a communicator leave behind.

    Attributes
    ----------
    handle : int
        Of the communicator.
    limit : int
        Messages whose buffers are smaller, in bytes, are MPI's.
    accelerated : int
        Messages that did not go to MPI unchanged.
    last : str, tuple or Report
        The last message: its operation alone where it was small, (operation, reason) where it went to MPI
        for another reason, (operation, decision, outcome) where it did not.
    """

    cdef readonly uint64_t handle
    cdef public Py_ssize_t limit, accelerated
    cdef object own_last

    def __init__(self, uint64_t handle, Py_ssize_t limit):
        self.handle, self.limit = handle, limit

    @property
    def last(self):
        return self.own_last

    @last.setter
    def last(self, value):
        self.own_last = value
        note_message(self.handle)

    def swap_last(self, value):
        """Give `last` another value, of which the layer learns nothing, and return what it was."""
        before, self.own_last = self.own_last, value
        return before


cdef class Method:
    """A method that goes to MPI without delay where its buffer says so.

    Parameters
    ----------
    full : function
        The method for all other calls; its name is the operation.
    """

    cdef vectorcallfunc vectorcall
    cdef object full, plain
    cdef CallTotals totals
    cdef str name
    cdef dict __dict__

    def __init__(self, full):
        self.vectorcall = call
        self.name = full.__name__
        self.full, self.plain = full, getattr(MPI.Intracomm, self.name)
        self.totals = totals_of(self.name)
        update_wrapper(self, full)
        self.__module__ = "compcoll"  # which has the communicators' classes
        self.__doc__ = full.__doc__ or self.plain.__doc__

    def __get__(self, comm, owner):
        return self if comm is None else PyMethod_New(self, comm)


cdef object call(object method, PyObject* const* args, size_t flagged, PyObject* names):
    cdef Method self = <Method>method
    cdef Gate gate
    self.totals.calls += 1
    if PyVectorcall_NARGS(flagged) > 1:
        gate = (<object>args[0])._state
        if is_small(<object>args[1], gate.limit):
            gate.own_last = self.name
            note_message(gate.handle)
            return PyObject_Vectorcall(self.plain, args, flagged, names)
    with deferred():
        return PyObject_Vectorcall(self.full, args, flagged, names)


cdef void serve():
    cdef Method any = Method.__new__(Method)
    serve_vectorcalls(Method, <char*>&any.vectorcall - <char*><PyObject*>any)


serve()


cdef inline bint is_small_array(cnp.ndarray array, Py_ssize_t limit):
    return cnp.PyArray_NBYTES(array) < limit and cnp.PyArray_TYPE(array) != UNKNOWN


cpdef bint is_small(object spec, Py_ssize_t limit):
    """Whether a buffer argument surely describes fewer than ``limit`` bytes."""
    if type(spec) is ndarray:
        return is_small_array(<cnp.ndarray>spec, limit)
    if type(spec) is not list and type(spec) is not tuple or not spec or type(spec[0]) is not ndarray:
        return False
    last = spec[-1]
    # Those of derived types may describe any number of bytes.
    return is_small_array(<cnp.ndarray>spec[0], limit) and (
        type(last) is not Datatype and not isinstance(last, Datatype) or last.is_predefined
    )


def shortcut(full):
    """Decorate a method with a `Method` for its small messages."""
    return Method(full)

# cython: language_level=3
"""The way of calls that MPI serves unchanged: from the method straight to mpi4py's own.

A small call takes a few microseconds, so what precedes it has to take a few hundred nanoseconds at most. A
`Shortcut` is a method of a communicator that looks at its buffers, and hands the arguments on as they came:
to mpi4py's method if it is sure that they are MPI's to serve, else to a method in Python that finds out.
"""

from functools import update_wrapper

import numpy as np
from mpi4py import MPI

cimport numpy as cnp
from cpython.object cimport PyObject

cdef extern from "Python.h":
    ctypedef object (*vectorcallfunc)(object, PyObject* const*, size_t, PyObject*)
    ctypedef object (*ternaryfunc)(object, object, object)
    ctypedef struct PyTypeObject:
        unsigned long tp_flags
        ternaryfunc tp_call
        Py_ssize_t tp_vectorcall_offset
    unsigned long Py_TPFLAGS_HAVE_VECTORCALL, Py_TPFLAGS_METHOD_DESCRIPTOR
    object PyVectorcall_Call(object, object, object)
    Py_ssize_t PyVectorcall_NARGS(size_t) nogil
    object PyObject_Vectorcall(object, PyObject* const*, size_t, PyObject* kwnames)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*) nogil
    object PyMethod_New(object, object)

cnp.import_array()

cdef type ndarray = np.ndarray
cdef type Datatype = MPI.Datatype
cdef object IN_PLACE = MPI.IN_PLACE
cdef object SUM = MPI.SUM


cdef class Count:
    """Calls of one kind, and how many there may be before it is asked anew what becomes of them."""

    cdef public Py_ssize_t calls, most

    def __init__(self, Py_ssize_t most):
        self.calls, self.most = 0, most


cdef class Gate:
    """What the shortcuts of one communicator know, and the trace that they leave.

    Attributes
    ----------
    limit : int
        Calls whose buffers are all smaller, in bytes, are MPI's.
    declined : dict
        Larger calls that were found to be MPI's, by `kind`: a pair of their `Count`, or None where they
        are so for good, and what `last` becomes.
    last : str, tuple or Report
        The last call: its operation alone where it was small, (operation, reason) where it went to MPI
        for another reason.
    """

    cdef readonly Py_ssize_t limit
    cdef readonly dict declined
    cdef public object last

    def __init__(self, Py_ssize_t limit, last):
        self.limit, self.last = limit, last
        self.declined = {}


cdef class Shortcut:
    """A method that goes to MPI without delay where its buffers say so.

    Parameters
    ----------
    full : function
        The method for all other calls; its name is the operation.
    buffers : int
        Number of its first arguments that are buffers. Given by keyword, they take the full way.
    """

    cdef vectorcallfunc vectorcall
    cdef object full, plain
    cdef str op
    cdef Py_ssize_t buffers
    cdef dict __dict__

    def __init__(self, full, Py_ssize_t buffers):
        self.vectorcall = call
        self.full, self.plain, self.op = full, getattr(MPI.Comm, full.__name__), full.__name__
        self.buffers = buffers
        update_wrapper(self, full)
        self.__doc__ = full.__doc__ or self.plain.__doc__

    def __get__(self, comm, owner):
        return self if comm is None else PyMethod_New(self, comm)

    cdef bint is_plain(self, Gate gate, PyObject* const* args, Py_ssize_t n):
        """Whether a call is sure to be MPI's; ``args`` are n values from the first buffer on."""
        cdef Py_ssize_t i
        cdef Count count
        if are_small(args, self.buffers, gate.limit):
            gate.last = self.op
            return True
        if not gate.declined:
            return False
        for i in range(self.buffers, n):  # sums to any root are what was declined
            if <object>args[i] is not SUM and type(<object>args[i]) is not int:
                return False
        known = gate.declined.get(key(self.op, args, self.buffers))
        if known is None:
            return False
        count = (<tuple>known)[0]
        if count is not None:
            if count.calls >= count.most:
                return False
            count.calls += 1
        gate.last = (<tuple>known)[1]
        return True


cdef object call(object method, PyObject* const* args, size_t flagged, PyObject* names):
    cdef Shortcut self = <Shortcut>method
    cdef Gate gate
    cdef Py_ssize_t n = PyVectorcall_NARGS(flagged), named = 0 if names is NULL else PyTuple_GET_SIZE(names)
    if n > self.buffers:
        gate = (<object>args[0])._gate
        if self.is_plain(gate, args + 1, n + named - 1):
            try:
                return PyObject_Vectorcall(self.plain, args, flagged, names)
            except BufferError:
                pass  # perhaps for arrays of a type that mpi4py does not know, and the other way does
    return PyObject_Vectorcall(self.full, args, flagged, names)


cdef void serve_vectorcalls():
    """Make `Shortcut` a method descriptor that is called without packing its arguments (PEP 590)."""
    cdef Shortcut any = Shortcut.__new__(Shortcut)
    cdef PyTypeObject* its = <PyTypeObject*>Shortcut
    its.tp_vectorcall_offset = <char*>&any.vectorcall - <char*><PyObject*>any
    its.tp_call = PyVectorcall_Call
    its.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR


serve_vectorcalls()


cdef inline bint no_buffer(object spec):
    return spec is None or spec is IN_PLACE


cdef bint are_small(PyObject* const* specs, Py_ssize_t n, Py_ssize_t limit):
    cdef Py_ssize_t i
    cdef bint found = False
    for i in range(n):
        if is_small(<object>specs[i], limit):
            found = True
        elif not no_buffer(<object>specs[i]):
            return False
    return found


cpdef bint is_small(object spec, Py_ssize_t limit):
    """Whether a buffer argument surely describes fewer than ``limit`` bytes."""
    if type(spec) is ndarray:
        return cnp.PyArray_NBYTES(<cnp.ndarray>spec) < limit
    if type(spec) is not list and type(spec) is not tuple or not spec or type(spec[0]) is not ndarray:
        return False
    last = spec[-1]
    # Those of derived types may describe any number of bytes.
    return cnp.PyArray_NBYTES(<cnp.ndarray>spec[0]) < limit and (
        type(last) is not Datatype and not isinstance(last, Datatype) or last.is_predefined
    )


cdef tuple key(str op, PyObject* const* specs, Py_ssize_t n):
    """All of plain arrays that a decision depends on; None for other buffers."""
    cdef object first = <object>specs[0], second = <object>specs[n - 1]
    if not (type(first) is ndarray or no_buffer(first)) or not (type(second) is ndarray or no_buffer(second)):
        return None
    if n == 1:
        return op, dtype_of(first), nbytes_of(first)
    return op, dtype_of(first), nbytes_of(first), dtype_of(second), nbytes_of(second)


cdef inline object dtype_of(object spec):
    return (<cnp.ndarray>spec).dtype if type(spec) is ndarray else None


cdef inline Py_ssize_t nbytes_of(object spec):
    return cnp.PyArray_NBYTES(<cnp.ndarray>spec) if type(spec) is ndarray else 0


def kind(str op, *specs):
    """`key` of buffer arguments that come from Python."""
    cdef PyObject* some[2]
    cdef Py_ssize_t i, n = len(specs)
    if not 0 < n <= 2:
        raise ValueError(f"a collective has 1 or 2 buffers, not {n}")
    for i in range(n):
        some[i] = <PyObject*>specs[i]
    return key(op, some, n)


def shortcut(Py_ssize_t buffers):
    """Decorate a method with a `Shortcut` for its small calls."""
    return lambda full: Shortcut(full, buffers)

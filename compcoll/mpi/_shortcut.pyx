# cython: language_level=3
"""The way of calls that MPI serves unchanged: from the method straight to mpi4py's own.

A small call takes a few microseconds, so what precedes it has to take a few hundred nanoseconds at most. A
`Method` is a method of a communicator that looks at its buffers, and hands the arguments on as they came:
to mpi4py's method if it is sure that they are MPI's to serve, else to a method in Python that finds out.
"""

import sys
from time import perf_counter
from functools import update_wrapper

import numpy as np
from mpi4py import MPI

cimport numpy as cnp
from cpython.object cimport PyObject

from compcoll.core.vectorcall cimport (
    PyMethod_New, PyObject_Vectorcall, PyTuple_GET_SIZE, PyVectorcall_NARGS, serve_vectorcalls,
    vectorcallfunc,
)
from compcoll.core._calls cimport CallTotals, Count, totals_of
from compcoll.engine._interrupts cimport deferred
from compcoll.engine._engine import DONE, PreparedCall as Prepared, raise_pending, wait
from compcoll.mpi.datatypes import LACKS_FLOAT16
from compcoll.operations import blocking_name

cnp.import_array()

cdef type ndarray = np.ndarray
cdef type Datatype = MPI.Datatype
cdef type PreparedCall = Prepared
cdef object IN_PLACE = MPI.IN_PLACE
cdef object SUM = MPI.SUM
#: A type that only the full way can give to MPI.
cdef int UNKNOWN = <int>cnp.NPY_FLOAT16 if LACKS_FLOAT16 else -1


#: Kinds of calls of which a communicator remembers what became of them.
MOST_REMEMBERED = 1024


cdef class Gate:
    """Remembered decisions for the shortcuts of one communicator, and the trace that its calls leave.

    Attributes
    ----------
    limit : int
        Calls whose buffers are all smaller, in bytes, are MPI's.
    known : dict
        By the kind of a call the count of those for which a decision holds, and what was decided: a
        `PreparedCall`, or what `last` is of a call that is MPI's.
    paired : bool
        Whether calls that pairs of ranks decide alone need nothing more that all ranks do together.
    accelerated : int
        Calls that did not go to MPI unchanged.
    last : str, tuple or Report
        The last call: its operation alone where it was small, (operation, reason) where it went to MPI
        for another reason, (operation, decision, outcome) where it did not.
    """

    cdef public Py_ssize_t limit, accelerated
    cdef readonly dict known
    cdef public bint paired
    cdef public object last

    def __init__(self, Py_ssize_t limit):
        self.limit, self.known = limit, {}

    def keep(self, kind, Count count, decided):
        """Decide on calls of a kind once and for all, or for as many as ``count`` says."""
        if len(self.known) >= MOST_REMEMBERED:
            self.known.clear()
        self.known[kind] = endless if count is None else count, decided

    cdef tuple find(self, kind):
        """The count of calls of a kind, and what was decided; None where a new decision is due."""
        cdef tuple found = self.known.get(kind)
        cdef Count count
        if found is None:
            return None
        count = found[0]
        return None if count.calls >= count.most else found


#: What the methods do beyond those of mpi4py, for their documentation.
cdef str COMPRESSED = "Messages of at least ``min_nbytes`` are compressed, as the communicator's policy says."

#: Of calls that need not be counted.
cdef Count endless = Count(sys.maxsize)


cdef class Method:
    """A method that goes to MPI without delay where its buffers say so.

    Parameters
    ----------
    full : function
        The method for all other calls; its name is the operation.
    buffers : int
        Number of its first arguments that are buffers. Given by keyword, they take the full way.
    pairs : bool
        Whether each pair of ranks decides alone.
    start : callable or None
        Of a nonblocking method: ``start(state, prepared, send, recv)`` starts a prepared call; the request,
        or False where the arrays are not like those that it was made for.
    """

    cdef vectorcallfunc vectorcall
    cdef object full, plain, start
    cdef CallTotals totals
    cdef str name, op
    cdef Py_ssize_t buffers
    cdef bint pairs
    #: The count of small calls, and what is known of them.
    cdef tuple small
    cdef dict __dict__

    def __init__(self, full, Py_ssize_t buffers, bint pairs, start):
        self.vectorcall = call
        self.name = full.__name__
        self.full, self.plain, self.op = full, getattr(MPI.Intracomm, self.name), self.name
        self.buffers, self.pairs, self.start = buffers, pairs, start
        if start is not None:
            self.op = self.name[1:].capitalize()
        self.small = endless, self.op
        # Preparing a persistent call is none.
        self.totals = CallTotals() if self.name.endswith("_init") else totals_of(blocking_name(self.name))
        update_wrapper(self, full)
        self.__module__ = "compcoll"  # which has the communicators' classes
        self.__doc__ = f"{full.__doc__ or self.plain.__doc__}\n\n{COMPRESSED}"

    def __get__(self, comm, owner):
        return self if comm is None else PyMethod_New(self, comm)

    cdef tuple find(self, Gate gate, PyObject* const* args, Py_ssize_t n):
        """The count of calls like this one, and what was decided on them; None of what has to be found out.

        ``args`` begin with the first buffer.
        """
        cdef Py_ssize_t root
        if self.pairs and not gate.paired:
            return None
        if are_small(args, self.buffers, gate.limit):
            return self.small
        if not gate.known or not root_of(args, self.buffers, n, &root):
            return None
        return gate.find(key(self.name, args, self.buffers, root, self.pairs))


cdef object run_prepared(Gate gate, Count count, prepared, send, recv):
    """Carry out a prepared call; False where its buffers are not like those that it was made for.

    No signal's handler runs before its end.
    """
    try:
        task = prepared.start_on(send, recv)
    except BaseException as problem:
        gate.fail(f"{prepared.op} was not begun: {problem!r}")
        raise
    if task is None:
        return False
    count.calls += 1
    try:
        wait(task)
    finally:
        if task.end != DONE:
            gate.fail(f"{prepared.op} was interrupted")
        gate.accelerated += 1
        totals_of(prepared.op).add(task.outcome)
        gate.last = prepared.op, prepared.decision, task.outcome
    if count.seconds is not None:
        count.seconds[count.calls - 1] = task.outcome.seconds
    raise_pending()
    return None


cdef object run_with_rest(Gate gate, Count count, prepared, send, recv):
    """The same for a call of which MPI has a part; signals are kept back between both."""
    if not prepared.fits(send, recv):
        return False
    with deferred():
        prepared.rest(gate, send, recv)
        return run_prepared(gate, count, prepared, send, recv)


cdef object call(object method, PyObject* const* args, size_t flagged, PyObject* names):
    cdef Method self = <Method>method
    cdef Gate gate
    cdef Count count
    cdef tuple found
    cdef Py_ssize_t n = PyVectorcall_NARGS(flagged), named = 0 if names is NULL else PyTuple_GET_SIZE(names)
    self.totals.calls += 1
    if n > self.buffers:
        gate = (<object>args[0])._state
        found = self.find(gate, args + 1, n + named - 1)
        if found is not None and type(found[1]) is PreparedCall:
            first = None if self.buffers == 1 else memory_of(<object>args[1])
            second = memory_of(<object>args[self.buffers])
            count = found[0]
            if self.pairs:
                result = run_with_rest(gate, count, found[1], first, second)
            elif self.start is None:
                result = run_prepared(gate, count, found[1], first, second)
            else:
                result = self.start(gate, found[1], first, second)
                count.calls += result is not False  # all ranks count a call once, whatever way it goes
            if result is not False:
                return result
        elif found is not None:
            count, gate.last = found
            count.calls += 1
            try:
                if count.seconds is not None:
                    return call_timed(count, self.plain, args, flagged, names)
                return PyObject_Vectorcall(self.plain, args, flagged, names)
            except BufferError:  # perhaps for arrays of a type that mpi4py does not know
                count.calls -= 1
    return call_deferred(self.full, args, flagged, names)


cdef object call_timed(Count count, plain, PyObject* const* args, size_t flagged, PyObject* names):
    """Call mpi4py's method, and record what it takes."""
    start = perf_counter()
    result = PyObject_Vectorcall(plain, args, flagged, names)
    count.seconds[count.calls - 1] = perf_counter() - start
    return result


cdef object call_deferred(full, PyObject* const* args, size_t flagged, PyObject* names):
    """Call a method and keep signals back until its end."""
    with deferred():
        return PyObject_Vectorcall(full, args, flagged, names)


cdef void serve():
    cdef Method any = Method.__new__(Method)
    serve_vectorcalls(Method, <char*>&any.vectorcall - <char*><PyObject*>any)


serve()


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


cdef bint root_of(PyObject* const* args, Py_ssize_t buffers, Py_ssize_t n, Py_ssize_t* root) except -1:
    """Whether all arguments behind the buffers are roots or sums; 0 is the default."""
    cdef Py_ssize_t i
    root[0] = 0
    for i in range(buffers, n):
        if type(<object>args[i]) is int:
            root[0] = <object>args[i]
        elif <object>args[i] is not SUM:
            return False
    return True


cdef tuple key(str name, PyObject* const* specs, Py_ssize_t n, Py_ssize_t root, bint pairs):
    """All of arrays, and of counts where ``pairs`` decide, on which a decision depends; None for others."""
    cdef object first = <object>specs[0], second = <object>specs[n - 1], counts = None
    if pairs:
        try:
            counts = layout_of(first), layout_of(second)
        except TypeError:
            return None
        first, second = memory_of(first), memory_of(second)
    if not (type(first) is ndarray or no_buffer(first)) or not (type(second) is ndarray or no_buffer(second)):
        return None
    if n == 1:
        return name, dtype_of(first), nbytes_of(first), shape_of(first), root
    return (name, dtype_of(first), nbytes_of(first), shape_of(first), dtype_of(second), nbytes_of(second),
            shape_of(second), root, counts)


cdef inline object memory_of(object spec):
    """The buffer of an argument in any of mpi4py's forms."""
    return spec[0] if (type(spec) is list or type(spec) is tuple) and spec else spec


cdef object layout_of(object spec):
    """Counts, displacements and predefined type of an argument; TypeError for those that may change."""
    return None if type(spec) is not list and type(spec) is not tuple else tuple(map(fixed, spec[1:]))


def fixed(part):
    """A value that stands for a part of an argument."""
    if type(part) is tuple or type(part) is list:
        return type(part), tuple(map(fixed, part))
    if type(part) is ndarray and part.dtype.kind in "iu":
        return part.dtype, part.shape, part.tobytes()
    if isinstance(part, Datatype) and part.is_predefined:
        return Datatype, part.handle
    if part is None or type(part) is int or type(part) is str:
        return part
    raise TypeError(f"a {type(part).__name__} may change")


cdef inline object dtype_of(object spec):
    return (<cnp.ndarray>spec).dtype if type(spec) is ndarray else None


cdef inline object shape_of(object spec):
    return spec.shape if type(spec) is ndarray and cnp.PyArray_NDIM(<cnp.ndarray>spec) > 1 else None


cdef inline Py_ssize_t nbytes_of(object spec):
    return cnp.PyArray_NBYTES(<cnp.ndarray>spec) if type(spec) is ndarray else 0


def kind(str name, *specs, Py_ssize_t root=0, bint pairs=False):
    """`key` of buffer arguments that come from Python."""
    cdef PyObject* some[2]
    cdef Py_ssize_t i, n = len(specs)
    if not 0 < n <= 2:
        raise ValueError(f"a collective has 1 or 2 buffers, not {n}")
    for i in range(n):
        some[i] = <PyObject*>specs[i]
    return key(name, some, n, root, pairs)


def shortcut(Py_ssize_t buffers, bint pairs=False, start=None):
    """Decorate a method with a `Method` for its small calls."""
    return lambda full: Method(full, buffers, pairs, start)


def uninterrupted(full):
    """Decorate a method that keeps signals back until its end."""
    return Method(full, sys.maxsize, False, None)

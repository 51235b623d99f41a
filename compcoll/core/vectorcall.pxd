"""Objects that take the place of methods and are called without packing their arguments (PEP 590)."""

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


cdef inline void serve_vectorcalls(object cls, Py_ssize_t offset):
    """Make an extension type one of method descriptors, whose `vectorcallfunc` lies so many bytes in."""
    cdef PyTypeObject* its = <PyTypeObject*>cls
    its.tp_vectorcall_offset = offset
    its.tp_call = PyVectorcall_Call
    its.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR

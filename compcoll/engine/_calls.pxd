cdef class Count:
    cdef public Py_ssize_t calls, most
    cdef readonly list seconds


cdef class CallTags:
    cdef readonly int n
    cdef int first, turns, calls
    cdef dict under_way
    cpdef int next(self) except -1

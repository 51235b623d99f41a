cdef class CallTotals:
    cdef public Py_ssize_t calls, accelerated, raw_nbytes, wire_nbytes
    cpdef add(self, outcome, bint first=*)


cpdef CallTotals totals_of(str op)


cdef class CallTags:
    cdef readonly int first, n
    cdef int turns, calls
    cdef dict under_way
    cpdef int next(self) except -1

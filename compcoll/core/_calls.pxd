cdef class CallTags:
    cdef readonly int first, n
    cdef int turns, calls
    cdef dict under_way
    cpdef int next(self) except -1

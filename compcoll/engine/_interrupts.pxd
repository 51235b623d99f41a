cdef class deferred:
    cdef bint quiet
    cdef list replaced, arrived
    cdef object note
    cdef int begin(self) except -1
    cdef int end(self, bint raises) except -1
    cdef int run_next(self) except -1

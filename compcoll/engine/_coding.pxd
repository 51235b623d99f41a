from libc.stdint cimport uint64_t

from compcoll.engine.native cimport CCoding, Stats


cdef class Coding:
    cdef CCoding own
    cdef object encode, decode
    cdef readonly object failed


cdef class Outcome:
    cdef Stats stats
    cdef readonly double seconds
    cdef readonly uint64_t base_nbytes

"""Declarations of _engine that other extensions use."""

from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool

from compcoll.core._cpu cimport Error
from compcoll.engine.native cimport Stats


cdef class RunStatistics:
    cdef Stats stats
    cdef readonly double seconds
    cdef readonly uint64_t base_nbytes


cdef object problem_of(const Error* error)
cdef cbool signalled() noexcept with gil

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector


cdef extern from "engine/layout.h" namespace "compcoll::engine" nogil:
    cdef cppclass CLayout "const compcoll::engine::Layout":
        int32_t kind
        uint64_t nbytes, count
        int64_t stride
    shared_ptr[CLayout] run_layout(uint64_t)
    shared_ptr[CLayout] loop_layout(uint64_t, int64_t, shared_ptr[CLayout])
    shared_ptr[CLayout] runs_layout(vector[int64_t], const vector[uint64_t]&)
    shared_ptr[CLayout] parts_layout(vector[int64_t], vector[shared_ptr[CLayout]])
    void gather(const CLayout&, const uint8_t*, uint64_t, uint64_t, uint8_t*)
    void scatter(const CLayout&, uint8_t*, uint64_t, uint64_t, const uint8_t*)


cdef class Layout:
    cdef shared_ptr[CLayout] own
    cdef readonly Layout child


cdef class StridedBlock:
    cdef readonly Layout layout
    cdef readonly uintptr_t origin
    cdef readonly uint64_t first
    cdef readonly object dtype, keep
    cdef readonly Py_ssize_t size

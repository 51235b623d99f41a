from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector


cdef extern from "engine/node_wire.h" namespace "compcoll::engine" nogil:
    cdef cppclass CSegmentAddress "compcoll::engine::SegmentAddress":
        int64_t pid
        int32_t fd
        uint64_t nbytes, token
    cdef cppclass CSegment "compcoll::engine::Segment":
        const CSegmentAddress& address()
    shared_ptr[CSegment] create_segment "compcoll::engine::Segment::create"(uint64_t)
    shared_ptr[CSegment] open_segment "compcoll::engine::Segment::open"(const CSegmentAddress&)
    cdef cppclass CSharedMemory "compcoll::engine::SharedMemory":
        CSharedMemory(shared_ptr[CSegment]) except +
        const shared_ptr[CSegment]& own()
        void attach(const shared_ptr[CSegment]&) except +
        cbool attached(uint64_t)
    cdef cppclass CNeighbours "compcoll::engine::Neighbours":
        shared_ptr[CSharedMemory] memory
        uint64_t key
        int rank
        vector[uint64_t] tokens


cdef class Neighbours:
    cdef shared_ptr[CNeighbours] own

from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector


cdef extern from "engine/schedule.h" namespace "compcoll::engine" nogil:
    cdef cppclass Op:
        pass
    cdef cppclass BlockRef:
        pass
    cdef cppclass Scratch:
        pass
    cdef cppclass CSchedule "compcoll::engine::Schedule":
        vector[Op] ops
        vector[BlockRef] blocks
        vector[int32_t] successors
        vector[Scratch] scratch
        int32_t rank, size, n_buffers, n_frames, n_tags
        void count_users()


cdef class Compiled:
    cdef shared_ptr[CSchedule] own


cdef extern from "layer/count.h" namespace "compcoll::layer" nogil:
    cdef cppclass Calls "std::atomic<int64_t>":
        int64_t load()
    cdef cppclass CCount "compcoll::layer::Count":
        CCount(int64_t, int64_t) except +
        Calls calls
        int64_t most, skip
        double since, seconds
        uint64_t raw_nbytes, wire_nbytes


cdef class Count:
    cdef shared_ptr[CCount] own

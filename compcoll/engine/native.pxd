"""Declarations of the engine in C++ (csrc/engine) for Cython."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.pair cimport pair
from libcpp.vector cimport vector

cdef extern from "engine/node_wire.h" namespace "compcoll::engine" nogil:
    cdef cppclass CSegmentAddress "compcoll::engine::SegmentAddress":
        int64_t pid
        int32_t fd
        uint64_t token
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

cdef extern from "engine/engine.h" namespace "compcoll::engine" nogil:
    cdef cppclass Stats:
        uint64_t raw_nbytes, wire_nbytes, inside_nbytes, messages, fallbacks, workers
        double bound, encoded, encode_seconds, decode_seconds, wait_seconds
        vector[pair[uint64_t, uint64_t]] used
        uint64_t dimensions[4]
    cdef cppclass CPool "compcoll::engine::Pool":
        uint64_t idle_nbytes()
    cdef enum CEnd "compcoll::engine::End":
        pass
    cdef cppclass CProgress "compcoll::engine::Progress":
        void set_oversubscribed()
    cdef enum CHelp "compcoll::engine::Help":
        pass
    cdef cppclass CEngine "compcoll::engine::Engine":
        void set_workers(int, CHelp) except +
        CPool& pool()
        CProgress& progress()
        size_t workers()
        void stop()

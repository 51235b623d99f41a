"""Declarations of the engine in C++ (csrc/engine) for Cython."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from compcoll.core._cpu cimport CCoding, CGpu, CSchedule, Error
from compcoll.core._gpu cimport CMarks

cdef extern from "engine/layout.h" namespace "compcoll::engine" nogil:
    cdef cppclass CLayout "const compcoll::engine::Layout":
        int32_t kind
        uint64_t nbytes, count
        int64_t stride
        vector[shared_ptr[CLayout]] children
    void gather(const CLayout&, const uint8_t*, uint64_t, uint64_t, uint8_t*)
    void scatter(const CLayout&, uint8_t*, uint64_t, uint64_t, const uint8_t*)

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
    cdef cppclass CBases "compcoll::engine::Bases":
        CBases() except +
        uint64_t nbytes()
    cdef cppclass Stats:
        uint64_t raw_nbytes, wire_nbytes, inside_nbytes, messages, fallbacks
        double bound, encoded, encode_seconds, decode_seconds, wait_seconds
        vector[pair[uint64_t, uint64_t]] used
        uint64_t dimensions[4]
    cdef cppclass CTags "compcoll::engine::Tags":
        int first, n
    cdef cppclass CRecvHook "compcoll::engine::RecvHook":
        void* context
        void (*arrived)(void*, uint8_t*, uint64_t) noexcept nogil
    cdef cppclass CTask "compcoll::engine::Task":
        pass
    cdef cppclass CRun "compcoll::engine::Run" (CTask):
        const Error& error()
        const Stats& stats()
    CRecvHook the_recv_hook "compcoll::engine::Run::recv_hook"

    cdef cppclass CPlace "compcoll::engine::Place":
        CPlace(uint8_t*)
        CPlace(uint8_t*, shared_ptr[CLayout], uint64_t)
        uint8_t* data
        CGpu* gpu
    cdef cppclass Wire:
        pass
    cdef cppclass CPool "compcoll::engine::Pool":
        uint64_t idle_nbytes()
    cdef cppclass CLibrary "compcoll::engine::Library":
        pass
    unique_ptr[Wire] make_wire(const CLibrary&, uint64_t)

    cdef enum CEnd "compcoll::engine::End":
        pass
    cdef cppclass CProgress "compcoll::engine::Progress":
        void crowd()
    cdef cppclass CEngine "compcoll::engine::Engine":
        void set_workers(int) except +
        shared_ptr[CRun] begin(
            shared_ptr[CSchedule], const CCoding&, const CCoding&, vector[CPlace], unique_ptr[Wire], CTags,
            shared_ptr[CMarks], cbool, shared_ptr[CBases]
        ) except +
        CEnd wait(const vector[shared_ptr[CTask]]&, double, cbool (*)() noexcept nogil)
        CPool& pool()
        CProgress& progress()
        size_t workers()
        void stop()


cdef extern from * nogil:
    """
    static void with_thread_state(const std::function<void()>& loop) {
      PyGILState_STATE state = PyGILState_Ensure();
      PyThreadState* thread = PyEval_SaveThread();
      loop();
      PyEval_RestoreThread(thread);
      PyGILState_Release(state);
    }
    """

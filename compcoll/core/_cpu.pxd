from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "cpu/table.h" namespace "compcoll":
    double complex_bound "compcoll::modulus_bound"(cbool, double)

    cdef struct Args:
        uint32_t dtype
        uint32_t ndim
        uint64_t shape[3]
        uint64_t params[2]
        uint64_t capacity
        uint32_t acc_dtype
        double bound
        const void* base
        bint past_cache

    cdef struct Codec:
        const char* name
        int64_t (*encode)(Args*, const void*, void*) noexcept nogil
        int64_t (*decode)(const Args*, const void*, uint64_t, void*) noexcept nogil
        int64_t (*decode_add)(const Args*, const void*, uint64_t, void*) noexcept nogil
        int64_t (*add)(Args*, const void*, uint64_t, const void*, uint64_t, void*) noexcept nogil
        int64_t (*reconstruct)(Args*, const void*, void*, void*) noexcept nogil

    cdef struct Level:
        const char* name
        const Codec* const* codecs
        uint32_t (*checksum)(const uint8_t*, uint64_t) noexcept nogil
        bint (*accumulate)(uint32_t, uint32_t, const void*, void*, uint64_t) noexcept nogil
        bint (*convert)(uint32_t, uint32_t, const void*, void*, uint64_t) noexcept nogil
        double (*largest)(uint32_t, const void*, uint64_t) noexcept nogil

    const Level* const* levels() noexcept nogil
    bint is_complex(uint32_t) noexcept nogil


cdef extern from "engine/coding.h" namespace "compcoll::engine" nogil:
    uint64_t HEADER_NBYTES, SLACK

    cdef cppclass CHeader "compcoll::engine::Header":
        uint64_t codec
        uint32_t dtype, ndim
        uint64_t shape[3]
        uint64_t params[2]
        uint64_t payload_nbytes
        double bound
        uint32_t checksum
        cbool has_checksum, fallback
        uint64_t size() const
        uint64_t nbytes() const
    cdef enum class Damage:
        NONE
        SHORT
    uint64_t packed_name(const char*)
    void pack(const Level&, CHeader*, uint8_t*)
    void outline(const CHeader&, uint8_t*)
    Damage unpack(const Level&, const uint8_t*, uint64_t, CHeader*)

    cdef cppclass CGpu "compcoll::engine::Gpu":
        int number
        void add_kernel(const string&, void*)
    cdef cppclass CDeviceFault "compcoll::engine::DeviceFault":
        string text()
    cdef enum class Problem:
        NONE
        HEADER
        CHECKSUM
        PAYLOAD
        MISMATCH
        POISONED
        MPI
        CALLBACK
        MEMORY
        BASE
        DEVICE
        MESSAGES
    cdef cppclass Error:
        Problem problem
        int64_t status
        uint64_t expected
        uint32_t expected_dtype
        CHeader header
        uint8_t bytes[80]
        uint64_t available
        CDeviceFault fault
    cdef cppclass CFrame "compcoll::engine::Frame":
        uint8_t* memory
        uint64_t nbytes
        CHeader header
        cbool settled
        CGpu* gpu
    cdef cppclass Callbacks:
        void* context
        int64_t (*encode)(void*, uint64_t, CHeader*, const void*, void*) noexcept nogil
        int64_t (*decode)(void*, const CFrame&, void*) noexcept nogil
    cdef cppclass CAttempt "compcoll::engine::Attempt":
        int32_t codec
        uint64_t params[3][2]
    int32_t CODEC_CALLBACK "compcoll::engine::Attempt::CALLBACK"
    cdef cppclass CPace "compcoll::engine::Pace":
        pass
    cdef cppclass CCoding "compcoll::engine::Coding":
        const Level* const* level
        uint32_t dtype
        cbool lossless, parts, plain
        vector[CAttempt] attempts
        Callbacks callbacks
        CPace* pace
    cdef cppclass CReference "compcoll::engine::Reference":
        const uint8_t* data
        uint64_t nbytes, name
    cdef cppclass Span:
        uint8_t* data
        uint64_t n
        uint32_t dtype
    uint32_t wide(uint32_t)
    cdef cppclass CPool "compcoll::engine::Pool":
        CPool(uint64_t) except +
    cdef cppclass Coder:
        Coder(const CCoding&, CPool&)
        int32_t index_of(uint64_t)
        Error encode(const uint8_t*, double, uint8_t*, CFrame*, const CReference&) except +
        Error decode(const CFrame&, Span, cbool, const CReference&) except +


cdef class CodecCall:
    cdef object read, written, failure


cdef class Coding:
    cdef CCoding own
    cdef CPace pace
    cdef object decoder, guard
    cdef dict calls
    cdef bint calls_back
    cdef readonly tuple codecs
    cdef readonly object failed
    cdef object enter(self, CodecCall call)
    cdef object leave(self, CodecCall outer)
    cdef object encode_to(self, array, out, CFrame* frame, double carried, uint8_t* values, CReference base)


cdef object exception_of(const Error* error)


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
        void count_users() except +


cdef class Compiled:
    cdef shared_ptr[CSchedule] own


cdef extern from "layer/trial_window.h" namespace "compcoll::layer" nogil:
    cdef cppclass Calls "std::atomic<int64_t>":
        int64_t load()
    cdef cppclass CTrialWindow "compcoll::layer::TrialWindow":
        CTrialWindow(int64_t, int64_t) except +
        Calls calls
        int64_t most, skip
        double since, seconds
        uint64_t raw_nbytes, wire_nbytes


cdef class TrialWindow:
    cdef shared_ptr[CTrialWindow] own

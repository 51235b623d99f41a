"""Declarations of what codecs and the engine need of GPUs (csrc/engine) for Cython."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef extern from "engine/alone.h" namespace "compcoll::engine" nogil:
    cdef cppclass CDeviceFault "compcoll::engine::DeviceFault":
        string text()
    cdef cppclass CHeader "compcoll::engine::Header":
        uint64_t codec
        uint32_t dtype, checksum
        uint64_t payload_nbytes
        uint64_t size() const
    cdef enum CProblem "compcoll::engine::Problem":
        pass
    cdef cppclass Error:
        CProblem problem
        int64_t status
        uint64_t expected
        uint32_t expected_dtype
        CHeader header
        uint8_t bytes[80]
        uint64_t available
        CDeviceFault fault
    cdef cppclass Callbacks:
        void* context
        int64_t (*encode)(void*, uint32_t, const void*, uint32_t, const uint64_t*, double,
                          void*) noexcept nogil
        int64_t (*decode)(void*, const void*, uint64_t, uint32_t, uint64_t, void*, int32_t) noexcept nogil
    cdef cppclass CAttempt "compcoll::engine::Attempt":
        int32_t codec
        uint64_t params[3][2]
    cdef cppclass CCoding "compcoll::engine::Coding":
        uint32_t dtype
        cbool lossless
        vector[CAttempt] attempts
        Callbacks callbacks

    cdef cppclass CGpu "compcoll::engine::Gpu":
        int number
        void add_kernel(const string&, void*)
    cdef cppclass CMarks "compcoll::engine::Marks":
        CMarks() except +
        cbool record(CGpu*, CDeviceFault*)
    CGpu* gpu_by_number "compcoll::engine::Gpu::of"(int)
    int c_gpu_of "compcoll::engine::gpu_of"(const void*)
    void c_set_find_stream "compcoll::engine::set_find_stream"(void (*)(int, vector[void*]*) noexcept nogil)
    cdef cppclass CFrame "compcoll::engine::Frame":
        uint8_t* memory
        uint64_t nbytes
        CGpu* gpu
        CHeader header
    cdef cppclass CAlone "compcoll::engine::Alone":
        CAlone(const CCoding&, int, const vector[void*]&) except +
        void encode(void*, uint32_t, const vector[uint64_t]&, double, cbool) except +
        void open(void*, uint64_t, int) except +
        void decode(void*, uint32_t, uint64_t, int, cbool) except +
        void copy(void*, int, void*, int, uint64_t) except +
        cbool step() except +
        const Error& error()
        const CFrame& frame()
    cdef cppclass KernelName "compcoll::engine::KernelName":
        string module, name
        uint32_t per_block, threads
        cbool by_nbytes
    vector[KernelName] c_encoders "compcoll::engine::encoders"(
        const string&, uint32_t, const uint64_t*, uint32_t)
    vector[KernelName] c_decoders "compcoll::engine::decoders"(
        const string&, uint32_t, const uint64_t*, cbool, uint32_t)
    vector[KernelName] c_adders "compcoll::engine::adders"(const string&, uint32_t)
    vector[KernelName] c_converters "compcoll::engine::converters"(uint32_t, uint32_t)
    vector[KernelName] c_largest "compcoll::engine::largest_kernel"(uint32_t)

cdef extern from * nogil:
    """
    static inline bool has_driver_() { return compcoll::engine::driver() != nullptr; }
    static inline void use_level(compcoll::engine::Coding& coding, size_t address) {
      coding.level = reinterpret_cast<const compcoll::Level* const*>(address);
    }
    """
    cbool has_driver_()
    void use_level(CCoding&, size_t)

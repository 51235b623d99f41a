"""Declarations of the engine's GPU code (csrc/engine) for Cython."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from compcoll.core._cpu cimport CCoding, CFrame, CGpu, Error

cdef extern from "engine/alone.h" namespace "compcoll::engine" nogil:
    CGpu* gpu_by_number "compcoll::engine::Gpu::of"(int)
    int c_gpu_of "compcoll::engine::gpu_of"(const void*)
    void c_set_find_stream "compcoll::engine::set_find_stream"(void (*)(int, vector[void*]*) noexcept nogil)
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
    int64_t c_payload_nbytes "compcoll::engine::payload_nbytes"(
        const string&, uint32_t, uint64_t, const uint64_t*)

cdef extern from * nogil:
    """
    static inline bool has_driver_() { return compcoll::engine::driver() != nullptr; }
    """
    cbool has_driver_()

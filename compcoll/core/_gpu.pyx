# cython: language_level=3
# distutils: language = c++
"""Bindings of the engine's GPU code (csrc/engine): kernels, and single operations on GPU memory.

GPUs are given by number (`NO_GPU` is the host), and memory by address.
"""

import threading

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from compcoll.core._cpu cimport CFrame, CGpu, Coding, Error, exception_of, Problem
from compcoll.core._gpu cimport (
    c_adders, c_converters, c_decoders, c_encoders, c_gpu_of, c_largest, c_payload_nbytes,
    c_set_find_stream, CAlone, gpu_by_number, has_driver_, KernelName,
)

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    int Py_AddPendingCall(int (*)(void*) except -1, void*)

NO_GPU = -1


def has_driver() -> bool:
    """True if NVIDIA's driver is installed; does not initialize it."""
    return has_driver_()


def gpu_of(uint64_t address) -> int:
    """Number of the GPU that memory lies on, or `NO_GPU`."""
    cdef int found
    with nogil:
        found = c_gpu_of(<void*><uintptr_t>address)
    return found


def add_kernels(int gpu, dict functions):
    """Give the engine a GPU's kernels: CUDA's handles by name."""
    cdef CGpu* own
    with nogil:
        own = gpu_by_number(gpu)
    for name, function in functions.items():
        own.add_kernel(name.encode(), <void*><uintptr_t>function)


_find_stream = None
# Exceptions of signal handlers, which Python raises in the main thread when the call has returned.
cdef list postponed = []


cdef int raise_postponed(void* nothing) except -1:
    raise postponed.pop(0)


cdef void find_stream(int gpu, vector[void*]* streams) noexcept with gil:
    cdef list problems = []
    while len(problems) < 3:  # what a signal's handler raises does not come again
        try:
            stream = _find_stream(gpu)
        except BaseException as problem:
            problems.append(problem)
            continue
        if stream is not None:
            streams.push_back(<void*><uintptr_t>stream)
        break
    else:  # the library is being imported, or is shutting down
        problems = [problem for problem in problems if not isinstance(problem, Exception)]
    if problems and threading.current_thread() is threading.main_thread():
        postponed.append(problems[0])
        Py_AddPendingCall(raise_postponed, NULL)


def set_find_stream(find):
    """Set the function that finds the current stream of a library that tells it in Python alone.

    Parameters
    ----------
    find : callable or None
        ``find(gpu)`` returns CUDA's handle, or None.
    """
    global _find_stream
    _find_stream = find
    if find is None:
        c_set_find_stream(NULL)
    else:
        c_set_find_stream(find_stream)


cdef list listed(const vector[KernelName]& names):
    cdef size_t i
    return [
        (names[i].module.decode(), names[i].name.decode(), names[i].per_block, names[i].threads)
        for i in range(names.size())
    ]


def encoders(str codec, uint32_t dtype, tuple params, uint32_t ndim=1) -> list:
    """Kernels that make a frame, in order: (file of csrc/cuda, name, values per block, threads per block)."""
    cdef uint64_t[2] words = params
    return listed(c_encoders(codec.encode(), dtype, words, ndim))


def decoders(str codec, uint32_t dtype, tuple params, bint adding, uint32_t ndim=1) -> list:
    """The kernels that decode, or decode and add."""
    cdef uint64_t[2] words = params
    return listed(c_decoders(codec.encode(), dtype, words, adding, ndim))


def adders(str codec, uint32_t dtype) -> list:
    """The kernels that add two frames."""
    return listed(c_adders(codec.encode(), dtype))


def converters(uint32_t dtype, uint32_t into) -> list:
    """The kernel that converts between a 16-bit float and float32, in either direction."""
    return listed(c_converters(dtype, into))


def largest(uint32_t dtype) -> list:
    """The kernel that finds the largest magnitude."""
    return listed(c_largest(dtype))


def payload_nbytes(str codec, uint32_t dtype, uint64_t n, tuple params) -> int:
    """Payload bytes of ``n`` values in a row; -1 if they depend on more than ``n``."""
    cdef uint64_t[2] words = params
    return c_payload_nbytes(codec.encode(), dtype, n, words)


cdef class Operation:
    """One operation, ordered after the work that the caller has started on a GPU.

    Parameters
    ----------
    gpu : int
    coding : Coding, optional
        Codecs for arrays to encode.
    streams : sequence of int
        Streams besides the caller's current ones.
    """

    cdef unique_ptr[CAlone] own

    def __init__(self, int gpu, Coding coding=None, streams=()):
        cdef vector[void*] more
        for stream in streams:
            more.push_back(<void*><uintptr_t>stream)
        coding = coding or Coding()
        with nogil:
            self.own.reset(new CAlone(coding.own, gpu, more))
        self.check()

    def encode(self, uint64_t address, uint32_t dtype, shape, double carried, bint checksum):
        """Encode an array on the GPU; the operation owns the frame."""
        cdef vector[uint64_t] dims = shape
        with nogil:
            self.own.get().encode(<void*><uintptr_t>address, dtype, dims, carried, checksum)
        self.wait()

    def open(self, uint64_t address, uint64_t nbytes, int gpu):
        """Read the header of a frame."""
        with nogil:
            self.own.get().open(<void*><uintptr_t>address, nbytes, gpu)
        self.wait()

    def decode(self, uint64_t address, uint32_t dtype, uint64_t n, int gpu, bint adding):
        """Decode the opened frame, or add its values."""
        with nogil:
            self.own.get().decode(<void*><uintptr_t>address, dtype, n, gpu, adding)
        self.wait()

    def copy(self, uint64_t to, int to_gpu, uint64_t source, int source_gpu, uint64_t nbytes):
        """Copy bytes."""
        with nogil:
            self.own.get().copy(
                <void*><uintptr_t>to, to_gpu, <void*><uintptr_t>source, source_gpu, nbytes
            )
        self.wait()

    @property
    def frame(self):
        """Address and size in bytes of the encoded frame, and True if it lies on the GPU."""
        cdef const CFrame* frame = &self.own.get().frame()
        return <uintptr_t>frame.memory, frame.nbytes, frame.gpu != NULL

    cdef wait(self):
        cdef bint ended = False
        cdef int _
        while not ended:
            with nogil:
                for _ in range(1000):
                    ended = self.own.get().step()
                    if ended:
                        break
                    sched_yield()
            if not ended:
                PyErr_CheckSignals()
        self.check()

    cdef check(self):
        cdef const Error* error = &self.own.get().error()
        if error.problem == Problem.MEMORY:
            raise MemoryError("no memory is left on the GPU")
        if error.problem != Problem.NONE:
            raise exception_of(error)

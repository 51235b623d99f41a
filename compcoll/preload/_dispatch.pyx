# cython: language_level=3
"""Calls of a program, described to mpi4py: its memory as arrays, its handles as objects.

The preloaded library looks `compcoll_preload_connect` up and is given the functions below, which it calls
without holding the interpreter's lock.
"""

from libc.stdint cimport int64_t, uint64_t

import os

import numpy as np
from mpi4py import MPI

cimport numpy as cnp
from cpython.ref cimport Py_DECREF, Py_INCREF

from compcoll.core import dtypes
from compcoll.mpi.datatypes import entry_of, predefined_type

cdef extern from "preload/call.h" namespace "compcoll::preload" nogil:
    ctypedef uint64_t Word
    enum Name:
        Alltoall, Alltoallv, Bcast, Allreduce, Allgather, Allgatherv, Reduce, Reduce_scatter
        Reduce_scatter_block, Gather, Gatherv, Scatter, Scatterv, n_names
    struct CComm "compcoll::preload::Comm":
        void* object
        uint64_t min_nbytes
        bint pairs_alone
        int rank, size
    struct CCall "compcoll::preload::Call":
        int name, nonblocking
        const CComm* comm
        Word sendbuf, recvbuf
        int64_t sendcount, recvcount
        const int* sendcounts
        const int* senddispls
        const int* recvcounts
        const int* recvdispls
        Word sendtype, recvtype
        int root
        Word request
        const void* caller
    int declined
    struct Dispatch:
        int (*attach)(Word, CComm*) noexcept
        void (*release)(Word, CComm*) noexcept
        int (*run)(CCall*) noexcept
        uint64_t min_nbytes
        Word sum

cdef extern from "<dlfcn.h>" nogil:
    ctypedef struct Dl_info:
        const char* dli_fname
        const char* dli_sname
    int dladdr(const void*, Dl_info*)
    void* dlsym(void*, const char*)
    void* RTLD_DEFAULT

cnp.import_array()

ctypedef void (*Connect)(const Dispatch*) noexcept

#: In the order of `Name`.
cdef tuple METHODS = (
    "Alltoall", "Alltoallv", "Bcast", "Allreduce", "Allgather", "Allgatherv", "Reduce", "Reduce_scatter",
    "Reduce_scatter_block", "Gather", "Gatherv", "Scatter", "Scatterv",
)
cdef tuple NONBLOCKING = tuple("I" + name.lower() for name in METHODS)
cdef object SUM = MPI.SUM
cdef object IN_PLACE = MPI.IN_PLACE
cdef object BOTTOM = MPI.BOTTOM
#: MPI_IN_PLACE as C has it.
cdef Word in_place = <Word><int64_t>int(MPI.IN_PLACE)
cdef object attach_comm, release_comm, report_problem, call_from
cdef bint traced = False
cdef Dispatch functions


def connect(attach, release, report, from_, uint64_t min_nbytes, bint trace):
    """Give the preloaded library what it calls; nothing happens where there is none."""
    global attach_comm, release_comm, report_problem, call_from, traced
    cdef void* found = dlsym(RTLD_DEFAULT, b"compcoll_preload_connect")
    attach_comm, release_comm, report_problem, call_from = attach, release, report, from_
    traced = trace
    functions.attach, functions.release, functions.run = attach_c, release_c, run_c
    functions.min_nbytes, functions.sum = min_nbytes, MPI.SUM.handle
    if found is not NULL:
        (<Connect>found)(&functions)


cdef int attach_c(Word handle, CComm* comm) noexcept with gil:
    try:
        made = attach_comm(handle)
        comm.min_nbytes, comm.pairs_alone = made._min_nbytes, made._gate.paired
        Py_INCREF(made)
        comm.object = <void*>made
        return 0
    except BaseException as problem:
        return report_problem(problem, handle)


cdef void release_c(Word handle, CComm* comm) noexcept with gil:
    try:
        release_comm(handle)
    except BaseException as problem:
        report_problem(problem, handle)
    Py_DECREF(<object>comm.object)


cdef int run_c(CCall* call) noexcept with gil:
    try:
        return run(call)
    except BaseException as problem:
        return report_problem(problem, (<object>call.comm.object).handle)


cdef int run(CCall* call) except? -2:
    cdef object comm = <object>call.comm.object
    if call.name in (Allreduce, Reduce, Reduce_scatter, Reduce_scatter_block):
        if not known_type(call.recvtype).summable:
            return declined
    args = arguments(call)
    if not call.nonblocking:
        perform(getattr(comm, METHODS[call.name]), args, call.caller)
        return 0
    request = perform(comm.begin, (NONBLOCKING[call.name], args), call.caller)
    if request is None:
        return declined
    call.request = request.handle
    return 0


cdef perform(method, tuple args, const void* caller):
    """Call a method; a trace shall see the symbol that the program called from."""
    cdef Dl_info info
    if not traced:
        return method(*args)
    path, symbol = "program", "program"
    if dladdr(caller, &info):
        path = os.fsdecode(info.dli_fname)
        symbol = os.fsdecode(info.dli_sname) if info.dli_sname is not NULL else os.path.basename(path)
    return call_from(path, symbol)(method, args)


cdef tuple arguments(CCall* call):
    """mpi4py's arguments."""
    cdef int name = call.name, size = call.comm.size
    cdef bint at_root = call.root == call.comm.rank
    if name == Bcast:
        return uniform(call.recvbuf, call.recvcount, call.recvtype, 1), call.root
    if name == Allreduce or name == Reduce:
        send = uniform(call.sendbuf, call.sendcount, call.sendtype, 1)
        if name == Allreduce:
            return send, uniform(call.recvbuf, call.recvcount, call.recvtype, 1), SUM
        recv = uniform(call.recvbuf, call.recvcount, call.recvtype, 1) if at_root else None
        return send, recv, SUM, call.root
    if name == Reduce_scatter:
        counts = listed(call.recvcounts, size)
        total = sum(counts)
        send = uniform(call.sendbuf, total, call.recvtype, 1)
        own = total if send is IN_PLACE else counts[call.comm.rank]
        return send, uniform(call.recvbuf, own, call.recvtype, 1), counts, SUM
    if name == Reduce_scatter_block:
        send = uniform(call.sendbuf, call.sendcount, call.sendtype, size)
        blocks = size if send is IN_PLACE else 1
        return send, uniform(call.recvbuf, call.recvcount, call.recvtype, blocks), SUM
    if name == Alltoall or name == Allgather:
        return (uniform(call.sendbuf, call.sendcount, call.sendtype, size if name == Alltoall else 1),
                uniform(call.recvbuf, call.recvcount, call.recvtype, size))
    if name == Allgatherv:
        return (uniform(call.sendbuf, call.sendcount, call.sendtype, 1), receives(call, size))
    if name == Alltoallv:
        return sends(call, size), receives(call, size)
    if name == Gather or name == Gatherv:
        send = uniform(call.sendbuf, call.sendcount, call.sendtype, 1)
        if not at_root:
            return send, None, call.root
        if name == Gatherv:
            return send, receives(call, size), call.root
        return send, uniform(call.recvbuf, call.recvcount, call.recvtype, size), call.root
    recv = uniform(call.recvbuf, call.recvcount, call.recvtype, 1)
    if not at_root:
        return None, recv, call.root
    if name == Scatterv:
        return sends(call, size), recv, call.root
    return uniform(call.sendbuf, call.sendcount, call.sendtype, size), recv, call.root


cdef inline object sends(CCall* call, int size):
    return vector(call.sendbuf, call.sendcounts, call.senddispls, call.sendtype, size)


cdef inline object receives(CCall* call, int size):
    return vector(call.recvbuf, call.recvcounts, call.recvdispls, call.recvtype, size)


cdef class Type:
    """A datatype: the type of NumPy's elements, or an object of mpi4py's for one that has none."""

    cdef readonly object datatype, dtype
    cdef readonly int number
    cdef readonly Py_ssize_t extent
    cdef readonly bint summable

    def __init__(self, datatype):
        self.datatype, self.dtype, self.number = datatype, None, -1
        found = predefined_type(datatype) if datatype.is_predefined else None
        if found in dtypes.CODES and found.isbuiltin == 1:
            self.dtype, self.number, self.extent = found, found.num, found.itemsize
            self.summable = datatype not in NOT_NUMBERS
        else:
            self.extent = entry_of(datatype).extent


cdef tuple NOT_NUMBERS = (
    MPI.BYTE, MPI.CHAR, MPI.PACKED, MPI.LOGICAL, MPI.CHARACTER, MPI.WCHAR, MPI.C_BOOL, MPI.CXX_BOOL,
    MPI.TWOINT,
)
#: By their handles, which others never have.
cdef dict predefined = {}


cdef Type known_type(Word handle):
    found = predefined.get(handle)
    if found is None:
        datatype = MPI.Datatype.fromhandle(handle)
        found = Type(datatype)
        if datatype.is_predefined:
            predefined[handle] = found
    return <Type>found


cdef object memory(Word address, Py_ssize_t n, Type of):
    """An array over memory of the program: ``n`` elements, or bytes of a type that NumPy has not."""
    cdef cnp.npy_intp length = n
    cdef int number = of.number if of.number >= 0 else <int>cnp.NPY_UINT8
    if n <= 0 or address == 0:
        return np.empty(0, of.dtype or np.uint8)
    return cnp.PyArray_SimpleNewFromData(1, &length, number, <void*>address)


cdef object uniform(Word address, int64_t count, Word handle, int blocks):
    """A buffer argument of as many entries for each block."""
    if address == in_place:
        return IN_PLACE
    cdef Type of = known_type(handle)
    if of.number >= 0:
        return memory(address, count * blocks, of)
    if count <= 0:
        return [np.empty(0, np.uint8), 0, of.datatype]
    if address == 0:
        return [BOTTOM, count, of.datatype]
    return [memory(address, span(of, count * blocks), of), count, of.datatype]


cdef object vector(Word address, const int* counts, const int* displs, Word handle, int size):
    """A buffer argument with a count and a displacement for each rank, which may be negative."""
    if address == in_place:
        return IN_PLACE
    cdef Type of = known_type(handle)
    cdef int64_t first = 0, last = 0
    cdef bint some = False
    cdef int i
    for i in range(size):
        if counts[i] > 0:
            first = displs[i] if not some else min(first, <int64_t>displs[i])
            last = <int64_t>displs[i] + counts[i] if not some else max(last, <int64_t>displs[i] + counts[i])
            some = True
    given = listed(counts, size)
    if not some:
        return [np.empty(0, np.uint8), (given, [0] * size), of.datatype]
    if address == 0:
        return [BOTTOM, (given, listed(displs, size)), of.datatype]
    shifted = [displs[i] - first if counts[i] > 0 else 0 for i in range(size)]
    n = last - first if of.number >= 0 else span(of, last - first)
    return [memory(address + first * of.extent, n, of), (given, shifted), of.datatype]


cdef Py_ssize_t span(Type of, int64_t n) except -1:
    """Bytes that so many entries of a derived type stretch over."""
    entry = entry_of(of.datatype)
    if entry.lower < 0 or entry.extent < 0:
        raise NotImplementedError(
            f"{of.datatype.Get_name() or 'a derived datatype'} begins {-entry.lower} bytes before its "
            "buffer; COMPCOLL_DISABLE=1 leaves all calls to MPI"
        )
    return (n - 1) * entry.extent + entry.lower + entry.length


cdef list listed(const int* values, int n):
    return [values[i] for i in range(n)]

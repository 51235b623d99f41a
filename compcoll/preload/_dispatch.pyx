# cython: language_level=3
"""Calls of a program, described to mpi4py: its memory as arrays, its handles as objects.

The preloaded library looks `compcoll_preload_connect` up and is given the functions below, which it calls
without holding the interpreter's lock.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool

import os

import numpy as np
from mpi4py import MPI

cimport numpy as cnp
from cpython.ref cimport Py_DECREF, Py_INCREF

from compcoll.core import dtypes
from compcoll.engine._engine import offset_of_error
from compcoll.mpi.datatypes import entry_of, predefined_type
from compcoll.mpi.p2p.probe import understands
from compcoll.mpi.requests import Prequest, take_handle
from compcoll.operations import OPERATIONS
from compcoll.preload.matched import matched_message, take_matched

cdef extern from "preload/call.h" namespace "compcoll::preload" nogil:
    ctypedef uint64_t Word
    struct Positions:
        int buf
    struct Operation:
        const char* name
        bint send_many, recv_many, listed
        Positions send
        int root, reduction
    const Operation operations[]
    struct MessageKinds:
        const char* name
        const char* kinds
    const MessageKinds messages[]
    int n_names, n_message_names
    enum Form:
        blocking, nonblocking, persistent
    struct CComm "compcoll::preload::Comm":
        void* object
        uint64_t min_nbytes
        bint pairs_alone, messages
        int rank, size
    struct Side:
        Word buf
        int64_t count
        const void* counts
        const void* displs
        Word type
        char kind
    struct CCall "compcoll::preload::Call":
        int name, form
        bint wide
        const CComm* comm
        Side send, recv
        int root
        Word request
        void* prepared
        const void* caller
    struct CMessage "compcoll::preload::Message":
        int name
        const CComm* comm
        Word sendbuf, sendtype, recvbuf, recvtype
        int64_t sendcount, recvcount
        int dest, sendtag, source, recvtag
        void* status
        Word request, message
        int flag
        void* prepared
        const void* caller
    int declined
    struct Dispatch:
        int (*attach)(Word, CComm*, const CComm*, cbool) noexcept
        void (*release)(Word, CComm*) noexcept
        int (*run)(CCall*) noexcept
        int (*transfer)(CMessage*) noexcept
        int (*start)(void*, Word*) noexcept
        void (*free)(void*, cbool) noexcept
        uint64_t min_nbytes
        Word sum, byte

cdef extern from "<dlfcn.h>" nogil:
    ctypedef struct Dl_info:
        const char* dli_fname
        const char* dli_sname
    int dladdr(const void*, Dl_info*)
    void* dlsym(void*, const char*)
    void* RTLD_DEFAULT

cnp.import_array()

ctypedef void (*Connect)(const Dispatch*) noexcept
ctypedef int (*AttachWorld)() noexcept nogil

#: The methods of an operation, in the order of `Form`.
cdef list METHODS = [OPERATIONS[operations[i].name.decode()].forms for i in range(n_names)]
cdef list MESSAGES = [(messages[i].name.decode(), messages[i].kinds.decode()) for i in range(n_message_names)]
#: The methods of matched messages.
cdef dict OF_MATCHED = {"Mrecv": "Recv", "Imrecv": "Irecv"}
cdef object SUM = MPI.SUM
cdef object IN_PLACE = MPI.IN_PLACE
cdef object BOTTOM = MPI.BOTTOM
#: MPI_IN_PLACE as C has it.
cdef Word in_place = <Word><int64_t>int(MPI.IN_PLACE)
cdef object attach_comm, release_comm, report_problem, call_from
cdef bint traced = False
cdef int status_error_offset = offset_of_error()
cdef Dispatch functions


def connect(attach, release, report, from_, uint64_t min_nbytes, bint trace):
    """Give the preloaded library what it calls; nothing happens where there is none."""
    global attach_comm, release_comm, report_problem, call_from, traced
    cdef void* found = dlsym(RTLD_DEFAULT, b"compcoll_preload_connect")
    attach_comm, release_comm, report_problem, call_from = attach, release, report, from_
    traced = trace
    functions.attach, functions.release, functions.run = attach_c, release_c, run_c
    functions.transfer, functions.start, functions.free = transfer_c, start_c, free_c
    functions.min_nbytes, functions.sum = min_nbytes, MPI.SUM.handle
    functions.byte = MPI.BYTE.handle
    if found is not NULL:
        (<Connect>found)(&functions)


def attach_world():
    """Have calls of a Python program's extension modules taken, on communicators made later, too; collective.

    Raises
    ------
    OSError
        Where the library is not preloaded.
    """
    cdef void* found = dlsym(RTLD_DEFAULT, b"compcoll_preload_attach_world")
    cdef int error
    if found is NULL:
        raise OSError("the library that `compcoll preload` names is not preloaded")
    with nogil:
        error = (<AttachWorld>found)()
    if error:
        raise MPI.Exception(error)


cdef int attach_c(Word handle, CComm* comm, const CComm* parent, cbool same_ranks) noexcept with gil:
    try:
        made = attach_comm(handle, None if parent is NULL else <object>parent.object, same_ranks)
        comm.min_nbytes, comm.pairs_alone = made._state.min_nbytes, made._state.paired
        comm.messages = comm.messages and understands(made._state)
        Py_INCREF(made)
        comm.object = <void*>made
        return 0
    except BaseException as problem:
        return report_problem(problem, handle)


cdef void release_c(Word handle, CComm* comm) noexcept with gil:
    try:
        release_comm(<object>comm.object)
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
    if operations[call.name].reduction >= 0 and not known_type(call.recv.type).summable:
        return declined
    method, args = METHODS[call.name][call.form], arguments(call)
    if call.form == nonblocking:
        request = perform(comm.begin, (method, args), call.caller)
        if request is None:
            return declined
        call.request = request.handle
        return 0
    result = perform(getattr(comm, method), args, call.caller)
    if call.form == persistent:
        call.prepared = keep(result, &call.request)
    return 0


# -- persistent calls

cdef void* keep(prepared, Word* handle) except NULL:
    """Keep a prepared call for the program, and give its handle where MPI will carry it out."""
    handle[0] = 0 if type(prepared) is Prequest else prepared.handle
    Py_INCREF(prepared)
    return <void*>prepared


cdef int start_c(void* prepared, Word* request) noexcept with gil:
    call = <object>prepared
    try:
        take_handle(call, MPI.REQUEST_NULL)  # the program has waited for the last one
        call.Start()
        request[0] = call.handle
        return 0
    except BaseException as problem:
        return report_problem(problem, MPI.COMM_WORLD.handle)


cdef void free_c(void* prepared, cbool is_active) noexcept with gil:
    call = <object>prepared
    try:
        if type(call) is Prequest:
            if not is_active:
                take_handle(call, MPI.REQUEST_NULL)
            call.Free()
    except BaseException as problem:
        report_problem(problem, MPI.COMM_WORLD.handle)
    Py_DECREF(call)


# -- messages

cdef int transfer_c(CMessage* message) noexcept with gil:
    cdef Word handle = MPI.COMM_WORLD.handle if message.comm is NULL else (<object>message.comm.object).handle
    try:
        return transfer(message)
    except BaseException as problem:
        return report_problem(problem, handle)


cdef int transfer(CMessage* m) except? -2:
    cdef str name, kinds
    cdef list args = [], temporary = []
    name, kinds = MESSAGES[m.name]
    of = None if m.comm is NULL else <object>m.comm.object
    status = MPI.Status()
    if name in ("Mprobe", "Improbe"):
        memcpy(<void*><uintptr_t>MPI._addressof(status), m.status, MPI._sizeof(status))
        method, args = matched_message, [of, m.message, status]
    else:
        if name in OF_MATCHED:
            of = take_matched(m.message)
            if of is None:
                return declined
            m.message = MPI.MESSAGE_NULL.handle
        method = getattr(of, OF_MATCHED.get(name, name))
        plain = {"d": m.dest, "g": m.sendtag, "S": m.source, "G": m.recvtag, "s": status}
        for kind in kinds:
            if kind == "b":
                args.append(block(m.sendbuf, m.sendcount, m.sendtype, temporary))
            elif kind == "B":
                args.append(block(m.recvbuf, m.recvcount, m.recvtype, temporary))
            elif kind in plain:
                args.append(plain[kind])
    try:
        result = perform(method, tuple(args), m.caller)
    finally:
        give_status(m, status)
    for datatype in temporary:
        datatype.Free()
    if name.endswith("_init"):
        m.prepared = keep(result, &m.request)
    elif "q" in kinds:
        m.request = result.handle
    elif name in ("Mprobe", "Improbe"):
        m.message, m.flag = narrow(result), 1
    elif name in ("Probe", "Iprobe"):
        m.flag = result
    return 0


cdef object block(Word address, int64_t count, Word handle, list temporary):
    """A buffer argument of a message; entries that begin before their address, by a temporary datatype."""
    cdef Type of = known_type(handle)
    if of.number >= 0 or count <= 0 or address == 0 or not of.backwards:
        return uniform(address, count, handle, 1)
    temporary.append(of.datatype.Create_hindexed([count], [address]).Commit())
    return [BOTTOM, 1, temporary[-1]]


cdef give_status(CMessage* m, status):
    """Copy a status to where the program wants it, if it tells of a message.

    Calls with a single status leave its MPI_ERROR alone.
    """
    if m.status is NULL or status.source == MPI.ANY_SOURCE:
        return
    status.error = (<int*>(<char*>m.status + status_error_offset))[0]
    memcpy(m.status, <void*><uintptr_t>MPI._addressof(status), MPI._sizeof(status))


cdef Word narrow(handle):
    """A handle of mpi4py's, which extends the sign of a short one."""
    cdef Word word = handle
    return word & 0xffffffff if MPI._sizeof(MPI.MESSAGE_NULL) == 4 else word


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
    cdef const Operation* op = &operations[call.name]
    cdef int size = call.comm.size
    cdef int sends = size if op.send_many else 1, receives = size if op.recv_many else 1
    cdef bint elsewhere = op.root >= 0 and call.root != call.comm.rank
    more = () if op.root < 0 else (call.root,)
    if op.reduction >= 0:
        more = SUM, *more
        if call.send.buf == in_place:
            receives = sends
        if op.listed:
            counts = listed(call.recv.counts, size, call.wide)
            more = counts, *more
            call.send.count = sum(counts)
            call.recv.count = call.send.count if call.send.buf == in_place else counts[call.comm.rank]
    if op.send.buf < 0:
        return buffer_of(&call.recv, receives, size, call.wide), *more
    send = None if elsewhere and op.send_many else buffer_of(&call.send, sends, size, call.wide)
    recv = None if elsewhere and not op.send_many else buffer_of(&call.recv, receives, size, call.wide)
    return send, recv, *more


cdef object buffer_of(const Side* side, int blocks, int size, bint wide):
    """A buffer argument."""
    if side.kind == b"v":
        return vector(side.buf, side.counts, side.displs, side.type, size, wide)
    if side.kind == b"w":
        return typed(side.buf, side.counts, side.displs, side.type, size, wide)
    return uniform(side.buf, side.count, side.type, blocks)


cdef class Type:
    """A datatype: the type of NumPy's elements, or an object of mpi4py's for one that has none."""

    cdef readonly object datatype, dtype
    cdef readonly int number
    cdef readonly Py_ssize_t extent
    cdef readonly bint summable, backwards

    def __init__(self, datatype):
        self.datatype, self.dtype, self.number = datatype, None, -1
        found = predefined_type(datatype) if datatype.is_predefined else None
        if found in dtypes.CODES and found.isbuiltin == 1:
            self.dtype, self.number, self.extent = found, found.num, found.itemsize
            self.summable = datatype not in NOT_NUMBERS
        else:
            entry = entry_of(datatype)
            self.extent, self.backwards = entry.extent, entry.lower < 0 or entry.extent < 0


cdef tuple NOT_NUMBERS = (
    MPI.BYTE, MPI.CHAR, MPI.PACKED, MPI.LOGICAL, MPI.CHARACTER, MPI.WCHAR, MPI.C_BOOL, MPI.CXX_BOOL,
    MPI.TWOINT,
)
#: By their handles, which others never have.
cdef dict predefined = {}


cdef Type BYTES = Type(MPI.BYTE)


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


cdef object vector(Word address, const void* counts, const void* displs, Word handle, int size, bint wide):
    """A buffer argument with a count and a displacement for each rank, which may be negative."""
    if address == in_place:
        return IN_PLACE
    cdef Type of = known_type(handle)
    cdef list ns = listed(counts, size, wide), places = listed(displs, size, wide)
    some = [i for i in range(size) if ns[i] > 0]
    if not some:
        return [np.empty(0, np.uint8), (ns, [0] * size), of.datatype]
    if address == 0:
        return [BOTTOM, (ns, places), of.datatype]
    cdef int64_t first = min([places[i] for i in some]), last = max([places[i] + ns[i] for i in some])
    shifted = [places[i] - first if ns[i] > 0 else 0 for i in range(size)]
    n = last - first if of.number >= 0 else span(of, last - first)
    return [memory(address + first * of.extent, n, of), (ns, shifted), of.datatype]


cdef object typed(Word address, const void* counts, const void* displs, Word handles, int size, bint wide):
    """A buffer argument with a count, a displacement in bytes and a type for each rank."""
    if address == in_place:
        return IN_PLACE
    cdef list ns = listed(counts, size, wide), places = listed(displs, size, wide)
    some = [i for i in range(size) if ns[i] > 0]
    cdef list types = [known_type(handle_at(handles, i)) if ns[i] > 0 else BYTES for i in range(size)]
    datatypes = [one.datatype for one in types]
    if not some:
        return [np.empty(0, np.uint8), ns, [0] * size, datatypes]
    if address == 0:
        return [BOTTOM, ns, places, datatypes]
    cdef int64_t first = min([places[i] for i in some])
    cdef int64_t last = max([places[i] + span(types[i], ns[i]) for i in some])
    shifted = [places[i] - first if ns[i] > 0 else 0 for i in range(size)]
    return [memory(address + first, last - first, BYTES), ns, shifted, datatypes]


cdef Word handle_at(Word handles, int i) noexcept:
    """A handle in an array of C."""
    if MPI._sizeof(MPI.Datatype) == 4:
        return (<const uint32_t*>handles)[i]
    return (<const Word*>handles)[i]


cdef Py_ssize_t span(Type of, int64_t n) except -1:
    """Bytes that so many entries of a derived type stretch over."""
    entry = entry_of(of.datatype)
    if of.backwards:
        raise NotImplementedError(
            f"{of.datatype.Get_name() or 'a derived datatype'} begins {-entry.lower} bytes before its "
            "buffer; COMPCOLL_DISABLE=1 leaves all calls to MPI"
        )
    return (n - 1) * entry.extent + entry.lower + entry.length


cdef list listed(const void* values, int n, bint wide):
    if wide:
        return [(<const int64_t*>values)[i] for i in range(n)]
    return [(<const int32_t*>values)[i] for i in range(n)]

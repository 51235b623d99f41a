# Messages of programs in C and Fortran, which Python carries out: csrc/layer/messages.h,
# compcoll/preload/program.py.

cdef extern from "layer/messages.h" namespace "compcoll::layer" nogil:
    cdef struct MessageKinds "compcoll::layer::MessageKinds":
        const char* name
        const char* kinds
    const MessageKinds message_kinds "compcoll::layer::messages"[]
    int n_message_names
    cdef struct GivenMessage "compcoll::layer::Message":
        int name
        uint64_t comm
        Word sendbuf, sendtype, recvbuf, recvtype
        int64_t sendcount, recvcount
        int dest, sendtag, source, recvtag
        void* status
        Word request, message
        int flag
        void* prepared
    int declined
    cdef struct Messenger:
        int (*transfer)(GivenMessage*) noexcept
        int (*start)(void*, Word*) noexcept
        void (*free)(void*, cbool) noexcept
    void c_take_messages "compcoll::layer::take_messages"(const Messenger&)

cdef extern from "layer/interpreter.h" namespace "compcoll::layer" nogil:
    void c_set_begin "compcoll::layer::set_begin"(int (*)() noexcept)


cdef list MESSAGE_KINDS = [
    (message_kinds[i].name.decode(), message_kinds[i].kinds.decode()) for i in range(n_message_names)
]
_transfer = _begin_program = None
cdef uint32_t error_offset = offset_of_error()


def take_messages(transfer):
    """Have Python carry out what programs send, receive and probe for on marked communicators, from now on.

    Parameters
    ----------
    transfer : callable
        ``transfer(name, kinds, comm, arguments, status)`` gives the result of mpi4py's method of a message,
        None where MPI is to carry it out. ``comm`` is the communicator's number, ``arguments`` has a value
        for each letter of ``kinds`` that csrc/layer/message_table.h explains: (address, count, handle of the
        type) for a buffer, numbers for the others, and ``"m"`` for the handle of a matched message.
    """
    global _transfer
    cdef Messenger functions
    _transfer = transfer
    functions.transfer, functions.start, functions.free = transfer_c, start_c, free_c
    c_take_messages(functions)


def set_begin(begin):
    """Have a function called when MPI has begun in a program of C or Fortran."""
    global _begin_program
    _begin_program = begin
    c_set_begin(begin_c)


cdef int begin_c() noexcept with gil:
    try:
        _begin_program()
        return 0
    except BaseException as problem:
        return code_from(problem)


cdef int transfer_c(GivenMessage* m) noexcept with gil:
    try:
        return transfer(m)
    except BaseException as problem:
        return code_from(problem)


cdef int transfer(GivenMessage* m) except? -2:
    cdef str name, kinds
    name, kinds = MESSAGE_KINDS[m.name]
    status = MPI.Status()
    if name in ("Mprobe", "Improbe"):
        memcpy(<void*><uintptr_t>MPI._addressof(status), m.status, MPI._sizeof(status))
    try:
        result = _transfer(name, kinds, m.comm, {
            "b": (m.sendbuf, m.sendcount, m.sendtype), "d": m.dest, "g": m.sendtag,
            "B": (m.recvbuf, m.recvcount, m.recvtype), "S": m.source, "G": m.recvtag,
            "m": m.message, "s": status,
        }, status)
    finally:
        give_status(m, status)
    if result is None:
        return declined
    if isinstance(result, MPI.Prequest) and type(result) is not MPI.Prequest:
        Py_INCREF(result)
        m.prepared = <void*>result
    elif isinstance(result, MPI.Request):
        m.request = handle(result)
    elif isinstance(result, MPI.Message):
        m.message, m.flag = handle(result), True
    else:
        m.flag = result
    if name in ("Mrecv", "Imrecv"):
        m.message = handle(MPI.MESSAGE_NULL)
    return 0


cdef give_status(GivenMessage* m, status):
    """Copy a status to where the program wants it, if it tells of a message.

    Calls with a single status leave its MPI_ERROR alone.
    """
    cdef char* own = <char*><uintptr_t>MPI._addressof(status)
    if m.status == NULL or status.source == MPI.ANY_SOURCE:
        return
    memcpy(own + error_offset, <char*>m.status + error_offset, sizeof(int))
    memcpy(m.status, own, MPI._sizeof(status))


cdef int start_c(void* prepared, Word* request) noexcept with gil:
    call = <object>prepared
    try:
        forget_handle(call)  # the program has waited for the last one
        call.Start()
        request[0] = handle(call)
        return 0
    except BaseException as problem:
        return code_from(problem)


cdef void free_c(void* prepared, cbool is_active) noexcept with gil:
    call = <object>prepared
    try:
        if not is_active:
            forget_handle(call)
        call.Free()
    except BaseException:
        traceback.print_exc()
    Py_DECREF(call)


cdef forget_handle(request):
    cdef Word* at = <Word*><uintptr_t>MPI._addressof(request)
    null = MPI.Request()
    memcpy(at, <void*><uintptr_t>MPI._addressof(null), MPI._sizeof(null))

# The MPI library: its functions, constants and datatypes, as mpi4py has them.

#: Names of the operations that the layer serves, by number.
NAMES = [text_of(i).decode() for i in range(n_names)]
#: Methods of each operation in the three forms of calls; a message has one method.
METHODS = [OPERATIONS[name].forms if name in OPERATIONS else (name,) for name in NAMES]
BLOCKING, NONBLOCKING, PERSISTENT = range(3)
#: More bytes than any message has.
NEVER = c_never
#: Stands for a call of objects in `last_of`.
OBJECTS = -2


_hooked = False


def hook():
    """Route mpi4py's calls to the layer, once MPI is initialized.

    Raises
    ------
    ImportError
        If mpi4py's extension module has no slots for functions of MPI.
    """
    global _hooked
    if _hooked or not MPI.Is_initialized():
        return
    _hooked = True
    loaded = ctypes.CDLL(MPI.__file__, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    cdef void* handle_ = <void*><uintptr_t>loaded._handle
    cdef string problem
    if not use_library_of(handle_):
        raise ImportError(f"{MPI.__file__} is linked with no MPI library that compcoll can find")
    _configure()
    if not c_hook(handle_, &problem):
        raise ImportError(
            f"compcoll cannot serve the calls of mpi4py: {problem.decode()}; it needs a module that calls "
            "MPI by the loader's slots, as those of mpi4py's wheels and builds do"
        )


def _configure():
    cdef Constants c
    cdef int i
    c.comm_null, c.comm_self, c.comm_world = map(handle, (MPI.COMM_NULL, MPI.COMM_SELF, MPI.COMM_WORLD))
    c.type_null, c.byte, c.uint64 = map(handle, (MPI.DATATYPE_NULL, MPI.BYTE, MPI.UINT64_T))
    c.request_null, c.info_null = handle(MPI.REQUEST_NULL), handle(MPI.INFO_NULL)
    c.message_null = handle(MPI.MESSAGE_NULL)
    c.sum, c.max, c.errors_return = handle(MPI.SUM), handle(MPI.MAX), handle(MPI.ERRORS_RETURN)
    c.undefined, c.in_status = MPI.UNDEFINED, MPI.ERR_IN_STATUS
    c.proc_null, c.any_source, c.any_tag = MPI.PROC_NULL, MPI.ANY_SOURCE, MPI.ANY_TAG
    c.err_buffer, c.err_count, c.err_other = MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_OTHER
    c.err_request, c.err_truncate, c.err_no_mem = MPI.ERR_REQUEST, MPI.ERR_TRUNCATE, MPI.ERR_NO_MEM
    c.thread_level, c.thread_serialized = MPI.Query_thread(), MPI.THREAD_SERIALIZED
    c.largest_tag = _WORLD.Get_attr(MPI.TAG_UB)
    for i, name in enumerate(_COMBINERS):
        c.combiners[i] = getattr(MPI, f"COMBINER_{name}", -1)
    c.cart, c.graph, c.order_fortran = MPI.CART, MPI.GRAPH, MPI.ORDER_FORTRAN
    c.distribute_block, c.distribute_none = MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_NONE
    c.distribute_default = MPI.DISTRIBUTE_DFLT_DARG
    c.status_nbytes, c.status_error_offset = MPI._sizeof(MPI.Status), offset_of("error")
    c.status_source_offset, c.status_tag_offset = offset_of("source"), offset_of("tag")
    c_configure(c)
    for datatype in {id(one): one for one in vars(MPI).values() if isinstance(one, MPI.Datatype)}.values():
        if datatype != MPI.DATATYPE_NULL and handle(datatype):  # the handle is null if MPI lacks the type
            element, summable = _element_of(datatype)
            add_predefined(handle(datatype), datatype.Get_size(), element, summable)


#: Combiners in the order of csrc/layer/mpi.h.
_COMBINERS = ("NAMED", "DUP", "CONTIGUOUS", "VECTOR", "HVECTOR", "INDEXED", "HINDEXED", "INDEXED_BLOCK",
              "HINDEXED_BLOCK", "STRUCT", "SUBARRAY", "DARRAY", "RESIZED")
# A program may assign another communicator to `MPI.COMM_WORLD`.
_WORLD = MPI.COMM_WORLD


def _element_of(datatype):
    """Code of a predefined datatype's elements (0 if frames cannot hold them), and True if MPI adds them."""
    if datatype in (MPI.BYTE, MPI.CHAR):
        return dtypes.code_of(np.dtype(np.uint8)), False
    if datatype == MPI.TWOINT:
        return dtypes.code_of(np.dtype(np.intc)), False
    if datatype == getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL):
        return dtypes.code_of(dtypes.BFLOAT16), True
    try:
        dtype = np.dtype(datatype.tocode())
    except (TypeError, ValueError, KeyError):
        return 0, False
    if not dtypes.supported(dtype) or datatype in (MPI.LOGICAL, MPI.CHARACTER, MPI.WCHAR):
        return 0, False
    return dtypes.code_of(dtype), True


def override_element_type(datatype, dtype, op, *, bint summable):
    """Treat the values of a datatype as those of a type that MPI lacks.

    Parameters
    ----------
    datatype : MPI.Datatype
    dtype : numpy.dtype
    op : MPI.Op
        Used in place of `MPI.SUM` where MPI adds the values up.
    summable : bool
        True if sums are compressed.
    """
    if not c_override_element_type(handle(datatype), dtypes.code_of(dtype), handle(op), summable):
        raise MPI.Exception(MPI.ERR_TYPE)


def sum_of_halves(dtype):
    """The MPI operation that adds up 16-bit floats of a type, and rounds each sum once."""
    return MPI.Op.fromhandle(c_sum_of_halves(dtypes.code_of(dtype)))


def is_preloaded() -> bool:
    """True if the layer was preloaded into this process, so that all its libraries call it."""
    return is_preloaded_

# The layer between mpi4py and MPI (csrc/layer), which serves the calls of marked communicators.

from libcpp.string cimport string


cdef extern from "layer/mpi.h" namespace "compcoll::layer" nogil:
    ctypedef uint64_t Word
    int n_combiners
    cdef struct Constants:
        Word comm_null, comm_self, comm_world, type_null, request_null, message_null, info_null, byte, uint64
        Word sum, max, errors_return
        int undefined, in_status, proc_null, any_source, any_tag
        int err_buffer, err_count, err_no_mem, err_other, err_request, err_truncate
        int thread_level, thread_serialized, largest_tag
        int combiners[13]
        int cart, graph
        int order_fortran, distribute_block, distribute_none, distribute_default
        uint32_t status_nbytes, status_error_offset, status_source_offset, status_tag_offset
    cbool use_library_of(void*)
    void c_configure "compcoll::layer::configure"(const Constants&)
    void* (*give_up_lock "compcoll::layer::Unlocked::save")()
    void (*take_lock "compcoll::layer::Unlocked::restore")(void*)
    cbool is_preloaded_ "compcoll::layer::Next::preloaded"

cdef extern from "layer/hook.h" namespace "compcoll::layer":
    int c_hook "compcoll::layer::hook"(void*, string*) except +

cdef extern from "layer/types.h" namespace "compcoll::layer" nogil:
    void add_predefined(Word, uint64_t, uint32_t, cbool)
    cbool c_take_for "compcoll::layer::take_for"(Word, uint32_t, Word, cbool)
    Word c_sum_of_halves "compcoll::layer::sum_of_halves"(uint32_t)

cdef extern from "layer/python.h" namespace "compcoll::layer" nogil:
    cdef cppclass CKept "compcoll::layer::Kept":
        CKept(uint64_t)
        uint64_t number()
    cdef cppclass KeptRef:
        const CKept* get()
    uint64_t next_number()
    vector[uint64_t] take_ended() except +
    void set_reentrant(int)
    cdef struct CPython "compcoll::layer::Python":
        void (*prepare)(void*) noexcept
        void (*describe)(void*) noexcept
        void (*load_kernels)(uint64_t, int, uint32_t) noexcept
        void (*finalize)() noexcept
    void with_python(const CPython&)

cdef extern from "layer/report.h" namespace "compcoll::layer" nogil:
    int n_names, n_operations, n_accelerated, name_send "compcoll::layer::Send"
    const char* text_of(int)
    cdef cppclass CWay "compcoll::layer::Way":
        string codec, algorithm, reason
        cbool lossless, writes_back
    cdef cppclass WayRef "std::shared_ptr<const compcoll::layer::Way>":
        const CWay* get()
    cdef cppclass COutcome "compcoll::layer::Outcome":
        int name
        WayRef way
        cbool accelerated
        Stats stats
        double seconds
        uint64_t base_nbytes
    cdef cppclass OutcomeRef "std::shared_ptr<const compcoll::layer::Outcome>":
        const COutcome* get()
    cdef cppclass Counter "std::atomic<uint64_t>":
        uint64_t load()
    cdef struct Totals:
        Counter calls, accelerated, raw_nbytes, wire_nbytes
    Totals c_totals "compcoll::layer::totals"[]
    cdef cppclass CRecord "compcoll::layer::Record":
        int name, form, size, error
        uint64_t comm, nbytes, site, calls
        cbool sends, small
        double start, returned, end
        OutcomeRef outcome
    cdef cppclass CRecorder "compcoll::layer::Recorder":
        vector[CRecord] take()
    CRecorder c_recorder "compcoll::layer::recorder"

cdef extern from "layer/comm.h" namespace "compcoll::layer" nogil:
    cdef struct Settings:
        uint64_t min_nbytes, plain_nbytes
        cbool strict, names, threads, devices, alike
    cdef cppclass COrigin "compcoll::layer::Origin"
    cdef cppclass OriginRef "std::shared_ptr<const compcoll::layer::Origin>":
        const COrigin* get()
    cdef cppclass COrigin "compcoll::layer::Origin":
        COrigin() except +
        KeptRef kept
        OriginRef parent
        vector[int] ranks
        int rank, size
        uint64_t key
    cdef cppclass CLast "compcoll::layer::Last":
        OutcomeRef get(int*)
        void note_objects()
    cdef cppclass CCallTags "compcoll::layer::CallTags":
        int n()
    cdef cppclass CComm "compcoll::layer::Comm":
        Word handle
        int rank, size
        OriginRef origin
        uint64_t number()
        CLast last
        Counter accelerated
        CCallTags tags
        Settings settings
        shared_ptr[CNotices] notices
        int users
        cbool broken()
        string why_broken()
        void forget()
        void renew(const Settings&)
    CComm* c_find "compcoll::layer::find"(Word)
    shared_ptr[CComm] find_by(uint64_t)
    CComm* c_mark "compcoll::layer::mark"(Word, const Settings&, OriginRef) except +
    int c_duplicate "compcoll::layer::duplicate"(
        Word, const Settings&, OriginRef, string, CComm**) except +
    vector[uint64_t] c_duplicates_of "compcoll::layer::duplicates_of"(Word) except +
    CComm* c_find_duplicate "compcoll::layer::find_duplicate"(Word, const string&)
    void note_object(Word, void*)
    void drop_object(void*)
    size_t c_n_marked "compcoll::layer::n_marked"()
    uint64_t n_calls(int)
    size_t most_calls "compcoll::layer::most_calls"
    void c_forget_calls "compcoll::layer::forget_calls"()
    uint64_t c_never "compcoll::layer::never"

cdef extern from "layer/errors.h" namespace "compcoll::layer" nogil:
    cdef enum Fault "compcoll::layer::Fault":
        FALLBACK, FRAME, MISMATCH_ "compcoll::layer::MISMATCH", TIMEOUT_ "compcoll::layer::TIMEOUT"
        BROKEN_ "compcoll::layer::BROKEN", POLICY, CODEC
    int class_of(Fault)
    cdef struct Failure:
        const Error* error
        uint64_t part
        int code
        Fault fault
        string text

cdef extern from "layer/plan.h" namespace "compcoll::layer" nogil:
    cdef struct COperation "compcoll::layer::Operation":
        const char* name
        cbool pairs
    const COperation operations[]
    cdef cppclass CCall "compcoll::layer::CollectiveCall":
        int name, form
        CComm& comm
        uint64_t message_nbytes
        int root()
    cdef cppclass CPlan "compcoll::layer::CallPlan":
        shared_ptr[CCount] count
        vector[uint8_t] sent, received
    cdef cppclass ScheduleRef "std::shared_ptr<const compcoll::engine::Schedule>":
        pass
    cdef cppclass NeighboursRef "std::shared_ptr<const compcoll::engine::Neighbours>":
        pass
    cdef cppclass CPlannedSchedule "compcoll::layer::PlannedSchedule":
        CPlannedSchedule()
        ScheduleRef schedule
        CCoding coding, inside
        NeighboursRef neighbours
        WayRef way
        cbool differs, direct
        KeptRef kept
    cdef struct CMessage "compcoll::layer::Description::Message":
        uint64_t n
        uint32_t element
        vector[uint64_t] shape
        uint64_t data
        int gpu
    cdef cppclass CDescription "compcoll::layer::Description":
        const CCall* call
        CComm& comm
        int name, form, root
        uint64_t nbytes
        double began
        uint32_t element
        cbool is_uncompressed
        string comm_name
        int phase
        vector[CMessage] send, recv
        shared_ptr[CPlan] plan
        cbool idle
        int code
        void decline(WayRef, cbool) except +
        void send_in_chunks(const CCoding&, KeptRef, WayRef, uint64_t, uint64_t, uint64_t) except +
        void add(CPlannedSchedule, const vector[uint8_t]&, const vector[uint8_t]&) except +
    void c_set_phase "compcoll::layer::set_phase"(int)

cdef extern from "layer/start.h" namespace "compcoll::layer" nogil:
    void set_root_is_read_only(cbool)

cdef extern from "layer/engine.h" namespace "compcoll::layer" nogil:
    cbool c_start_threads "compcoll::layer::start_threads"()
    CEngine& the_engine()

cdef extern from "layer/streams.h" namespace "compcoll::layer" nogil:
    void c_set_receiving "compcoll::layer::set_receiving"(uint32_t, const CCoding&, KeptRef) except +
    cdef cppclass CNotices "compcoll::layer::Notices":
        cbool settled()
    uint64_t largest_first_chunk

cdef extern from "layer/check.h" namespace "compcoll::layer" nogil:
    void begin_checks(double, vector[pair[Word, string]]) except +

cdef extern from "layer/record.h" namespace "compcoll::layer" nogil:
    void go_quiet(int)
    void c_end_records "compcoll::layer::end_records"()
    void c_record_calls "compcoll::layer::record_calls"(
        uint64_t (*)(const void*, uint64_t, const char*) noexcept, void (*)() noexcept)

cdef extern from "layer/requests.h" namespace "compcoll::layer" nogil:
    vector[CRecord] take_open_records()

cdef extern from "layer/operation_group.h" namespace "compcoll::layer" nogil:
    cdef struct CNote "compcoll::layer::OperationGroup::Note":
        OutcomeRef outcome
        int small
    cdef cppclass COperationGroup "compcoll::layer::OperationGroup":
        COperationGroup(uint64_t)
        int compare(const shared_ptr[CComm]&, string) except +
        void add(Word*, void*, CComm*) except +
        void submit() except +
        CEnd wait(double, cbool (*)() noexcept nogil) except +
        cbool ended()
        cbool differs()
        cbool is_late()
        string difference(double) except +
        int error()
        vector[CNote] notes() except +
    vector[uint64_t] c_take_ended "compcoll::layer::take_ended"(double) except +
    void c_wake_client "compcoll::layer::wake_client"()

cdef extern from "<dlfcn.h>" nogil:
    ctypedef struct Dl_info:
        const char* dli_fname
        const char* dli_sname
    int dladdr(const void*, Dl_info*)

cdef extern from "layer/interpreter.h" namespace "compcoll::layer" nogil:
    void c_end_layer "compcoll::layer::end_layer"()
    void c_set_begin "compcoll::layer::set_begin"(int (*)() noexcept)
    void c_begin_for_program "compcoll::layer::begin_for_program"(int)
    const string& c_job_settings "compcoll::layer::job_settings"()

cdef extern from * nogil:
    """
    static void with_thread_state(const std::function<void()>& loop) {
      PyGILState_STATE state = PyGILState_Ensure();
      PyThreadState* thread = PyEval_SaveThread();
      loop();
      PyEval_RestoreThread(thread);
      PyGILState_Release(state);
    }
    static void* save_thread() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
    static void restore_thread(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }
    static compcoll::layer::Python with_thread_states(compcoll::layer::Python python) {
      python.run = with_thread_state;
      return python;
    }
    namespace of_layer {
    using namespace compcoll::layer;
    using OriginRef = std::shared_ptr<const Origin>;
    static OriginRef hold_origin(Origin* one) { return OriginRef(one); }
    // Texts come as C has them: Cython's own strings are made where no exception is caught.
    static std::shared_ptr<const Way> make_way(const char* codec, const char* algorithm, const char* reason,
                                               bool lossless, bool writes_back) {
      auto way = std::make_shared<Way>();
      way->codec = codec, way->algorithm = algorithm, way->reason = reason;
      way->lossless = lossless, way->writes_back = writes_back;
      return way;
    }
    static int code_with_text(Fault fault, const char* text) { return code_of(fault, text); }
    static int code_with_text(int error_class, const char* text) { return code_of(error_class, text); }
    static void say(Failure* failure, const char* text) { failure->text = text; }
    static KeptRef hold_kept(uint64_t number) { return std::make_shared<const Kept>(number); }
    static compcoll::engine::Coding copy_of(const compcoll::engine::Coding& one) { return one; }
    }
    static std::shared_ptr<const compcoll::engine::Schedule> constant(
        const std::shared_ptr<compcoll::engine::Schedule>& one) { return one; }
    static std::shared_ptr<const compcoll::engine::Neighbours> near(
        const std::shared_ptr<compcoll::engine::Neighbours>& one) { return one; }
    static void start_with_thread_states(bool threaded, double seconds) {
      compcoll::layer::start_engine(threaded, seconds, with_thread_state);
    }
    """
    void* save_thread()
    void restore_thread(void*)
    CPython with_thread_states(CPython)
    void start_with_thread_states(cbool, double) except +
    OriginRef hold_origin "of_layer::hold_origin"(COrigin*) except +
    WayRef make_way "of_layer::make_way"(const char*, const char*, const char*, cbool, cbool) except +
    int code_of_fault "of_layer::code_with_text"(Fault, const char*) except +
    int code_of_class "of_layer::code_with_text"(int, const char*) except +
    void say "of_layer::say"(Failure*, const char*) except +
    KeptRef hold_kept "of_layer::hold_kept"(uint64_t) except +
    CCoding copy_of "of_layer::copy_of"(const CCoding&) except +
    ScheduleRef constant(const shared_ptr[CSchedule]&)
    NeighboursRef near(const shared_ptr[CNeighbours]&)


#: The operations that the layer serves, by their numbers, and forms of calls.
NAMES = [text_of(i).decode() for i in range(n_names)]
#: Their methods in the three forms; of a message the one that it is.
METHODS = [OPERATIONS[name].forms if name in OPERATIONS else (name,) for name in NAMES]
BLOCKING, NONBLOCKING, PERSISTENT = range(3)
#: More bytes than any message has.
NEVER = c_never
#: In the place of a call of objects.
OBJECTS = -2
#: What Python keeps for objects of the layer, by their numbers.
cdef dict kept = {}


cdef drop_ended():
    """Let go of what is Python's side of objects that have ended."""
    for number in take_ended():
        side = kept.pop(number, None)
        if hasattr(side, "close"):
            side.close()


cdef KeptRef keep(thing):
    """Keep something until what refers to it has ended."""
    cdef uint64_t number = next_number()
    kept[number] = thing
    return hold_kept(number)


def kept_count() -> int:
    """How many objects are kept for the layer; for tests."""
    drop_ended()
    return len(kept)


def marked_count() -> int:
    """How many communicators are marked; for tests."""
    return c_n_marked()


def is_settled(comm) -> bool:
    """Whether no message of a marked communicator is under way; for tests."""
    cdef cbool settled
    cdef CComm* own = marked(comm)
    with nogil:
        settled = own.notices.get().settled()
    return settled


def set_most_calls(size_t n):
    """Have communicators remember so many calls; for tests."""
    global most_calls
    most_calls = n


# -- what mpi4py knows of MPI


_hooked = False


def hook():
    """Have calls of mpi4py's come to the layer, once MPI has begun.

    Raises
    ------
    ImportError
        Where mpi4py's extension module has no slots for functions of MPI.
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
        if datatype != MPI.DATATYPE_NULL and handle(datatype):  # null of what MPI lacks
            element, summable = _element_of(datatype)
            add_predefined(handle(datatype), datatype.Get_size(), element, summable)


#: In the order of csrc/layer/mpi.h.
_COMBINERS = ("NAMED", "DUP", "CONTIGUOUS", "VECTOR", "HVECTOR", "INDEXED", "HINDEXED", "INDEXED_BLOCK",
              "HINDEXED_BLOCK", "STRUCT", "SUBARRAY", "DARRAY", "RESIZED")
# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD


def _element_of(datatype):
    """Code of a predefined datatype's elements, 0 where frames do not hold them, and if MPI adds them up."""
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


def take_for(datatype, dtype, op, *, bint summable):
    """Have the values of a datatype taken for those of a type that MPI lacks.

    Parameters
    ----------
    datatype : MPI.Datatype
    dtype : numpy.dtype
    op : MPI.Op
        In the place of `MPI.SUM` where MPI adds them up.
    summable : bool
        Whether sums are compressed.
    """
    if not c_take_for(handle(datatype), dtypes.code_of(dtype), handle(op), summable):
        raise MPI.Exception(MPI.ERR_TYPE)


def sum_of_halves(dtype):
    """The operation of MPI that adds up 16-bit floats of a type, each sum rounded once."""
    return MPI.Op.fromhandle(c_sum_of_halves(dtypes.code_of(dtype)))


# -- communicators


cdef CComm* marked(comm) except NULL:
    cdef CComm* found = c_find(handle(comm))
    if found == NULL:
        raise ValueError("this communicator is not marked")
    return found


def number_of(comm) -> int:
    """The number of a marked communicator; 0 of any other."""
    cdef CComm* found = c_find(handle(comm))
    return 0 if found == NULL else found.number()


def renew(comm, tuple settings):
    """Give a marked communicator other settings; see `mark`. Local: all ranks do so before the same call."""
    marked(comm).renew(settings_of(settings))


cdef Settings settings_of(tuple given):
    cdef Settings settings
    settings.min_nbytes, settings.strict, settings.names, settings.threads, settings.devices = given[:5]
    settings.plain_nbytes, settings.alike = given[5:]
    return settings


cdef OriginRef origin_of(comm, uint64_t key, side):
    cdef COrigin* origin = new COrigin()
    origin.rank, origin.size, origin.key = comm.Get_rank(), comm.Get_size(), key
    origin.kept = keep(side)
    return hold_origin(origin)


def mark(comm, tuple settings, uint64_t key, side) -> int:
    """Mark a communicator; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    settings : tuple
        (smallest message in bytes, ``strict``, whether rules look at names, whether all ranks have threads,
        whether MPI takes memory of GPUs, smallest whole buffer on GPUs that is the engine's though it is not
        compressed, whether one rank's memory tells where that of all lies)
    key : int
        The same on all ranks, and of no other communicator.
    side : object
        Python's side of it.

    Returns
    -------
    int
        Its number.
    """
    cdef Settings own = settings_of(settings)
    cdef Word mine = handle(comm)
    cdef OriginRef origin = origin_of(comm, key, side)
    cdef CComm* made
    with nogil:
        made = c_mark(mine, own, origin)
    if made == NULL:
        raise MPI.Exception(MPI.ERR_OTHER)
    return made.number()


def duplicate(comm, tuple settings, uint64_t key, side, bytes words):
    """Make a marked duplicate of a communicator, which ``words`` tell from others; collective.

    Returns
    -------
    handle, number : int
    """
    cdef Settings own = settings_of(settings)
    cdef Word mine = handle(comm)
    cdef OriginRef origin = origin_of(comm, key, side)
    cdef CComm* made = NULL
    cdef string told = words
    cdef int error
    with nogil:
        error = c_duplicate(mine, own, origin, told, &made)
    check_mpi(error)
    return made.handle, made.number()


def find_duplicate(comm, bytes words):
    """The handle and the key of a duplicate with the same words, in no error state; or None."""
    cdef string told = words
    cdef CComm* found = c_find_duplicate(handle(comm), told)
    return None if found == NULL else (found.handle, found.origin.get().key)


def share_duplicate(Word own):
    """Give a duplicate that was found one user more; its handle."""
    c_find(own).users += 1
    return own


def duplicates_of(comm) -> list:
    """The numbers of the marked duplicates that were made of a communicator."""
    return list(c_duplicates_of(handle(comm)))


def side_of(uint64_t number):
    """Python's side of a marked communicator; None where it has none yet."""
    return kept.get(number)


def lineage(uint64_t number):
    """Where a communicator comes from: its parent's number, its ranks as that counts them, and its own key.

    Returns
    -------
    parent : int
    ranks : list of int
    rank, size, key : int
    """
    cdef shared_ptr[CComm] comm = find_by(number)
    if comm.get() == NULL:
        raise ValueError(f"there is no communicator {number}")
    return lineage_of(comm.get().origin)


cdef lineage_of(OriginRef origin):
    cdef const COrigin* own = origin.get()
    parent = None
    if own.parent.get() != NULL:
        number = own.parent.get().kept.get().number()
        parent = kept.get(number) or (number, lineage_of(own.parent))
    return parent, list(own.ranks), own.rank, own.size, own.key


def set_side(uint64_t number, side):
    """Give a marked communicator, or one that others were made of, Python's side."""
    kept[number] = side


def place_of(uint64_t number):
    """The handle of a communicator, and how many tags its calls have."""
    cdef shared_ptr[CComm] comm = find_by(number)
    if comm.get() == NULL:
        raise ValueError(f"there is no communicator {number}")
    return comm.get().handle, comm.get().tags.n()


def note_comm(comm):
    """Have an object of mpi4py's be null when its communicator is freed with the one that it was made of."""
    note_object(handle(comm), <void*><uintptr_t>MPI._addressof(comm))


def drop_comm(comm, _address_of=MPI._addressof):
    """Forget an object of mpi4py's, which ends: compiled, so that no signal's handler runs in ``__del__``."""
    drop_object(<void*><uintptr_t>_address_of(comm))


def forget_calls():
    """Have all calls decided on anew, since more is known."""
    c_forget_calls()


def why_broken(comm) -> str:
    """Why a communicator is in an error state; empty where it is not."""
    cdef CComm* found = c_find(handle(comm))
    if found == NULL or not found.broken():
        return ""
    return found.why_broken().decode()


def accelerated_of(comm) -> int:
    """Calls of a marked communicator that did not go to MPI unchanged."""
    cdef CComm* found = c_find(handle(comm))
    return 0 if found == NULL else found.accelerated.load()


def last_of(comm):
    """The last call of a marked communicator.

    Returns
    -------
    str, tuple or None
        The name of a small one; (operation, reason) of one that MPI served; (operation, way, outcome) of
        another; `OBJECTS` of one of objects; None where there was none.
    """
    cdef CComm* found = c_find(handle(comm))
    cdef int small = -1
    cdef OutcomeRef outcome
    if found == NULL:
        return None
    outcome = found.last.get(&small)
    if outcome.get() == NULL:
        return NAMES[small] if small >= 0 else OBJECTS if small == OBJECTS else None
    return last_from(outcome)


cdef last_from(OutcomeRef outcome):
    cdef const COutcome* own = outcome.get()
    cdef const CWay* way = own.way.get()
    cdef Outcome told
    name, reason = NAMES[own.name], way.reason.decode()
    if not own.accelerated:
        return name, reason
    told = Outcome()
    told.stats, told.seconds, told.base_nbytes = own.stats, own.seconds, own.base_nbytes
    return name, Way(way.codec.decode(), way.algorithm.decode(), reason), told


def note_objects(comm):
    """The last call of a marked communicator was one of objects, of which Python keeps the report."""
    marked(comm).last.note_objects()


class Way:
    """How a call was to be carried out: codec, algorithm, and why."""

    __slots__ = ("algorithm", "codec", "reason")

    def __init__(self, codec, algorithm, reason):
        self.codec, self.algorithm, self.reason = codec, algorithm, reason


# -- records of calls, of programs that are traced or counted


_find_site = _take_full = None


def record_calls(full, site=None):
    """Have collective calls of marked communicators recorded from now on, of all languages.

    Parameters
    ----------
    full : callable
        Takes the records that there are, by `take_records`.
    site : callable, optional
        ``site(path, symbol, comm, name)`` gives a number for where the program called, and on which
        communicator: from a function of an object of C, or, where ``path`` is None, from Python.
    """
    global _find_site, _take_full
    _find_site, _take_full = site, full
    if site is None:
        c_record_calls(NULL, full_c)
    else:
        c_record_calls(site_c, full_c)


def end_records():
    """Record nothing any more."""
    c_end_records()


def take_records(*, bint open=False) -> list:
    """The records of calls that have ended since this was asked last.

    Parameters
    ----------
    open : bool
        Of those as well whose requests are not complete.

    Returns
    -------
    list of tuple
        (method, communicator's number, ranks, bytes, whether these are sent, start, return, end, last,
        whether it was accelerated, whether it failed, site, whether its request was not complete, calls);
        ``last`` as of `last_of`. Where nobody asks for sites, small calls that are alike are one record,
        whose times are added up.
    """
    cdef vector[CRecord] records = c_recorder.take()
    cdef list found = [record_from(one, False) for one in records]
    if open:
        records = take_open_records()
        found += [record_from(one, True) for one in records]
    return found


cdef tuple record_from(const CRecord& one, bint is_open):
    cdef bint accelerated = False
    last = NAMES[one.name] if one.small else None
    if one.outcome.get() != NULL:
        last, accelerated = last_from(one.outcome), one.outcome.get().accelerated
    return (
        METHODS[one.name][one.form], one.comm, one.size, one.nbytes, one.sends, one.start, one.returned,
        one.end, last, accelerated, one.error != 0, one.site, is_open, one.calls
    )


cdef uint64_t site_c(const void* caller, uint64_t comm, const char* name) noexcept with gil:
    cdef Dl_info info
    path = symbol = None
    try:
        if dladdr(caller, &info):
            path = os.fsdecode(info.dli_fname)
            symbol = os.fsdecode(info.dli_sname) if info.dli_sname is not NULL else os.path.basename(path)
        if path is not None and os.path.basename(path) == os.path.basename(MPI.__file__):
            path = None
        return _find_site(path, symbol, comm, os.fsdecode(name))
    except BaseException:
        traceback.print_exc()
        return 0


cdef void full_c() noexcept with gil:
    try:
        _take_full()
    except BaseException:
        traceback.print_exc()


def compare_calls(double seconds):
    """Have ranks compare calls from now on, and wait for each other for so many seconds at most; 0: not."""
    cdef vector[pair[Word, string]] operations
    for name, op in vars(MPI).items():
        if isinstance(op, MPI.Op):
            operations.push_back(pair[Word, string](handle(op), name.encode()))
    begin_checks(seconds, operations)


def totals():
    """Calls, accelerated ones, and their bytes before and after, by operation."""
    cdef int i
    cdef Totals* one
    cdef dict found = {}
    for i in range(n_names):
        if n_accelerated <= i < name_send:
            continue
        one = &c_totals[i]
        found[NAMES[i]] = (
            n_calls(i), one.accelerated.load(), one.raw_nbytes.load(), one.wire_nbytes.load()
        )
    return found


cdef class plain_calls:
    """A block whose calls, of this thread, are MPI's as they are, on marked communicators too."""

    def __enter__(self):
        set_reentrant(1)

    def __exit__(self, *exc):
        set_reentrant(-1)


cdef class root_is_read_only:
    """A block in which this rank's buffer of a Bcast may only be read."""

    def __enter__(self):
        set_root_is_read_only(True)

    def __exit__(self, *exc):
        set_root_is_read_only(False)


# -- errors


#: The names of error classes.
FAULTS = {
    "FALLBACK": <int>FALLBACK, "FRAME": <int>FRAME, "MISMATCH": <int>MISMATCH_, "TIMEOUT": <int>TIMEOUT_,
    "BROKEN": <int>BROKEN_, "POLICY": <int>POLICY, "CODEC": <int>CODEC,
}


def error_class(str name) -> int:
    """MPI's error class of a kind of errors."""
    return class_of(<Fault><int>FAULTS[name])


cdef int code_from(problem):
    """MPI's code of an exception."""
    cdef bytes text = (str(problem) or type(problem).__name__).encode()
    if isinstance(problem, MPI.Exception):
        return problem.Get_error_code()
    if isinstance(problem, MemoryError):
        return MPI.ERR_NO_MEM
    for kind, fault in (
        (FrameError, FRAME), (MismatchError, MISMATCH_), (PolicyError, POLICY),
        (FallbackError, FALLBACK), (TimeoutError, TIMEOUT_),
    ):
        if isinstance(problem, kind):
            return code_of_fault(fault, text)
    if isinstance(problem, (TypeError, ValueError)):
        return code_of_class(MPI.ERR_ARG, text)
    text = f"{type(problem).__name__}: {problem}".encode()
    return code_of_class(MPI.ERR_OTHER, text)


cdef void describe_c(void* given) noexcept with gil:
    """Put an error of the engine into words."""
    cdef Failure* failure = <Failure*>given
    cdef const Error* error = failure.error
    cdef bytes text
    try:
        if error.problem == Problem.CALLBACK:
            problem = kept[failure.part].failed
            failure.fault, text = CODEC, f"a codec failed: {problem!r}".encode()
            if isinstance(problem, FrameError):
                failure.fault, text = FRAME, str(problem).encode()
            say(failure, text)
            return
        problem = problem_of(error)
        if isinstance(problem, FrameError):
            text = str(problem).encode()
            say(failure, text)
            return
        failure.code = code_from(problem)
    except BaseException as other:
        failure.code = MPI.ERR_NO_MEM  # where there is none for a text
        text = repr(other).encode()
        say(failure, text)
        failure.code = 0


# -- decisions


cdef WayRef way_of(str codec, str algorithm, str reason, bint lossless, bint writes_back):
    cdef bytes names = codec.encode(), algorithms = algorithm.encode(), reasons = reason.encode()
    return make_way(names, algorithms, reasons, lossless, writes_back)


cdef class Description:
    """A call or message that the layer has not seen before, and the decision on it.

    Attributes
    ----------
    op : str
    form : int
    is_message : bool
    is_uncompressed : bool
        Whether a call is not to be compressed, and all that is to be decided is how its bytes travel.
    side : object
        Python's side of the communicator; None where it has none yet, but its ``number``.
    nbytes : int
        Bytes of the largest message; in a call that all ranks decide all of them know it.
    began : float
        When the call started, in seconds of a clock without a fixed beginning.
    dtype : int
        Code of the elements of all blocks, in a call that all ranks decide.
    root : int
        The rank that a message goes to, in place of a call's root.
    number : int
    name : str
        Of the communicator, where rules look at it.
    phase : int
        The number of the policy in force, of those that the communicator has.
    send, recv : list of (int, int, tuple, int, int)
        Blocks in the order of algorithms: elements, code of their type, shape, address or 0, and the number
        of their GPU, -1 for the host.
    """

    cdef CDescription* own
    cdef readonly str op, name
    cdef readonly int form, root, phase
    cdef readonly uint64_t number, nbytes
    cdef readonly double began
    cdef readonly uint32_t dtype
    cdef readonly list send, recv
    cdef readonly object side
    cdef readonly bint is_message, is_uncompressed

    @staticmethod
    cdef Description of(CDescription* own):
        cdef Description self = Description.__new__(Description)
        self.own = own
        self.op, self.form, self.root = NAMES[own.name], own.form, own.root
        self.number, self.nbytes, self.dtype = own.comm.number(), own.nbytes, own.element
        self.is_message, self.is_uncompressed = own.call == NULL, own.is_uncompressed
        self.began = own.began
        self.name, self.phase = own.comm_name.decode(errors="replace"), own.phase
        self.send, self.recv = messages_of(own.send), messages_of(own.recv)
        self.side = kept.get(self.number)
        return self

    def decline(self, str reason, *, bint refused=False, bint idle=False, Count count=None):
        """Leave the call to MPI.

        Parameters
        ----------
        reason : str
        refused : bool
            Whether ``strict`` makes that an error.
        idle : bool
            Whether no call of the communicator is ever compressed.
        count : Count, optional
            Of calls for which the decision holds; all of them otherwise.
        """
        self.own.decline(way_of("", "mpi", reason, True, False), refused)
        self.own.idle = idle
        if count is not None:
            self.own.plan.get().count = count.own

    def serve(self, PreparedCall prepared, *, Count count=None, bint writes_back=False, bint differs=False,
              sent=(), received=()):
        """Have the engine run a schedule.

        Parameters
        ----------
        prepared : PreparedCall
        count : Count, optional
            As of `decline`.
        writes_back : bool
            Whether the owner of a block takes the values that others decode.
        differs : bool
            Whether its codec sends what changed since the last start.
        sent, received : sequence of bool
            Which of the blocks; all of them where nothing is given.
        """
        cdef CPlannedSchedule part
        cdef vector[uint8_t] out, into
        cdef uint8_t one
        decision = prepared.decision
        for one in sent:
            out.push_back(one)
        for one in received:
            into.push_back(one)
        part.schedule = constant(prepared.compiled.own)
        part.coding, part.inside = copy_of(prepared.coding.own), copy_of(prepared.inside.own)
        if prepared.neighbours is not None:
            part.neighbours = near(prepared.neighbours.own)
        codec = decision.codec
        part.way = way_of(codec.spec, decision.name, decision.reason, codec.lossless, writes_back)
        part.differs, part.direct = differs, prepared.direct
        part.kept = keep(prepared)
        self.own.add(part, out, into)
        if count is not None:
            self.own.plan.get().count = count.own

    def serve_message(self, Coding coding, decision, uint64_t step, tuple inner):
        """Have messages like it sent in chunks of so many elements, from an array with these dimensions."""
        codec = decision.codec
        self.own.send_in_chunks(
            coding.own, keep(coding), way_of(codec.spec, "stream", decision.reason, codec.lossless, False),
            step, prod(inner) if inner else 0, inner[-1] if inner else 0,
        )

    def mask(self, out, into):
        """Say with which ranks the engine has messages, of a call that pairs decide."""
        cdef uint8_t one
        for one in out:
            self.own.plan.get().sent.push_back(one)
        for one in into:
            self.own.plan.get().received.push_back(one)


cdef list messages_of(const vector[CMessage]& messages):
    cdef size_t i
    cdef list found = []
    for i in range(messages.size()):
        found.append((
            messages[i].n, messages[i].element, tuple(messages[i].shape), messages[i].data,
            messages[i].gpu,
        ))
    return found


cdef Py_ssize_t n_prepared = 0


def prepared_count() -> int:
    """How many calls Python has decided on; for tests."""
    return n_prepared


cdef void prepare_c(void* given) noexcept with gil:
    global n_prepared
    cdef CDescription* own = <CDescription*>given
    n_prepared += 1
    try:
        drop_ended()
        _prepare(Description.of(own))
    except BaseException as problem:
        own.code = MPI.ERR_NO_MEM  # where there is none for the code's text
        own.code = code_from(problem)


#: Elements of a first chunk have so many bytes at most.
LARGEST_FIRST_CHUNK = largest_first_chunk


def set_receiving(uint32_t dtype, Coding coding):
    """Say how frames of any codec are decoded to elements of a type."""
    c_set_receiving(dtype, coding.own, keep(coding))


_load_kernels = None


cdef void load_kernels_c(uint64_t comm, int gpu, uint32_t element) noexcept with gil:
    try:
        _load_kernels(comm, gpu, element)
    except BaseException:  # the host codes instead
        traceback.print_exc()


cdef void finalize_c() noexcept with gil:
    call_all()


_prepare = None


def serve_calls(prepare, load_kernels):
    """Have Python decide on calls and messages from now on.

    Parameters
    ----------
    prepare : callable
        ``prepare(description)`` calls methods of a `Description`.
    load_kernels : callable
        ``load_kernels(number, gpu, element)`` has the kernels that a communicator's messages of elements of a
        type may need.
    """
    global _prepare, _load_kernels
    _prepare, _load_kernels = prepare, load_kernels


def _connect():
    """Give the layer what it asks Python."""
    global give_up_lock, take_lock
    cdef CPython functions
    functions.prepare, functions.describe = prepare_c, describe_c
    functions.load_kernels, functions.finalize = load_kernels_c, finalize_c
    give_up_lock, take_lock = save_thread, restore_thread
    with_python(with_thread_states(functions))
    watch_exit()


def end_layer():
    """End all that is under way; once, before MPI or the interpreter ends."""
    with nogil:
        c_end_layer()


_begin_program = None


def set_begin(begin):
    """Have a function called when MPI has begun in a program of C or Fortran."""
    global _begin_program
    _begin_program = begin
    c_set_begin(begin_c)


def begin_for_program(int level):
    """Let a program that this interpreter is to run begin MPI once more, and tell it a level of threads."""
    c_begin_for_program(level)


def job_settings() -> str:
    """Settings of ``compcoll run`` that this process had in its environment before MPI began, else empty."""
    return c_job_settings().decode()


cdef int begin_c() noexcept with gil:
    try:
        _begin_program()
        return 0
    except BaseException as problem:
        return code_from(problem)


def is_preloaded() -> bool:
    """Whether the layer was preloaded into this process, so that all its libraries call it."""
    return is_preloaded_


# -- calls of a client that holds no requests itself, as torch's backend


#: By their numbers, until they have ended: MPI may write to what they refer to.
_started = {}
cdef uint64_t n_started = 0


cdef class Started:
    """The calls of one operation, with the comparison of what the ranks have called.

    Parameters
    ----------
    comm : MPI.Intracomm
        Marked.
    operation : object
        What they belong to.
    """

    cdef shared_ptr[COperationGroup] own
    cdef shared_ptr[CComm] comm
    cdef uint64_t number
    cdef bint is_listed
    cdef readonly object operation
    cdef readonly list calls

    def __init__(self, comm, operation):
        global n_started
        n_started += 1
        self.number, self.operation, self.calls = n_started, operation, []
        self.comm = find_by(marked(comm).number())
        self.own = shared_ptr[COperationGroup](new COperationGroup(self.number))

    def compare(self, str text):
        """Begin to compare words that all ranks have alike; before the calls."""
        cdef string words = text.encode()
        cdef int error
        with nogil:
            error = self.own.get().compare(self.comm, words)
        check_mpi(error)

    def add(self, request):
        """Take over the request of a call."""
        status = MPI.Status()
        self.calls.append((request, status))
        cdef Word* place = <Word*><uintptr_t>MPI._addressof(request)
        cdef void* told = <void*><uintptr_t>MPI._addressof(status)
        with nogil:
            self.own.get().add(place, told, self.comm.get())

    cdef keep(self):
        """Add them to the table once: `take_done` may take them from there before a wait sees their end."""
        if not self.is_listed:
            self.is_listed = True
            _started[self.number] = self

    def submit(self):
        """Leave them to the progress thread; `take_done` tells when they have ended."""
        self.keep()
        with nogil:
            self.own.get().submit()

    def wait(self, double seconds):
        """Wait so long at most; whether they have ended.

        Raises
        ------
        BaseException
            Raised by the handler of a second signal; the calls go on.
        """
        cdef int how
        self.keep()
        with nogil:
            how = <int>self.own.get().wait(seconds, signalled)
        if how == INTERRUPTED:
            raise_ending()
        if not self.own.get().ended():
            return False
        _started.pop(self.number, None)
        return True

    def complete(self, double seconds):
        """Complete the requests of calls that have ended.

        Parameters
        ----------
        seconds : float
            For which other ranks are waited for, to tell what they have called where that differs.

        Raises
        ------
        MismatchError, TimeoutError, MPI.Exception
        """
        cdef string text
        if self.own.get().differs():
            with nogil:
                text = self.own.get().difference(seconds)
            raise MismatchError(text.decode())
        if self.own.get().is_late():
            raise stalled()
        check_mpi(self.own.get().error())
        for request, status in self.calls:
            if request != MPI.REQUEST_NULL:
                request.Wait(status)

    def notes(self):
        """Outcomes of the calls, in their order."""
        cdef Notes notes = Notes()
        notes.own = self.own.get().notes()
        return notes


cdef class Notes:
    """Outcomes of several calls."""

    cdef vector[CNote] own

    def read(self):
        """Of each call as `last_of` has it."""
        cdef size_t i
        return [
            last_from(self.own[i].outcome) if self.own[i].outcome.get() != NULL
            else NAMES[self.own[i].small] if self.own[i].small >= 0 else None
            for i in range(self.own.size())
        ]


def take_done(double seconds) -> list:
    """Take submitted calls that have ended, at the first one, after so many seconds, or at `wake_client`."""
    cdef vector[uint64_t] numbers
    with nogil:
        numbers = c_take_ended(seconds)
    return [one for number in numbers if (one := _started.pop(number, None)) is not None]


def wake_client():
    """Have a thread in `take_done` come back."""
    c_wake_client()


def set_phase(int phase):
    """Say which of a communicator's policies calls of this thread come under."""
    c_set_phase(phase)

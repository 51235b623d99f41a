"""Declarations of the layer between mpi4py and MPI (csrc/layer) for Cython."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from compcoll.core._cpu cimport CCoding, CSchedule, CTrialWindow, Error
from compcoll.engine.native cimport CEnd, CEngine, CNeighbours, Stats

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
    void* (*give_up_lock "compcoll::layer::ReleaseGil::save")()
    void (*take_lock "compcoll::layer::ReleaseGil::restore")(void*)
    cbool is_preloaded_ "compcoll::layer::NextFunction::preloaded"

cdef extern from "layer/hook.h" namespace "compcoll::layer":
    int c_hook "compcoll::layer::hook"(void*, string*) except +

cdef extern from "layer/types.h" namespace "compcoll::layer" nogil:
    void add_predefined(Word, uint64_t, uint32_t, cbool)
    cbool c_override_element_type "compcoll::layer::override_element_type"(Word, uint32_t, Word, cbool)
    Word c_sum_of_halves "compcoll::layer::sum_of_halves"(uint32_t)

cdef extern from "layer/python_thread.h" namespace "compcoll::layer" nogil:
    cdef cppclass CPythonObject "compcoll::layer::PythonObject":
        CPythonObject(uint64_t)
        uint64_t number()
    cdef cppclass PythonRef:
        const CPythonObject* get()
    uint64_t next_number()
    vector[uint64_t] c_take_ended_refs "compcoll::layer::take_ended"() except +
    void set_reentrant(int)
    cdef struct CPython "compcoll::layer::Python":
        void (*prepare)(void*) noexcept
        void (*describe)(void*) noexcept
        void (*load_kernels)(uint64_t, int, uint32_t) noexcept
        void (*finalize)() noexcept
    void with_python(const CPython&)

cdef extern from "layer/statistics.h" namespace "compcoll::layer" nogil:
    int n_names, n_operations, n_accelerated, name_send "compcoll::layer::Send"
    const char* text_of(int)
    cdef cppclass CDecision "compcoll::layer::Decision":
        string codec, algorithm, reason
        cbool lossless, writes_back
    cdef cppclass DecisionRef "std::shared_ptr<const compcoll::layer::Decision>":
        const CDecision* get()
    cdef cppclass COutcome "compcoll::layer::Outcome":
        int name
        DecisionRef decision
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

cdef extern from "layer/comm.h" namespace "compcoll::layer" nogil:
    cdef struct Settings:
        uint64_t min_nbytes, plain_nbytes
        cbool strict, names, threads, devices, alike
    cdef cppclass COrigin "compcoll::layer::Origin"
    cdef cppclass OriginRef "std::shared_ptr<const compcoll::layer::Origin>":
        const COrigin* get()
    cdef cppclass COrigin "compcoll::layer::Origin":
        COrigin() except +
        PythonRef python_ref
        OriginRef parent
        vector[int] ranks
        int rank, size
        uint64_t key
    cdef cppclass CLastCall "compcoll::layer::LastCall":
        OutcomeRef get(int*)
        void note_objects()
    cdef cppclass CCallTags "compcoll::layer::CallTags":
        int n()
    cdef cppclass CComm "compcoll::layer::Comm":
        Word handle
        int rank, size
        OriginRef origin
        uint64_t number()
        CLastCall last
        Counter accelerated
        CCallTags tags
        Settings settings
        shared_ptr[CNotices] notices
        int n_wrappers
        cbool broken()
        string why_broken()
        void forget()
        void renew(const Settings&)
    CComm* c_find "compcoll::layer::find"(Word)
    shared_ptr[CComm] find_by(uint64_t)
    int c_mark "compcoll::layer::mark"(Word, const Settings&, OriginRef, CComm**) except +
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
        shared_ptr[CTrialWindow] trial
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
        DecisionRef decision
        cbool differs, direct
        PythonRef python_ref
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
        void decline(DecisionRef, cbool) except +
        void send_in_chunks(const CCoding&, PythonRef, DecisionRef, uint64_t, uint64_t, uint64_t) except +
        void add(CPlannedSchedule, const vector[uint8_t]&, const vector[uint8_t]&) except +
    void c_set_phase "compcoll::layer::set_phase"(int)

cdef extern from "layer/start.h" namespace "compcoll::layer" nogil:
    void set_root_is_read_only(cbool)

cdef extern from "layer/engine.h" namespace "compcoll::layer" nogil:
    cbool c_start_threads "compcoll::layer::start_threads"()
    CEngine& the_engine()

cdef extern from "layer/first_message.h" namespace "compcoll::layer" nogil:
    uint64_t largest_first_chunk

cdef extern from "layer/message_chunks.h" namespace "compcoll::layer" nogil:
    void c_set_receiving "compcoll::layer::set_receiving"(uint32_t, const CCoding&, PythonRef) except +

cdef extern from "layer/notices.h" namespace "compcoll::layer" nogil:
    cdef cppclass CNotices "compcoll::layer::Notices":
        cbool is_drained()

cdef extern from "layer/check.h" namespace "compcoll::layer" nogil:
    void begin_checks(double, vector[pair[Word, string]]) except +

cdef extern from "layer/recorder.h" namespace "compcoll::layer" nogil:
    cdef cppclass CRecord "compcoll::layer::Record":
        int name, form, size, error
        uint32_t element
        uint64_t comm, nbytes, site, calls
        cbool sends, small
        double start, returned, end
        OutcomeRef outcome
    cdef cppclass CRecorder "compcoll::layer::Recorder":
        vector[CRecord] take()
    CRecorder c_recorder "compcoll::layer::recorder"
    void pause_recording(int)
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
        cbool tell_long_wait_of_calls()
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
    void c_set_begin "compcoll::layer::set_begin"(int (*)() noexcept)
    const string& c_job_settings "compcoll::layer::job_settings"()

cdef extern from "layer/lifecycle.h" namespace "compcoll::layer" nogil:
    void c_end_layer "compcoll::layer::end_layer"()
    void c_begin_for_program "compcoll::layer::begin_for_program"(int)

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
    static std::shared_ptr<const Decision> make_decision(const char* codec, const char* algorithm,
                                                         const char* reason, bool lossless,
                                                         bool writes_back) {
      auto decision = std::make_shared<Decision>();
      decision->codec = codec, decision->algorithm = algorithm, decision->reason = reason;
      decision->lossless = lossless, decision->writes_back = writes_back;
      return decision;
    }
    static int code_with_text(Fault fault, const char* text) { return code_of(fault, text); }
    static int code_with_text(int error_class, const char* text) { return code_of(error_class, text); }
    static void say(Failure* failure, const char* text) { failure->text = text; }
    static PythonRef make_python_ref(uint64_t number) { return std::make_shared<const PythonObject>(number); }
    static compcoll::engine::Coding copy_of(const compcoll::engine::Coding& one) { return one; }
    }
    static std::shared_ptr<const compcoll::engine::Schedule> constant(
        const std::shared_ptr<compcoll::engine::Schedule>& one) { return one; }
    static std::shared_ptr<const compcoll::engine::Neighbours> near(
        const std::shared_ptr<compcoll::engine::Neighbours>& one) { return one; }
    static void start_with_thread_states(bool threaded, double seconds, double notice_seconds) {
      compcoll::layer::start_engine(threaded, seconds, notice_seconds, with_thread_state);
    }
    """
    void* save_thread()
    void restore_thread(void*)
    CPython with_thread_states(CPython)
    void start_with_thread_states(cbool, double, double) except +
    OriginRef hold_origin "of_layer::hold_origin"(COrigin*) except +
    DecisionRef make_decision "of_layer::make_decision"(
        const char*, const char*, const char*, cbool, cbool) except +
    int code_of_fault "of_layer::code_with_text"(Fault, const char*) except +
    int code_of_class "of_layer::code_with_text"(int, const char*) except +
    void say "of_layer::say"(Failure*, const char*) except +
    PythonRef make_python_ref "of_layer::make_python_ref"(uint64_t) except +
    CCoding copy_of "of_layer::copy_of"(const CCoding&) except +
    ScheduleRef constant(const shared_ptr[CSchedule]&)
    NeighboursRef near(const shared_ptr[CNeighbours]&)

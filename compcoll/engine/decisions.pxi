# Python's decisions on calls and messages that the layer has not seen before.

def set_most_calls(size_t n):
    """Set how many calls a communicator remembers; for tests."""
    global most_calls
    most_calls = n


def forget_calls():
    """Discard all decisions, so that calls are decided anew with what is known now."""
    c_forget_calls()


cdef DecisionRef decision_ref(str codec, str algorithm, str reason, bint lossless, bint writes_back):
    cdef bytes names = codec.encode(), algorithms = algorithm.encode(), reasons = reason.encode()
    return make_decision(names, algorithms, reasons, lossless, writes_back)


cdef class Description:
    """A call or message that the layer has not seen before, and the decision on it.

    Attributes
    ----------
    op : str
    form : int
    is_message : bool
    is_uncompressed : bool
        True if the call is not to be compressed; only the transport of its bytes is to be decided.
    side : object
        Python's side of the communicator; None if it has none yet, only its ``number``.
    nbytes : int
        Bytes of the largest message; all ranks know it in a call that all ranks decide.
    began : float
        When the call started, in seconds of a clock with an arbitrary origin.
    dtype : int
        Code of the elements of all blocks, in a call that all ranks decide.
    root : int
        A call's root, or the destination of a message.
    number : int
    name : str
        The communicator's name, if rules look at it.
    phase : int
        Number of the policy in force among the communicator's policies.
    send, recv : list of (int, int, tuple, int, int)
        Blocks in the order of algorithms: number of elements, code of their type, shape, address or 0, and
        number of their GPU, -1 for the host.
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
        self.side = held_objects.get(self.number)
        return self

    def decline(self, str reason, *, bint refused=False, bint idle=False, TrialWindow trial=None):
        """Leave the call to MPI.

        Parameters
        ----------
        reason : str
        refused : bool
            True if ``strict`` makes that an error.
        idle : bool
            True if no call of the communicator is ever compressed.
        trial : TrialWindow, optional
            Calls for which the decision holds; all calls if None.
        """
        self.own.decline(decision_ref("", "mpi", reason, True, False), refused)
        self.own.idle = idle
        if trial is not None:
            self.own.plan.get().trial = trial.own

    def serve(self, PreparedCall prepared, *, TrialWindow trial=None, bint writes_back=False,
              bint differs=False, sent=(), received=()):
        """Have the engine run a schedule.

        Parameters
        ----------
        prepared : PreparedCall
        trial : TrialWindow, optional
            See `decline`.
        writes_back : bool
            True if the owner of a block takes the values that others decode.
        differs : bool
            True if the codec sends what has changed since the last start.
        sent, received : sequence of bool
            Blocks that the engine sends and receives; all blocks if empty.
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
        part.decision = decision_ref(codec.spec, decision.name, decision.reason, codec.lossless, writes_back)
        part.differs, part.direct = differs, prepared.direct
        part.python_ref = hold_python(prepared)
        self.own.add(part, out, into)
        if trial is not None:
            self.own.plan.get().trial = trial.own

    def serve_message(self, Coding coding, decision, uint64_t step, tuple inner):
        """Send messages like this one in chunks of ``step`` elements; ``inner``: their array's dimensions."""
        codec = decision.codec
        self.own.send_in_chunks(
            coding.own, hold_python(coding),
            decision_ref(codec.spec, "stream", decision.reason, codec.lossless, False),
            step, prod(inner) if inner else 0, inner[-1] if inner else 0,
        )

    def mask(self, out, into):
        """Set the ranks with which the engine exchanges messages, in a call that pairs decide."""
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
    """Number of calls that Python has decided on; for tests."""
    return n_prepared


cdef void prepare_c(void* given) noexcept with gil:
    global n_prepared
    cdef CDescription* own = <CDescription*>given
    n_prepared += 1
    try:
        drop_ended()
        _prepare(Description.of(own))
    except BaseException as problem:
        own.code = MPI.ERR_NO_MEM  # in case no memory is left for the code's text
        own.code = code_from(problem)


#: Most bytes of the elements of a first chunk.
LARGEST_FIRST_CHUNK = largest_first_chunk


def set_receiving(uint32_t dtype, Coding coding):
    """Set how frames of any codec are decoded to elements of a type."""
    c_set_receiving(dtype, coding.own, hold_python(coding))


_load_kernels = None


cdef void load_kernels_c(uint64_t comm, int gpu, uint32_t element) noexcept with gil:
    try:
        _load_kernels(comm, gpu, element)
    except BaseException:  # the host encodes and decodes instead
        traceback.print_exc()


_prepare = None


def serve_calls(prepare, load_kernels):
    """Have Python decide on calls and messages from now on.

    Parameters
    ----------
    prepare : callable
        ``prepare(description)`` calls methods of a `Description`.
    load_kernels : callable
        ``load_kernels(number, gpu, element)`` loads the kernels that a communicator's messages of elements of
        a type may need.
    """
    global _prepare, _load_kernels
    _prepare, _load_kernels = prepare, load_kernels


cdef class plain_calls:
    """A block in which this thread's calls go to MPI unchanged, on marked communicators too."""

    def __enter__(self):
        set_reentrant(1)

    def __exit__(self, *exc):
        set_reentrant(-1)


cdef class root_is_read_only:
    """A block in which the root's buffer in this thread's Bcasts is read-only."""

    def __enter__(self):
        set_root_is_read_only(True)

    def __exit__(self, *exc):
        set_root_is_read_only(False)

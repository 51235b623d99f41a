# Objects of Python that the layer holds, and the layer's begin and end.

#: What Python keeps for objects of the layer, by their numbers.
cdef dict held_objects = {}


cdef drop_ended():
    """Let go of what is Python's side of objects that have ended."""
    for number in c_take_ended_refs():
        side = held_objects.pop(number, None)
        if hasattr(side, "close"):
            side.close()


cdef PythonRef hold_python(thing):
    """Keep something until what refers to it has ended."""
    cdef uint64_t number = next_number()
    held_objects[number] = thing
    return make_python_ref(number)


def held_count() -> int:
    """How many objects are kept for the layer; for tests."""
    drop_ended()
    return len(held_objects)


cdef void finalize_c() noexcept with gil:
    call_all()


def _connect():
    """Give the layer what it asks Python."""
    global give_up_lock, take_lock
    cdef CPython functions
    functions.prepare, functions.describe = prepare_c, describe_c
    functions.load_kernels, functions.finalize = load_kernels_c, finalize_c
    give_up_lock, take_lock = save_thread, restore_thread
    with_python(with_thread_states(functions))
    watch_exit(end_layer)


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


def compare_calls(double seconds):
    """Have ranks compare calls from now on, and wait for each other for so many seconds at most; 0: not."""
    cdef vector[pair[Word, string]] operations
    for name, op in vars(MPI).items():
        if isinstance(op, MPI.Op):
            operations.push_back(pair[Word, string](handle(op), name.encode()))
    begin_checks(seconds, operations)

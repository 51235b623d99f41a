# Python objects that the layer holds, and the layer's beginning and end.

#: Objects that Python keeps for the layer, by number.
cdef dict held_objects = {}


cdef drop_ended():
    """Release the Python side of the layer's objects that have ended."""
    for number in c_take_ended_refs():
        side = held_objects.pop(number, None)
        if hasattr(side, "close"):
            side.close()


cdef PythonRef hold_python(thing):
    """Keep an object until the layer's references to it have ended."""
    cdef uint64_t number = next_number()
    held_objects[number] = thing
    return make_python_ref(number)


def held_count() -> int:
    """Number of objects kept for the layer; for tests."""
    drop_ended()
    return len(held_objects)


cdef void finalize_c() noexcept with gil:
    call_all()


def _connect():
    """Give the layer the functions by which it calls Python."""
    global give_up_lock, take_lock
    cdef CPython functions
    functions.prepare, functions.describe = prepare_c, describe_c
    functions.load_kernels, functions.finalize = load_kernels_c, finalize_c
    give_up_lock, take_lock = save_thread, restore_thread
    with_python(with_thread_states(functions))
    watch_exit(end_layer)


def end_layer():
    """End everything in flight; called once, before MPI or the interpreter ends."""
    with nogil:
        c_end_layer()


_begin_program = None


def set_begin(begin):
    """Set the function to call when MPI has begun in a program of C or Fortran."""
    global _begin_program
    _begin_program = begin
    c_set_begin(begin_c)


def begin_for_program(int level):
    """Let the program that this interpreter will run begin MPI once more, and tell it a level of threads."""
    c_begin_for_program(level)


def job_settings() -> str:
    """Settings of ``compcoll run`` in this process's environment before MPI began; empty if none."""
    return c_job_settings().decode()


cdef int begin_c() noexcept with gil:
    try:
        _begin_program()
        return 0
    except BaseException as problem:
        return code_from(problem)


def compare_calls(double seconds):
    """Compare the ranks' calls from now on, waiting at most ``seconds`` for other ranks; 0 turns this off."""
    cdef vector[pair[Word, string]] operations
    for name, op in vars(MPI).items():
        if isinstance(op, MPI.Op):
            operations.push_back(pair[Word, string](handle(op), name.encode()))
    begin_checks(seconds, operations)

# Error classes and codes of MPI, and their texts.

#: The names of error classes.
FAULTS = {
    "FALLBACK": <int>FALLBACK, "FRAME": <int>FRAME, "MISMATCH": <int>MISMATCH_, "TIMEOUT": <int>TIMEOUT_,
    "BROKEN": <int>BROKEN_, "POLICY": <int>POLICY, "CODEC": <int>CODEC,
}


def error_class(str name) -> int:
    """MPI's error class for a kind of error."""
    return class_of(<Fault><int>FAULTS[name])


cdef int code_from(problem):
    """MPI's error code for an exception."""
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
    """Set the text or MPI's code for an error of the engine."""
    cdef Failure* failure = <Failure*>given
    cdef const Error* error = failure.error
    cdef bytes text
    try:
        if error.problem == Problem.CALLBACK:
            problem = held_objects[failure.part].failed
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
        failure.code = MPI.ERR_NO_MEM  # in case no memory is left for a text
        text = repr(other).encode()
        say(failure, text)
        failure.code = 0

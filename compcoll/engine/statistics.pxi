# Outcomes of calls, records of calls for traces, and totals.

def last_of(comm):
    """The last call of a marked communicator.

    Returns
    -------
    str, tuple or None
        The name of a small call; (operation, reason) of a call that MPI served; (operation, decision,
        statistics) of an accelerated call; `OBJECTS` of a call of objects; None if there was no call.
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
    cdef const CDecision* decision = own.decision.get()
    cdef RunStatistics told
    name, reason = NAMES[own.name], decision.reason.decode()
    if not own.accelerated:
        return name, reason
    told = RunStatistics()
    told.stats, told.seconds, told.base_nbytes = own.stats, own.seconds, own.base_nbytes
    return name, DecisionText(decision.codec.decode(), decision.algorithm.decode(), reason), told


def note_objects(comm):
    """Note that the last call of a marked communicator was one of objects, whose report Python keeps."""
    marked(comm).last.note_objects()


class DecisionText:
    """The decision on a call: codec, algorithm, and reason."""

    __slots__ = ("algorithm", "codec", "reason")

    def __init__(self, codec, algorithm, reason):
        self.codec, self.algorithm, self.reason = codec, algorithm, reason


_find_site = _take_full = None


def record_calls(full, site=None):
    """Record collective calls of marked communicators from now on, from programs of all languages.

    Parameters
    ----------
    full : callable
        Fetches the records that there are with `take_records`.
    site : callable, optional
        ``site(path, symbol, comm, name)`` returns a number for the place of a call and its communicator.
        The caller is a function of a C object, or Python if ``path`` is None.
    """
    global _find_site, _take_full
    _find_site, _take_full = site, full
    if site is None:
        c_record_calls(NULL, full_c)
    else:
        c_record_calls(site_c, full_c)


def end_records():
    """Stop recording calls."""
    c_end_records()


def take_records(*, bint open=False) -> list:
    """Return the records of calls that have ended since the last `take_records`.

    Parameters
    ----------
    open : bool
        True to include calls whose requests are not complete.

    Returns
    -------
    list of tuple
        (method, communicator's number, ranks, bytes, whether these are sent, start, return, end, last,
        whether it was accelerated, whether it failed, site, whether its request was not complete, calls, code
        of its elements or 0); ``last`` is what `last_of` returns. Without ``site``, small calls alike share
        one record, whose times are added up, and codes are 0.
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
        one.end, last, accelerated, one.error != 0, one.site, is_open, one.calls,
        one.element
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


def totals():
    """Calls, accelerated calls, and their bytes before and after compression, by operation."""
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

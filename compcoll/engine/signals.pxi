# Signals during waits in C, and in Python code that C calls.

import _signal  # `signal` wraps it in enumerations, and takes ten times as long
import threading

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()
    int PyErr_SetInterruptEx(int)
    int PyErr_CheckSignals() except -1

cdef object getsignal = _signal.getsignal, setsignal = _signal.signal
#: Signals that programs have handlers for, except those of faults, which cannot wait.
cdef tuple SIGNALS = tuple(
    sorted(
        getattr(_signal, name)
        for name in (
            "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGCHLD",
            "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU", "SIGVTALRM", "SIGPROF",
            "SIGWINCH", "SIGIO", "SIGPWR",
        )
        if hasattr(_signal, name)
    )
)
#: First exception of a handler in a wait, and the second one, which ends the wait. Handlers run in the main
#: thread alone.
cdef unsigned long main_thread
cdef object raised = None, ended_by = None
#: The block that defers signals, if there is one.
cdef kept_back current = None


def _find_main_thread():
    global main_thread
    main_thread = threading.main_thread().ident


_find_main_thread()
os.register_at_fork(after_in_child=_find_main_thread)


cdef cbool signalled() noexcept with gil:
    """Run the handlers of signals that have arrived; True if the wait ends."""
    global raised, ended_by
    try:
        PyErr_CheckSignals()
    except BaseException as problem:
        if raised is None:
            raised = problem
            return False
        ended_by = problem
        return True
    return False


def raise_ending():
    """Raise the exception that ended a wait."""
    global raised, ended_by
    problem, ended_by, raised = ended_by, None, None
    raise problem


def raise_pending():
    """Raise a handler's exception from a wait of this thread that nevertheless completed."""
    global raised
    if raised is not None and PyThread_get_thread_ident() == main_thread:
        problem, raised = raised, None
        raise problem


cdef class kept_back:
    """A block that defers signals to its end: code that C calls cannot propagate handlers' exceptions."""

    cdef list replaced, arrived
    cdef object note

    def __enter__(self):
        global current
        if current is not None or PyThread_get_thread_ident() != main_thread:
            return
        self.replaced, self.arrived, self.note = [], [], self.take
        current = self
        for number in SIGNALS:
            handler = getsignal(number)
            while callable(handler) and getsignal(number) is handler:
                try:
                    setsignal(number, self.note)
                    self.replaced.append((number, handler))
                except BaseException as problem:  # raised by the handler of an earlier signal
                    self.keep(problem)

    def __exit__(self, kind, value, traceback):
        global current
        if current is not self:
            return
        for number, handler in self.replaced:
            while getsignal(number) is self.note:
                try:
                    setsignal(number, handler)
                except BaseException as problem:  # raised by a handler that was restored already
                    self.keep(problem)
        current, self.note = None, None
        for number in self.arrived:
            PyErr_SetInterruptEx(number)

    def take(self, number, frame):
        """Record a signal, in place of its handler."""
        self.arrived.append(number)

    cdef keep(self, problem):
        global raised
        if raised is None:
            raised = problem

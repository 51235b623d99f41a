# cython: language_level=3
"""Signals in the middle of a call: their handlers run when it is over, as with mpi4py, whose calls are in C.

A rank that leaves a collective early leaves messages behind, and the others wait for it. So what a handler
raises, such as `KeyboardInterrupt`, comes out of the call that it interrupted when that has ended, with its
result in place. A wait runs the handlers of the signals that have arrived meanwhile, and keeps what the first
one raises; a second exception ends the wait at once, and the communicator is in an error state.
"""

import _signal  # what `signal` wraps in enumerations, which takes ten times as long
import os
import threading

from cpython.exc cimport PyErr_CheckSignals


cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()
    int PyErr_SetInterruptEx(int)

cdef object getsignal = _signal.getsignal, setsignal = _signal.signal
#: Those that programs have handlers for; not the ones of faults, which cannot wait.
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
#: Signals reach the main thread alone.
cdef unsigned long main_thread
#: The context that defers signals now.
cdef deferred current = None
#: How often signals have been kept back.
cdef unsigned long deferrals = 0
#: Exception raised by a handler during a call of the main thread.
cdef object kept = None


def _find_main_thread():
    global main_thread
    main_thread = threading.main_thread().ident


_find_main_thread()
os.register_at_fork(after_in_child=_find_main_thread)


cdef class deferred:
    """Keep signals back until the end of the block; one within another has no effect.

    Other threads than the main one have nothing to keep back, and signals that are ignored or left to the
    system stay so.

    Parameters
    ----------
    quiet : bool
        Whether the end of the block raises nothing: the signals arrive again behind it. For what is called by
        code that cannot pass exceptions on.
    """

    def __init__(self, bint quiet=False):
        self.quiet = quiet

    def __enter__(self):
        self.begin()

    def __exit__(self, kind, value, traceback):
        self.end(kind is None or issubclass(kind, Exception))

    cdef int begin(self) except -1:
        global current, kept, deferrals
        if current is not None or PyThread_get_thread_ident() != main_thread:
            return 0
        self.replaced, self.arrived, self.note = [], [], self.take
        current = self
        try:
            for number in SIGNALS:
                handler = getsignal(number)
                if callable(handler):
                    setsignal(number, self.note)
                    self.replaced.append((number, handler))
        except BaseException as problem:  # what came before: nothing has begun
            self.end(False)
            if not self.quiet:
                raise
            kept = kept or problem
            return self.begin()
        deferrals += 1
        return 0

    cdef int end(self, bint raises) except -1:
        global current, kept
        if current is not self:
            return 0
        for number, handler in self.replaced:
            while getsignal(number) is self.note:
                try:
                    setsignal(number, handler)
                except BaseException as problem:  # of a handler that was put back already
                    kept = kept or problem
        current, self.note = None, None
        for number, _ in self.arrived:
            PyErr_SetInterruptEx(number)
        if raises and not self.quiet:
            raise_pending()
            PyErr_CheckSignals()
        return 0

    def take(self, number, frame):
        """Take the place of a handler."""
        self.arrived.append((number, frame))

    cdef int run_next(self) except -1:
        """Run the handler of the first signal that has arrived; 0 where none has."""
        if not self.arrived:
            return 0
        number, frame = self.arrived.pop(0)
        for known, handler in self.replaced:
            if known == number:
                handler(number, frame)
        return 1


def check():
    """Within a wait: run the handlers of signals that have arrived.

    Raises
    ------
    BaseException
        Raised by a handler, where another one had raised before.
    """
    global kept
    if PyThread_get_thread_ident() != main_thread:
        return
    while True:
        try:
            PyErr_CheckSignals()
            if current is None or not current.run_next():
                return
        except BaseException as problem:
            if kept is not None:
                kept = None
                raise
            kept = problem


def count_deferrals():
    """Number of times that signals were kept back, which tells whether a call has begun."""
    return deferrals


def raise_pending():
    """Raise what a handler has raised during a call of this thread, but for one that still keeps it back."""
    global kept
    if kept is not None and current is None and PyThread_get_thread_ident() == main_thread:
        problem, kept = kept, None
        raise problem

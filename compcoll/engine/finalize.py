"""Functions to call once before MPI is finalized: threads that call MPI have to end before that.

If a program calls MPI_Finalize, the layer reports it. Otherwise mpi4py calls it when the interpreter has
ended and no Python runs any more. Exit handlers of the program may still wait for requests, so the functions
are called after all of these, including early ones.
"""

from __future__ import annotations

import atexit
import os
import traceback
from collections.abc import Callable

__all__ = ["before_finalize", "call_all", "has_begun", "watch_exit"]

_functions: list[Callable[[], None]] = []
_begun = False


def before_finalize(function: Callable[[], None]) -> None:
    """Register a function to call once before this process finalizes MPI; later ones are called first."""
    if function not in _functions:
        _functions.append(function)


def has_begun() -> bool:
    """True if the functions have been called; MPI then frees what is left."""
    return _begun


def watch_exit(end: Callable[[], None]) -> None:
    """Register a function that ends the layer when Python exits, which calls the functions."""
    # Python releases the arguments of exit handlers after it has called all handlers.
    atexit.register(lambda last: None, _Last(end))
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Forget all functions in a forked child, which has no threads and must not call MPI."""
    global _begun
    _functions.clear()
    _begun = True


class _Last:
    def __init__(self, end: Callable[[], None]):
        self.end = end

    def __del__(self) -> None:
        if not _begun:
            self.end()


def call_all() -> None:
    """Call the functions, once."""
    global _begun
    while _functions:
        try:
            _functions.pop()()
        except Exception:  # the others still have to be called
            traceback.print_exc()
    _begun = True

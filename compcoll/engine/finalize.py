"""Functions that are called once, before MPI ends: threads that call MPI have to end before it does.

A program may call MPI_Finalize, of which the layer tells. Otherwise mpi4py calls it when the interpreter has
ended and no Python runs any more. Exit handlers of the program may still wait for requests, so the functions
are called after all of these, early ones included.
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
    """Call a function before MPI is finalized by this process, later ones first, each once."""
    if function not in _functions:
        _functions.append(function)


def has_begun() -> bool:
    """Whether that is over, so that MPI frees what is left."""
    return _begun


def watch_exit(end: Callable[[], None]) -> None:
    """Have a function end the layer, which calls the functions, when Python exits."""
    # Python lets go of the arguments of exit handlers when it has called all of these.
    atexit.register(lambda last: None, _Last(end))
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """A child has none of the threads, and MPI allows it no call."""
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
        except Exception:  # the others are called all the same
            traceback.print_exc()
    _begun = True

"""Functions that are called once, before MPI ends: threads that call MPI have to end before it does.

A program may call MPI_Finalize, which deletes the attributes of COMM_SELF before it does anything else.
Otherwise mpi4py calls it when the interpreter has ended and no Python runs any more. Exit handlers of the
program may still wait for requests, so the functions are called after all of these, early ones included.
"""

from __future__ import annotations

import atexit
import os
import traceback
from collections.abc import Callable
from functools import cache

from mpi4py import MPI

__all__ = ["before_finalize", "has_begun"]

# A program may put another communicator into its place.
_SELF = MPI.COMM_SELF
_functions: list[Callable[[], None]] = []
_begun = False


def before_finalize(function: Callable[[], None]) -> None:
    """Call a function before MPI is finalized by this process, later ones first, each once."""
    if function not in _functions:
        _functions.append(function)
    _register()


def has_begun() -> bool:
    """Whether that is over, so that MPI frees what is left."""
    return _begun


@cache
def _register() -> None:
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, value: _call_all())
    MPI.Intracomm(_SELF).Set_attr(keyval, True)
    # Python lets go of the arguments of exit handlers when it has called all of these.
    atexit.register(lambda last: None, _Last())
    os.register_at_fork(after_in_child=_functions.clear)  # a child has none of the threads


class _Last:
    def __del__(self) -> None:
        _call_all()


def _call_all() -> None:
    global _begun
    while _functions:
        try:
            _functions.pop()()
        except Exception:  # the others are called all the same
            traceback.print_exc()
    _begun = True

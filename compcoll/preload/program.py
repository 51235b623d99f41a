"""The Python side of a program that calls MPI from C or Fortran; imported by the preloaded library.

A communicator of the program has a `ProgramComm`, whose methods are called with arrays of the program's
memory. Errors go to the communicator's error handler, as those of MPI do.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from types import CodeType, FunctionType
from typing import Any

import mpi4py

if "mpi4py.MPI" not in sys.modules:
    mpi4py.rc.errors = "default"  # else its import would replace the program's error handlers
    os.environ.pop("MPI4PY_MPIABI", None)  # the program has loaded its MPI library, which mpi4py finds

from mpi4py import MPI

from compcoll.core import environment
from compcoll.engine import hooks
from compcoll.engine.call import PreparedCall
from compcoll.engine.finalize import has_begun
from compcoll.mpi.comm import CLASSES, Comm
from compcoll.mpi.context import Context
from compcoll.mpi.state import State, describe
from compcoll.policy import make_policy
from compcoll.preload import SETTINGS
from compcoll.preload._dispatch import attach_world, connect
from compcoll.tracing import recording

__all__ = ["ProgramComm", "attach", "attach_world", "release", "report"]


class _ProgramState(State):
    """The state of a communicator of the program, which may be left to begin a nonblocking call itself."""

    #: The buffers of the nonblocking call that begins.
    buffers: tuple | None = None

    def to_mpi(self, name: str, *args: Any) -> Any:
        """Leave a nonblocking call that stays as it is to the program, whose counts outlive it."""
        if self.buffers is not None and all(a is b for a, b in zip(self.buffers, args, strict=False)):
            return None
        return super().to_mpi(name, *args)

    def remember(self, name: str, args: tuple, root: int, trial: Any, decided: Any) -> None:
        """As of `State`, but for calls that are left to the program."""
        if self.buffers is None or isinstance(decided, PreparedCall):
            super().remember(name, args, root, trial, decided)


class ProgramComm(Comm):
    """A communicator of the program."""

    _state: _ProgramState
    _make_state = _ProgramState

    def begin(self, method: str, args: tuple) -> MPI.Request | None:
        """Start a nonblocking call; None where MPI has to carry it out as it is."""
        self._state.buffers = args[:2]
        try:
            request = getattr(self, method)(*args)
        finally:
            self._state.buffers = None
        if request is not None:
            _requests[id(request)] = request
        return request


#: Requests that the program has to wait for.
_requests: dict[int, MPI.Request] = {}


def _forget(request: MPI.Request, last: tuple) -> None:
    _requests.pop(id(request), None)


def attach(handle: int, parent: ProgramComm | None, same_ranks: bool) -> ProgramComm:
    """The object of a communicator, with the policy of its last wrapper, if it had any; collective.

    Parameters
    ----------
    handle : int
    parent : ProgramComm, optional
        That of the communicator from which the program has just made this one.
    same_ranks : bool
        Whether it is a duplicate of that.
    """
    comm = MPI.Intracomm(MPI.Comm.fromhandle(handle))
    if parent is not None:
        child = ProgramComm.__new__(ProgramComm, comm)
        child._state.descend(child, parent._state, same_ranks)
        return child
    context = Context.find(comm)
    if context is None or not context.attached:
        return ProgramComm(comm, **_SETTINGS)
    known = ProgramComm.__new__(ProgramComm, comm)
    known._state.attach(context, context.attached[-1].settings, known)
    return known


def release(comm: ProgramComm) -> None:
    """A communicator is about to be freed; collective, but at MPI's end."""
    if not has_begun():
        Context.part(comm)


def report(problem: BaseException, handle: int) -> int:
    """Have the communicator's error handler deal with an error; its code, where the handler returns.

    Of MPI's own errors MPI has said what there is to say.
    """
    comm = MPI.Comm.fromhandle(handle)
    code = problem.Get_error_code() if isinstance(problem, MPI.Exception) else MPI.ERR_OTHER
    if not isinstance(problem, MPI.Exception) or hasattr(problem, "__notes__"):
        where = f"rank {comm.Get_rank()} of {comm.Get_size()}"
        print(f"compcoll: {where}: {problem}", file=sys.stderr, flush=True)
    comm.Call_errhandler(code)
    return code


# -- where the program called


def _call(method, args):
    return method(*args)


_callers: dict[tuple[str, str], FunctionType] = {}


def call_from(path: str, symbol: str) -> FunctionType:
    """A function whose frame a trace takes for that of the program's."""
    found = _callers.get((path, symbol))
    if found is None:
        code: CodeType = _call.__code__.replace(co_filename=path, co_name=symbol, co_qualname=symbol)
        found = _callers[path, symbol] = FunctionType(code, {})
    return found


# -- the beginning


def _check_library() -> None:
    """ImportError where mpi4py would call another MPI library than the program does."""

    def address(library: ctypes.CDLL) -> int | None:
        return ctypes.cast(library.PMPI_Init, ctypes.c_void_p).value

    theirs = ctypes.CDLL(None)
    if hasattr(theirs, "PMPI_Init") and address(theirs) != address(ctypes.CDLL(MPI.__file__)):
        raise ImportError(
            f"mpi4py's {os.path.basename(MPI.__file__)} is not for the MPI library of the program"
        )


_check_library()
#: Options of ``compcoll run``.
_SETTINGS: dict[str, Any] = environment.read(SETTINGS, json.loads) or {}
hooks.ends.append(_forget)
recording.start(CLASSES, describe, environment.summary())
_policy = make_policy(None, *(_SETTINGS.get(key) for key in ("codec", "when", "min_nbytes", "policy")))
connect(attach, release, report, call_from, _policy.min_nbytes, environment.trace() is not None)

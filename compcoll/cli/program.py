"""A user's program, run in this process as ``python`` runs it."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import signal
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn
from zipfile import is_zipfile

import mpi4py
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.launch.bootstrap import thread_level
from compcoll.tracing.recording import fail

__all__ = ["run_as_main"]


class _Options(mpi4py.Rc):
    """mpi4py's options of a program; its thread level also counts if MPI is already initialised."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("threads", "thread_level"):
            _engine.begin_for_program(thread_level(MPI))


def run_as_main(program: str, as_module: bool) -> NoReturn:
    """Run a script, a folder or archive with a ``__main__``, or a module, and leave with its exit status.

    ``sys.path[0]`` and ``__main__`` are as in plain Python. The caller sets ``sys.argv`` and has initialised
    MPI; the program may initialise it as well. If the program ends by an exception, or with a status other
    than 0, MPI ends all ranks.
    """
    _engine.begin_for_program(MPI.Query_thread())
    mpi4py.rc.__class__ = _Options
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if as_module else os.path.dirname(os.path.realpath(program))
    try:
        if as_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif Path(program).is_file() and not is_zipfile(program):
            _run_script(program)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as problem:
        fail(problem)
        raise
    except BaseException as problem:
        # Handled here, because click would print some exceptions in another way.
        problem = problem.with_traceback(_of_program(problem.__traceback__))
        sys.excepthook(type(problem), problem, problem.__traceback__)
        fail(problem)
        raise SystemExit(128 + signal.SIGINT if isinstance(problem, KeyboardInterrupt) else 1) from None
    raise SystemExit(0)


def _run_script(program: str) -> None:
    """Run a source file as the module ``__main__``, which is kept so that its classes can be pickled."""
    path = os.path.abspath(program)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __builtins__=builtins, __loader__=SourceFileLoader("__main__", path), __cached__=None
    )
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Remove the frames of this file and of `runpy` from the beginning of a traceback."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback

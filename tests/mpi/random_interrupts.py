"""A signal whose handler raises, in the middle of a random program."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from random_steps import Program

from compcoll.engine import _engine

__all__ = ["Alarm", "Interrupted"]


def _begun() -> int:
    """Number of calls so far, which tells whether a call has begun."""
    return sum(calls for calls, *_ in _engine.totals().values())


class Interrupted(Exception):
    """Exception that the signal's handler raises."""


#: Calls whose results the program needs: it could not go on after an interrupt of one.
_NEEDED = (
    "_init",
    "probe",
    "Test",
    "test",
    "waitany",
    "waitsome",
    "Waitany",
    "Waitsome",
    "dup",
    "Dup",
    "Split",
    "Create",
    "Sub",
    "Clone",
    "using",
    "Free",
    "recv",
    "send",
    "wait",
)


#: Calls in which mpi4py runs Python code between two calls of MPI.
_DIVIDED = ("allreduce", "reduce", "scan", "exscan")


class Alarm:
    """Signal in the middle of one call of the library, on one rank."""

    def __init__(self, rng: np.random.Generator, program: Program, rank: int):
        self._mine = rank == int(rng.integers(program.size))
        self._at, self._delay = (
            int(rng.integers(len(program.steps) or 1)),
            float(10.0 ** rng.uniform(-5, -2.5)),
        )
        self._armed = self._inside = False
        self._before = 0
        #: Code that the signal interrupted; empty before that.
        self.fired = ""

    def begin(self, index: int) -> None:
        """Arm the signal if step ``index`` is the chosen one."""
        if self._mine and index == self._at:
            self._armed = True
            signal.signal(signal.SIGALRM, self._raise)
            signal.setitimer(signal.ITIMER_REAL, self._delay)

    def end(self) -> None:
        """Disarm the signal at the program's end."""
        if self._armed:
            self._armed = False  # first, so that a handler that is still due does not set the timer again
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, function: Callable, *args: Any) -> tuple[bool, Any]:
        """Call a function; returns (True, its result), or (False, None) after an interrupt."""
        if function.__name__ in _DIVIDED or any(text in function.__name__ for text in _NEEDED):
            return True, function(*args)
        try:
            self._before, self._inside = _begun(), True
            result = function(*args)
            self._inside = False
            return True, result
        except Interrupted as interrupt:
            self._inside = False
            self.fired += f" in {function.__name__}\n{''.join(traceback.format_tb(interrupt.__traceback__))}"
            return False, None
        finally:
            self._inside = False

    def _raise(self, number: int, frame: Any) -> None:
        if not self._armed:
            return
        # The call has not blocked signals yet, so it has not begun: the interrupt would come before it.
        if not self._inside or _begun() == self._before:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            return
        self.fired = f"{frame.f_code.co_name}:{frame.f_lineno}"
        raise Interrupted

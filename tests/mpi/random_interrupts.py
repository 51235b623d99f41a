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
    """What tells whether a call has begun."""
    return sum(calls for calls, *_ in _engine.totals().values())


class Interrupted(Exception):
    """What the handler of the signal raises."""


#: Calls whose results a program cannot do without; an interrupt of one leaves it nothing to go on with.
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


#: Calls of which mpi4py runs Python between two of MPI's.
_DIVIDED = ("allreduce", "reduce", "scan", "exscan")


class Alarm:
    """A signal in the middle of one call of the library, on one rank."""

    def __init__(self, rng: np.random.Generator, program: Program, rank: int):
        self._mine = rank == int(rng.integers(program.size))
        self._at, self._delay = (
            int(rng.integers(len(program.steps) or 1)),
            float(10.0 ** rng.uniform(-5, -2.5)),
        )
        self._armed = self._inside = False
        self._before = 0
        #: Where the signal came.
        self.fired = ""

    def begin(self, index: int) -> None:
        """A step begins."""
        if self._mine and index == self._at:
            self._armed = True
            signal.signal(signal.SIGALRM, self._raise)
            signal.setitimer(signal.ITIMER_REAL, self._delay)

    def end(self) -> None:
        """The program is over."""
        if self._armed:
            self._armed = False  # first: a handler that is still due sets no timer again
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, function: Callable, *args: Any) -> tuple[bool, Any]:
        """Whether a call went through without an interrupt, and its result."""
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
        # A call that has not kept signals back has not begun: the interrupt would be one before it.
        if not self._inside or _begun() == self._before:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            return
        self.fired = f"{frame.f_code.co_name}:{frame.f_lineno}"
        raise Interrupted

"""The record of a call, and where the program has made it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

from compcoll.tracing.names import is_ours

__all__ = ["Record", "find_site"]


@dataclass(slots=True, eq=False)
class Record:
    """A call, as the layer notes it.

    Attributes
    ----------
    name : str
        Of the method.
    comm : CommFacts
    nbytes : int
        Of the buffer that a rank which sends gives it; 0 where its arguments do not tell.
    sends : bool
        Whether that buffer is one that this rank sends from.
    start, returned, end : float
        `time.perf_counter`, when it was called, had returned, and had returned or its request was done.
    last
        The communicator's record of it, as `compcoll.engine._engine.last_of`; None of what is MPI's alone.
    accelerated : bool
    code, instruction
        Where the program called it: a code object and the offset in it.
    problem : str or None
        The error that it gave.
    calls : int
        More than one where several that are alike are one record, with the sum of their times.
    """

    name: str
    comm: Any
    nbytes: int
    sends: bool
    start: float
    returned: float
    end: float
    last: Any
    accelerated: bool
    code: CodeType | None
    instruction: int
    problem: str | None
    calls: int = 1

    @property
    def kind(self) -> tuple[Any, ...]:
        """What calls that are alike have in common, all but what an accelerated one did."""
        last = None if self.accelerated else self.last
        return (
            self.code,
            self.instruction,
            self.name,
            self.comm,
            self.nbytes,
            self.sends,
            self.accelerated,
            last,
        )

    @property
    def times(self) -> str:
        """Seconds of its method where these are fewer, its start and its duration, as in JSON."""
        method = f',"returned":{self.returned - self.start:.9f}' if self.returned != self.end else ""
        return f'{method},"start":{self.start:.9f},"total":{self.end - self.start:.9f}}}\n'

    @property
    def seconds(self) -> float:
        """Seconds that its method took."""
        return self.returned - self.start


#: Whether code is compcoll's or mpi4py's, of code that was seen before.
_known: dict[CodeType, bool] = {}


def find_site() -> tuple[CodeType | None, int]:
    """Code object and instruction of the innermost frame that is neither compcoll's nor mpi4py's."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        ours = _known.get(code)
        if ours is None:
            ours = _known[code] = is_ours(code)
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None, 0

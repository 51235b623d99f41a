"""MPI's error classes of what goes wrong in a call of a `compcoll.Comm`.

Such an error is an `MPI.Exception`, or what the communicator's error handler makes of it:
``error.Get_error_class() == compcoll.errors.FRAME`` tells what it is, and ``error.Get_error_string()`` says
what was wrong.

Attributes
----------
FALLBACK : int
    A call with ``strict=True`` could not be carried out as its policy says.
FRAME : int
    What arrived is no sound frame, or another rank met an error before it could send.
MISMATCH : int
    Ranks have made calls that do not go together.
TIMEOUT : int
    Nothing has come for ``COMPCOLL_TIMEOUT`` seconds.
BROKEN : int
    An earlier call has left the communicator in an error state.
POLICY : int
    Ranks disagree on what rules look at.
CODEC : int
    A codec of another package has raised an exception.
"""

from __future__ import annotations

__all__ = ["BROKEN", "CODEC", "FALLBACK", "FRAME", "MISMATCH", "POLICY", "TIMEOUT"]

BROKEN: int
CODEC: int
FALLBACK: int
FRAME: int
MISMATCH: int
POLICY: int
TIMEOUT: int


def __getattr__(name: str) -> int:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from compcoll.engine import _engine  # which needs MPI

    found: int = _engine.error_class(name)
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

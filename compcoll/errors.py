"""MPI error classes for errors in calls of a `compcoll.Comm`.

The communicator's error handler acts on such an error; in Python it is an `MPI.Exception`:
``error.Get_error_class() == compcoll.errors.FRAME`` identifies its class, and ``error.Get_error_string()``
describes it.

Attributes
----------
FALLBACK : int
    A call with ``strict=True`` could not be carried out as its policy says.
FRAME : int
    The received bytes are not a sound frame, or another rank met an error before it could send.
MISMATCH : int
    Ranks have made calls that do not match.
TIMEOUT : int
    No message has arrived for ``COMPCOLL_TIMEOUT`` seconds.
BROKEN : int
    An earlier call has left the communicator in an error state.
POLICY : int
    Ranks disagree on a value that rules depend on.
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

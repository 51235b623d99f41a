"""Ctrl-C in the middle of a call: kept back until the call is over, as by mpi4py, whose calls are in C.

A rank that leaves a collective half-way leaves messages behind, and the others wait for it. So the first
interrupt is delivered when the call has ended, with its result in place. Who sends a second one does not want
to wait: then the call ends at once, and the communicator cannot be used any more.
"""

from __future__ import annotations

import _signal  # what `signal` wraps in enumerations, which takes ten times as long
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["check", "deferred"]


class _Kept:
    """The interrupts that came during one call of the main thread."""

    def __init__(self, handler: Callable[[int, FrameType | None], object]):
        self.handler, self.times = handler, 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take the place of the handler."""
        self.times += 1

    def deliver(self) -> None:
        """Have the handler do what it would have done, which mostly is to raise `KeyboardInterrupt`."""
        self.times = 0
        self.handler(_signal.SIGINT, None)


_kept: _Kept | None = None


class deferred:
    """Keep an interrupt back until the end of the block; one within another has no effect.

    Signals reach the main thread alone, so other threads have nothing to keep back, and neither has a
    program that ignores interrupts or leaves them to the system.
    """

    __slots__ = ("_mine",)

    def __enter__(self) -> None:
        global _kept
        self._mine: _Kept | None = None
        if _kept is not None or threading.get_ident() != threading.main_thread().ident:
            return
        handler = _signal.getsignal(_signal.SIGINT)
        if callable(handler):
            self._mine = _kept = _Kept(handler)
            _signal.signal(_signal.SIGINT, _kept.note)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        global _kept
        kept = self._mine
        if kept is None:
            return
        _kept = None
        _signal.signal(_signal.SIGINT, kept.handler)
        if kept.times and not (kind is not None and issubclass(kind, KeyboardInterrupt)):
            kept.deliver()


def check() -> None:
    """Within a wait: raise `KeyboardInterrupt` where a second interrupt has come."""
    kept = _kept
    if kept is not None and kept.times > 1 and threading.current_thread() is threading.main_thread():
        kept.deliver()

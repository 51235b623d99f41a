"""Signals in the middle of a call; see `compcoll.engine._interrupts`."""

from compcoll.engine._interrupts import check, deferred, raise_pending, undivided

__all__ = ["check", "deferred", "raise_pending", "undivided"]

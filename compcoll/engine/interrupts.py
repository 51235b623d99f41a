"""Signals in the middle of a call; see `compcoll.engine._interrupts`."""

from compcoll.engine._interrupts import check, count_deferrals, deferred, raise_pending

__all__ = ["check", "count_deferrals", "deferred", "raise_pending"]

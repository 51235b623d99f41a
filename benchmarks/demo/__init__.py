"""One flow, simulated with plain MPI and with several codecs: ``compcoll demo``."""

from .program import CODECS, Flow, Run, recorded, run, simulate, table, verdicts

__all__ = ["CODECS", "Flow", "Run", "recorded", "run", "simulate", "table", "verdicts"]

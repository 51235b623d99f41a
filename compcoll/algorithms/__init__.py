"""Collective algorithms over the verbs of `compcoll.schedule.trace.Tracer`, one a file; `catalog` has them by name."""

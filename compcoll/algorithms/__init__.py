"""Collective algorithms over the verbs of `compcoll.schedule.trace`, one a file; `catalog` names them."""

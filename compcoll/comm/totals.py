"""Totals of this process over all communicators."""

from __future__ import annotations

from compcoll.engine import _engine
from compcoll.engine.report import Summary

__all__ = ["summary"]


def summary() -> Summary:
    """Sum up the calls of this rank on all communicators that it ever wrapped, freed ones included; local.

    Calls on a library's own duplicates and parts of a communicator count, too, whereas
    ``Comm.calls_accelerated`` counts one object's. `compcoll.torch.report` has the calls of torch's backend.

    Returns
    -------
    Summary
    """
    operations = {op: Summary(*one) for op, one in sorted(_engine.totals().items()) if one[0]}
    every = operations.values()
    return Summary(
        sum(one.calls for one in every),
        sum(one.accelerated for one in every),
        sum(one.raw_nbytes for one in every),
        sum(one.wire_nbytes for one in every),
        operations,
    )

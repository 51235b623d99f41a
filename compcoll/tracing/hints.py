"""The closing lines of a program that gained nothing: why calls were not accelerated, or were slower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call
from compcoll.model.profile import MachineProfile, load
from compcoll.operations import ALGORITHMS
from compcoll.policy.policy import IN_NODE, Policy, Rule
from compcoll.tracing.tally import Tally

__all__ = ["of"]

#: Kinds of calls that are predicted, those that took most; and how many times longer they have to have taken.
_MOST, _SLOWER = 4, 1.2


def of(tally: Tally, total: np.ndarray, marked: Any) -> Iterator[str]:
    """Lines for the program's user, on rank 0; nothing is raised, since the program has done its work.

    Parameters
    ----------
    tally : Tally
        Of this rank.
    total : array of float64
        The sum of `Tally.values` over all ranks.
    marked : compcoll.marked.Marked
        One of all ranks.
    """
    try:
        yield from _lines(tally, total, marked)
    except Exception as problem:
        yield f"compcoll: no advice, since it failed: {type(problem).__name__}: {problem}"


def _lines(tally: Tally, total: np.ndarray, marked: Any) -> Iterator[str]:
    _, _, nbytes, _, unchanged, _ = total.tolist()
    if nbytes and unchanged > nbytes / 2 and marked.size > 1:
        part = "none" if unchanged == nbytes else f"{1 - unchanged / nbytes:.0%}"
        yield f"compcoll: {part} of these bytes accelerated: {_reason(tally)}"
    if unchanged == nbytes or _asks_model(marked.policy):
        return
    machine = load(lambda problem: None)
    if machine is not None and marked.facts.link in machine.measured:
        plain, ours = _seconds(tally, marked, machine)
        if ours > _SLOWER * plain:
            yield (
                f"compcoll: the accelerated calls that took most took {ours:.3g} s on rank 0; {plain:.3g} s "
                "are predicted for plain MPI, from the profile of compcoll tune; --codec auto accelerates "
                "only what gains"
            )
    elif marked.facts.link == "node":
        yield (
            "compcoll: all ranks share memory, where compression seldom saves time; --codec auto accelerates "
            "only what gains"
        )


def _asks_model(policy: Policy) -> bool:
    """Whether any call of a policy is accelerated only where that gains."""
    some: tuple[Policy | Rule, ...] = (policy, *policy.rules)
    return any(one.codec == "auto" or one.when == "pays" for one in some)


def _reason(tally: Tally) -> str:
    """The reason of most of rank 0's bytes."""
    reason = max(tally.reasons, key=tally.reasons.__getitem__, default="the reasons are those of other ranks")
    if reason == IN_NODE:
        return "all ranks share memory; --codec lossless compresses all the same"
    return reason


def _seconds(tally: Tally, marked: Any, machine: MachineProfile) -> tuple[float, float]:
    """Predicted times of plain MPI for the calls that took most, beside the measured ones."""
    plain = ours = 0.0
    longest = sorted(tally.collectives.items(), key=lambda pair: -pair[1].seconds)[:_MOST]
    for (op, nbytes, size), known in longest:
        call = Call.of_buffer(op, nbytes, size, min(marked.facts.ranks_per_node, size))
        plain += known.calls * plain_seconds(call, machine, ALGORITHMS[op])
        ours += known.seconds
    return plain, ours

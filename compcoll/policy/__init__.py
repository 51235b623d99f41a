"""Policies: which codec and algorithm serve a call, and how it therefore runs."""

from compcoll.policy.policy import (
    ALGORITHMS,
    IN_NODE,
    MIN_NBYTES,
    Decision,
    Policy,
    Rule,
    check_same,
    default_policy,
    fields_of,
    make_policy,
)

__all__ = [
    "ALGORITHMS",
    "IN_NODE",
    "MIN_NBYTES",
    "Decision",
    "Policy",
    "Rule",
    "check_same",
    "default_policy",
    "fields_of",
    "make_policy",
]

"""Policies: the codec, algorithm and chunk size of a call."""

from compcoll.policy.policy import Policy, Rule, make_policy

__all__ = ["Policy", "Rule", "make_policy"]

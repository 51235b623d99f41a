"""Policies: which codec and algorithm serve a call, and how it therefore runs."""

from compcoll.policy.policy import Policy, Rule, make_policy

__all__ = ["Policy", "Rule", "make_policy"]

"""Types of prepared calls; what else is there is not typed."""

from typing import Any

from compcoll.policy.decision import Decision

class PreparedCall:
    decision: Decision
    def __init__(self, *args: Any) -> None: ...

def __getattr__(name: str) -> Any: ...

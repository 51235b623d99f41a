"""Types of prepared calls and runs; what else is there is not typed."""

from typing import Any

from compcoll.policy.decision import Decision

class Running:
    outcome: Any
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class PreparedCall:
    decision: Decision
    def __init__(self, *args: Any) -> None: ...

def __getattr__(name: str) -> Any: ...

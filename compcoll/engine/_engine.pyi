"""Types of prepared calls; the rest of _engine is not typed."""

from typing import Any

class PreparedCall:
    decision: Any
    def __init__(self, *args: Any) -> None: ...

def __getattr__(name: str) -> Any: ...

"""Types of layouts; what else is there is not typed."""

from typing import Any

class Layout:
    kind: int
    nbytes: int
    count: int
    stride: int
    child: Layout

def __getattr__(name: str) -> Any: ...

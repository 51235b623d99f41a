"""Types of what other modules use."""

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

class Gate:
    handle: int
    limit: int
    accelerated: int
    last: Any
    def __init__(self, handle: int, limit: int) -> None: ...
    def swap_last(self, value: Any) -> Any: ...

def is_small(spec: Any, limit: int) -> bool: ...
def shortcut(full: _Method) -> _Method: ...

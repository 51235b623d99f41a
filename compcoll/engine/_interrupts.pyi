"""Types of the decorator; what else is there is not typed."""

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

def undivided(method: _Method) -> _Method: ...
def __getattr__(name: str) -> Any: ...

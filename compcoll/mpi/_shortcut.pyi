"""Types of the decorators; what else is there is not typed."""

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

def shortcut(buffers: int, pairs: bool = ..., begins: bool = ...) -> Callable[[_Method], _Method]: ...
def uninterrupted(full: _Method) -> _Method: ...
def __getattr__(name: str) -> Any: ...

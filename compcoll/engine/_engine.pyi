"""Types of prepared calls and tasks; what else is there is not typed."""

from collections.abc import Iterable
from typing import Any

from compcoll.policy.decision import Decision

DONE: int
HEADER: int
CHECKSUM: int
PAYLOAD: int
MISMATCH: int
POISONED: int
MPI_ERROR: int
MEMORY: int
BASE: int

class Task:
    end: int | None
    done: bool
    ended: bool
    def check(self) -> None: ...

class Running(Task):
    outcome: Any
    first_tag: int
    ends: list[tuple[int, int]]
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def fail(self, problem: Exception) -> None: ...
    def order(self, events: list[tuple[int, Any]]) -> None: ...

class PreparedCall:
    op: str
    decision: Decision
    is_placed: bool
    def __init__(self, *args: Any) -> None: ...
    def place(self, places: Iterable[tuple[int, int]]) -> None: ...
    def start(self, blocks: list[Any], tags: tuple[int, int] | None = ...) -> Running: ...
    def fits(self, send: Any, recv: Any) -> bool: ...
    def start_on(self, send: Any, recv: Any) -> Running | None: ...

def __getattr__(name: str) -> Any: ...

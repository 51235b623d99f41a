"""The phase of a call: in a backward pass or not, which must be the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import local
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["in_phase", "is_backward", "watch_joins"]

#: ``is_backward`` is True if a thread's calls match calls in the backward pass of other ranks or threads.
_thread = local()


def is_backward() -> bool:
    """True if calls of this thread belong to a backward pass now."""
    return torch._C._current_graph_task_id() != -1 or getattr(_thread, "is_backward", False)


@contextmanager
def in_phase(backward: bool) -> Iterator[None]:
    """Make calls of this thread belong to a backward pass or not; no effect while the thread runs one."""
    before, _thread.is_backward = getattr(_thread, "is_backward", False), backward
    try:
        yield
    finally:
        _thread.is_backward = before


def watch_joins() -> None:
    """Patch DDP: calls on behalf of a rank that has joined have the phase of the calls that they match."""

    def shadow(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            with in_phase(backward=True):
                return original(self, *args, **kwargs)

        return method

    for name in ("_match_all_reduce_for_bwd_pass", "_match_unused_params_allreduce"):
        setattr(DistributedDataParallel, name, shadow(getattr(DistributedDataParallel, name)))

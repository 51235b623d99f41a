"""The phase of a call, whether it belongs to a backward pass, which has to be the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import local
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["in_phase", "is_backward", "watch_joins"]

#: Whether a thread does what other ranks, or other threads, do in a backward pass.
_thread = local()


def is_backward() -> bool:
    """Whether calls of this thread belong to a backward pass at this moment."""
    return torch._C._current_graph_task_id() != -1 or getattr(_thread, "is_backward", False)


@contextmanager
def in_phase(backward: bool) -> Iterator[None]:
    """Have calls of this thread belong to a backward pass, or not, unless it runs one."""
    before, _thread.is_backward = getattr(_thread, "is_backward", False), backward
    try:
        yield
    finally:
        _thread.is_backward = before


def watch_joins() -> None:
    """Give DDP's calls for a rank that has joined the phase of those which they go with."""

    def shadow(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            with in_phase(backward=True):
                return original(self, *args, **kwargs)

        return method

    for name in ("_match_all_reduce_for_bwd_pass", "_match_unused_params_allreduce"):
        setattr(DistributedDataParallel, name, shadow(getattr(DistributedDataParallel, name)))

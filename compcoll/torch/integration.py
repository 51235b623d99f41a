"""Registration of the backend with torch: Dynamo, dispatch modes, the profiler, c10d.

Up to torch 2.13, calls of a process group in Python bypass the dispatcher, and some functions of torch know
only its own backends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import cache, wraps
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, _create_work_from_future  # type: ignore[attr-defined]
from torch._C._dynamo import eval_frame
from torch._subclasses import FakeTensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Join
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["dispatched", "keep_works_of_joins", "not_compiled", "patch_2_13", "profiler_entry"]

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
_Class = TypeVar("_Class", bound=type)
_Code = TypeVar("_Code", bound=type | Callable[..., Any])
#: C++ names of a process group's methods.
_METHODS = {
    **{
        name: name
        for name in (
            "allreduce",
            "allreduce_coalesced",
            "reduce",
            "reduce_scatter",
            "broadcast",
            "allgather",
            "allgather_coalesced",
            "gather",
            "scatter",
            "alltoall",
            "barrier",
            "send",
            "recv",
            "recv_anysource",
            "alltoall_base",
            "_allgather_base",
            "_reduce_scatter_base",
            "allgather_into_tensor_coalesced",
            "reduce_scatter_tensor_coalesced",
        )
    },
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def not_compiled(code: _Code) -> _Code:
    """Exclude a function, or a class's methods, and everything that they call from Dynamo.

    `torch.compiler.disable` does the same, but imports all of Dynamo, which takes seconds.
    """
    for member in [code] if isinstance(code, FunctionType) else vars(code).values():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return code


def dispatched(cls: _Class) -> _Class:
    """Show a process group's operations to dispatch modes, and skip operations on fake tensors.

    While a dispatch mode is on, each operation is also called, with other tensors, on a fake group of torch
    that does not communicate.
    """
    for name, theirs in _METHODS.items():
        setattr(cls, name, _dispatched(getattr(cls, name), theirs))
    return cls


def _dispatched(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch._C._len_torch_dispatch_stack():
            return method(self, *args, **kwargs)
        twin, work = getattr(_fake_group(self.rank(), self.size()), name), None
        with suppress(TypeError):  # C++ does not take all forms of arguments
            work = twin(
                *tree_map_only(torch.Tensor, torch.empty_like, args),
                **tree_map_only(torch.Tensor, torch.empty_like, kwargs),
            )
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            return work
        return method(self, *args, **kwargs)

    return wrapper


@cache
def _fake_group(rank: int, size: int) -> dist.ProcessGroup:
    group = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
    backend = FakeProcessGroup._create_internal(rank, size)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return group


def profiler_entry(op: str) -> AbstractContextManager:
    """An entry in torch's profiler, if one is running."""
    if torch.autograd._profiler_enabled():
        return torch.autograd.profiler.record_function(f"compcoll:{op.split()[0]}")
    return nullcontext()


def keep_works_of_joins() -> None:
    """Give DDP's reducer a C++ Work of the future if a rank has joined: it does not keep a Work of Python."""
    notify = Join.notify_join_context

    @wraps(notify)
    def notify_join_context(joinable: Any) -> Any:
        work = notify(joinable)
        if work is None or "compcoll" not in dist.get_backend_config(joinable.join_process_group):
            return work
        return _create_work_from_future(work.get_future())

    Join.notify_join_context = notify_join_context  # type: ignore[method-assign]


def patch_2_13() -> None:
    """Refuse groups that mix this backend with others, and make `_set_pg_timeout` work for its groups."""
    init_config, set_timeout = c10d.BackendConfig.__init__, c10d._set_pg_timeout

    def init(self: c10d.BackendConfig, backend: Any) -> None:
        init_config(self, backend)
        others = {name for name in self.device_backend_map.values() if name != "compcoll"}
        if others and "compcoll" in self.device_backend_map.values():
            raise ValueError(
                f"{backend}: with torch up to 2.13 a group of compcoll has no other backend beside it, and "
                f"this one names {', '.join(sorted(others))}; use 'compcoll' for all, or a group for each"
            )

    @wraps(set_timeout)
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        group = group or c10d._get_default_group()
        if hasattr(group, "state"):
            group.set_timeout(timeout)
        else:
            set_timeout(timeout, group)

    c10d.BackendConfig.__init__ = init  # type: ignore[method-assign]
    c10d._set_pg_timeout = _set_pg_timeout

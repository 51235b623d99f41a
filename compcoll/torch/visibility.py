"""Calls as torch's tools see them: up to torch 2.13 those of a group in Python pass no dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["visible"]

#: The methods, and their names in C++.
_METHODS = {
    **{name: name for name in (
        "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "broadcast", "allgather",
        "allgather_coalesced", "gather", "scatter", "alltoall", "barrier", "send", "recv", "recv_anysource",
        "alltoall_base", "_allgather_base", "_reduce_scatter_base", "allgather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced",
    )},
    "all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced", "all_to_all_single": "alltoall_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}  # fmt: skip
_Class = TypeVar("_Class", bound=type)


def visible(cls: _Class) -> _Class:
    """Have the operations of a process group seen by dispatch modes, and do nothing with fake tensors.

    While such a mode is on, each of them is called as well, with other tensors, on a group of torch's that
    communicates nothing.
    """
    for name, theirs in _METHODS.items():
        setattr(cls, name, _seen(getattr(cls, name), theirs))
    return cls


def _seen(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(method)
    def seen(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch._C._len_torch_dispatch_stack():
            return method(self, *args, **kwargs)
        twin, work = getattr(_twin(self.rank(), self.size()), name), None
        with suppress(TypeError):  # what C++ does not take in this form
            work = twin(
                *tree_map_only(torch.Tensor, torch.empty_like, args),
                **tree_map_only(torch.Tensor, torch.empty_like, kwargs),
            )
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            return work
        return method(self, *args, **kwargs)

    return seen


@cache
def _twin(rank: int, size: int) -> dist.ProcessGroup:
    group = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
    nothing = FakeProcessGroup._create_internal(rank, size)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, nothing)
    return group

"""The process group of torch up to 2.13, in Python."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from compcoll.torch.dynamo import untraced
from compcoll.torch.operations import Operations
from compcoll.torch.start import make_core
from compcoll.torch.visibility import visible

__all__ = ["CompcollGroup", "create_group"]


@visible
@untraced
class CompcollGroup(Operations, dist.ProcessGroup):  # type: ignore[misc]
    """A process group whose ranks are those of MPI."""

    def __init__(self, opts: Any, options: Any):
        dist.ProcessGroup.__init__(self, opts.group_rank, opts.group_size)  # type: ignore[call-arg]
        self.core = make_core(opts, options)
        self.core.desc = self.getGroupDesc
        self._options, self._store = options, opts.store
        self._name, self._desc = opts.group_id, "undefined"

    # Torch asks the backends of a group for its name; this one has none. C++ has its own spelling.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc
        self.core.forget_policy()

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: Any) -> Any:
        return self

    def get_group_store(self) -> dist.Store:
        return self._store

    @property
    def options(self) -> Any:
        """What the group was made with."""
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    def name(self) -> str:
        return "compcoll"


def create_group(opts: Any, options: Any) -> CompcollGroup:
    """What `torch.distributed` calls to make a group; collective over its ranks."""
    return CompcollGroup(opts, options)

"""The process group of torch up to 2.13, and the backend of torch from 2.14 on, both in Python.

From 2.14 on, torch's own process group calls a backend, and may hold other backends as well.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d as c10d

from compcoll.torch.integration import dispatched, not_compiled
from compcoll.torch.make_group import make_group
from compcoll.torch.operations import Operations
from compcoll.torch.policies import Options

__all__ = ["CompcollBackend", "CompcollGroup"]


@dispatched
@not_compiled
class CompcollGroup(Operations, dist.ProcessGroup):  # type: ignore[misc]
    """A process group whose ranks are those of MPI; made collectively."""

    def __init__(self, opts: Any, options: Any):
        dist.ProcessGroup.__init__(self, opts.group_rank, opts.group_size)  # type: ignore[call-arg]
        self.state = make_group(opts, options)
        self.state.desc = self.getGroupDesc
        self._options, self._store = options, opts.store
        self._name, self._desc = opts.group_id, "undefined"

    # Torch asks a group's backends for its name, and this group has no backends. C++ has its own spelling.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc
        self.state.forget_policy()

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
    def supports_splitting(self) -> bool:
        return False

    def name(self) -> str:
        return "compcoll"


@not_compiled
class CompcollBackend(Operations, Backend):
    """A backend whose ranks are those of MPI; made collectively."""

    def __init__(self, opts: Any, options: Any):
        Backend.__init__(self, opts.group_rank, opts.group_size)
        self.state = make_group(opts, options)
        self._options = options if options is not None else Options(timeout=opts.timeout)
        self._group_name, self._group_desc = opts.group_id, "undefined"
        self.state.desc = self.getGroupDesc

    @property
    def supports_splitting(self) -> bool:
        return True

    supportsSplitting = supports_splitting

    def getGroupDesc(self) -> str:
        """The group's description, which torch sets after construction."""
        groups = c10d._world.pg_names.items()
        return next((g.group_desc for g, name in groups if name == self._group_name), self._group_desc)

    def split(self, store: Any, ranks: list[int], opts: Any = None) -> CompcollBackend | None:
        """A backend of some of the group's ranks."""
        if self.state.rank not in ranks:
            return None
        options = opts if isinstance(opts, Options) else None
        made = SimpleNamespace(
            store=store,
            group_rank=ranks.index(self.state.rank),
            group_size=len(ranks),
            group_id=f"{self.state.name}:{'-'.join(map(str, ranks))}",
            timeout=timedelta(seconds=self.state.timeout),
        )
        return CompcollBackend(made, options)

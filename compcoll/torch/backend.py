"""The backend of torch from 2.14 on: torch's own process group calls it, and may hold others beside it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from compcoll.torch.dynamo import untraced
from compcoll.torch.operations import Operations
from compcoll.torch.options import Options
from compcoll.torch.start import make_core

__all__ = ["CompcollBackend", "create_backend"]


@untraced
class CompcollBackend(Operations, Backend):
    """A backend whose ranks are those of MPI."""

    def __init__(self, opts: Any, options: Any, core: Any = None):
        Backend.__init__(self, opts.group_rank, opts.group_size)
        self.core = core or make_core(opts, options)
        self._options = options if options is not None else Options(timeout=opts.timeout)
        self._group_name, self._group_desc = opts.group_id, "undefined"
        self.core.desc = self.getGroupDesc

    @property
    def options(self) -> Any:
        """What the group was made with."""
        return self._options

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supportsSplitting(self) -> bool:
        return True

    def getGroupDesc(self) -> str:
        """The description that torch has given to the group since."""
        for group in dist.distributed_c10d._world.pg_names:
            if dist.distributed_c10d._world.pg_names[group] == self._group_name:
                return group.group_desc
        return self._group_desc

    def split(self, store: Any, ranks: list[int], opts: Any = None) -> CompcollBackend | None:
        """A backend of some of the group's ranks; collective over all of them."""
        from compcoll.torch.start import split_core

        given = opts if isinstance(opts, Options) else None
        core = split_core(self.core, list(ranks), given, store)
        if core is None:
            return None
        return CompcollBackend(_SplitOptions(core), given, core)


class _SplitOptions:
    """What a backend that was split off is made with."""

    def __init__(self, core: Any):
        from datetime import timedelta

        self.group_rank, self.group_size, self.group_id = core.rank, core.size, core.name
        self.timeout = timedelta(seconds=core.timeout)


def create_backend(opts: Any, options: Any) -> CompcollBackend:
    """What `torch.distributed` calls to make a group's backend; collective over its ranks."""
    return CompcollBackend(opts, options)

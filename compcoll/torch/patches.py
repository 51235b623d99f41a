"""Functions of torch up to 2.13 that know its own backends alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d as c10d

from compcoll.torch.group import CompcollGroup

__all__ = ["patch"]


def patch() -> None:
    """Have them know this one as well."""
    made, set_timeout = c10d.BackendConfig.__init__, c10d._set_pg_timeout

    def init(self: c10d.BackendConfig, backend: Any) -> None:
        made(self, backend)
        others = {name for name in self.device_backend_map.values() if name != "compcoll"}
        if others and "compcoll" in self.device_backend_map.values():
            raise ValueError(
                f"{backend}: with torch up to 2.13 a group of compcoll has no other backend beside it, and "
                f"this one names {', '.join(sorted(others))}; use 'compcoll' for all, or a group for each"
            )

    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        group = group or c10d._get_default_group()
        if isinstance(group, CompcollGroup):
            group.set_timeout(timeout)
        else:
            set_timeout(timeout, group)

    _set_pg_timeout.__doc__ = set_timeout.__doc__
    c10d.BackendConfig.__init__ = init  # type: ignore[method-assign]
    c10d._set_pg_timeout = _set_pg_timeout

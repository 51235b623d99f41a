"""Cores that this process may use; cores that no rank needs are for worker threads."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import inf
from pathlib import Path

__all__ = ["MOST_WORKERS", "Cores", "cores_of_process", "free_cores", "spare_cores"]

#: Default limit on the worker threads of a rank.
MOST_WORKERS = 8
_MOUNT, _GROUPS, _LOADS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/loadavg")

#: A line of /proc/self/cgroup: a number, controllers, of which version 2 names none, and the group's path.
_GROUP = re.compile(r"[0-9]+:([^:]*):(.*)")


@dataclass(frozen=True)
class Cores:
    """Cores of one process.

    Attributes
    ----------
    affinity : frozenset of int
        Cores that it may run on.
    quota : float
        Cores whose time its control group may use; infinite without a limit.
    group : int
        Number of the control group that has the quota; 0 without one.
    """

    affinity: frozenset[int]
    quota: float = inf
    group: int = 0


def cores_of_process(mount: Path = _MOUNT, groups: Path = _GROUPS) -> Cores:
    """Find the cores of this process: its affinity, and the least CPU quota of its control groups.

    Version 2 of the kernel's control groups has quotas in ``cpu.max``, version 1 in ``cpu.cfs_quota_us`` and
    ``cpu.cfs_period_us``: https://docs.kernel.org/admin-guide/cgroup-v2.html.
    """
    quota, group = inf, 0
    for folder in _folders(mount, groups):
        found, number = _quota(folder)
        if found < quota:
            quota, group = found, number
    return Cores(frozenset(os.sched_getaffinity(0)), quota, group)


def spare_cores(mine: Cores, node: list[Cores]) -> tuple[int, float]:
    """Cores for worker threads of a rank, and the ranks of its node for each core that they may use.

    Parameters
    ----------
    mine : Cores
    node : list of Cores
        Those of all ranks of the node.
    """
    quotas = {one.group: one.quota for one in node}
    cores = min(len(frozenset().union(*(one.affinity for one in node))), sum(quotas.values()))
    shared_out = min(int(cores / len(node)), len(mine.affinity)) - 1
    return min(MOST_WORKERS, max(0, shared_out)), len(node) / cores


def free_cores(loads: Path = _LOADS) -> int | None:
    """Cores of this machine that no other thread runs on now; None if that is unknown.

    csrc/engine/free_cores.cpp has the average that calls go by.
    """
    try:
        running = int(loads.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0, (os.cpu_count() or 1) - running + 1)


def _folders(mount: Path, groups: Path) -> list[Path]:
    """Folders of the control groups that may limit this process, a container's own root among them."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        group = _GROUP.fullmatch(line)
        if group is None or (group[1] and "cpu" not in group[1].split(",")):
            continue
        controllers, path = group.groups()
        root = mount / controllers
        inside = root / path.lstrip("/")
        found += [one for one in (inside, *inside.parents) if one.is_relative_to(root)]
    return found


def _quota(folder: Path) -> tuple[float, int]:
    """Cores whose time a control group may use, infinite without a limit; and the group's number."""
    try:
        if (file := folder / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if quota == "max" or int(quota) < 0:
            return inf, 0
        return int(quota) / int(period), folder.stat().st_ino
    except (OSError, ValueError, ZeroDivisionError):
        return inf, 0

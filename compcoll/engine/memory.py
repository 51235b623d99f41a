"""Memory that a process may have."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["memory_nbytes"]


def memory_nbytes(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory, or of the least limit of a cgroup that this process is in.

    Pages of ``memfd_create`` count as memory there; the size of /dev/shm does not limit them.

    Parameters
    ----------
    root : Path
        Folder that contains proc and sys.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        texts = [_read(one / name).strip() for one in (group, *group.parents) if one.is_relative_to(top)]
        limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits)


def _read(path: Path) -> str:
    """A file's text; none of one that is not there, as those above a container's own."""
    try:
        return path.read_text()
    except OSError:
        return ""

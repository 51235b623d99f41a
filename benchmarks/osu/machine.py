"""Context of a figure: the machine, and the commit that is checked out. This module does not start MPI."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

__all__ = ["commit", "machine"]


def machine() -> dict[str, object]:
    """Processor, cores and system."""
    return {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()}


def _processor() -> str:
    """The processor's model if the system reports it, else the architecture."""
    try:
        with open("/proc/cpuinfo") as info:
            return next(entry.split(":", 1)[1].strip() for entry in info if entry.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def commit() -> str | None:
    """The checked-out commit, with ``-dirty`` if more than results differ; None outside a repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "-uno", "--", "..", ":!results", ":!REPORT.md")
        return git("rev-parse", "HEAD") + "-dirty" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None

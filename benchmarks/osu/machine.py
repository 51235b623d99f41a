"""Context of a figure: the machine, and the commit that is checked out. This module does not start MPI."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

__all__ = ["commit", "machine"]

#: Files that a measurement may change, as git's patterns.
WRITTEN = (":(top,exclude)benchmarks/results", ":(top,exclude)*.md")


def machine() -> dict[str, object]:
    """Processor, cores, system, and the instructions that the codecs use if the library is there."""
    found = {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()}
    try:
        from compcoll.core import _cpu
    except ImportError:
        return found
    return {**found, "level": _cpu.level()}


def _processor() -> str:
    """The processor's model if the system reports it, else the architecture."""
    try:
        with open("/proc/cpuinfo") as info:
            return next(entry.split(":", 1)[1].strip() for entry in info if entry.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def commit() -> str | None:
    """The checked-out commit, with ``-dirty`` if more than results and pages differ; None without one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        changed = git(
            "status",
            "--porcelain",
            "-uno",
            "--",
            ":/",
            ":(top,exclude)benchmarks/results",
            ":(top,exclude)*.md",
        )
        return git("rev-parse", "HEAD") + "-dirty" * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None

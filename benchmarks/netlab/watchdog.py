"""Removes a lab whatever happened to the process that made it.

The lab starts this file as a script and holds the other end of its standard input. When the owner leaves
the lab, or dies of whatever signal, that pipe closes and the namespaces go: there is one way out only.
Should both processes be killed, the next lab finds the remains by the owner that their names carry.

Standard library only, and nothing from this package: the script starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NETNS = "/run/netns"
_NAME = re.compile(r"(netlab-(\d+)-(\d+)-\d+)\.\w+")


def started(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; with its id this names a process for good."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def new_name(number: int) -> str:
    """A name for this process's lab of that number."""
    return f"netlab-{os.getpid()}-{started(os.getpid())}-{number}"


def namespaces(lab: str) -> list[str]:
    """The namespaces of a lab that exist."""
    return sorted(entry for entry in _entries() if entry.startswith(lab + "."))


def stale() -> list[str]:
    """Labs whose owner is gone."""
    matches = filter(None, map(_NAME.fullmatch, _entries()))
    return sorted({m[1] for m in matches if started(int(m[2])) != int(m[3])})


def processes(lab: str) -> list[int]:
    """The processes inside a lab."""
    return [int(pid) for name in namespaces(lab) for pid in _ip("pids", name).split()]


def kill(lab: str) -> None:
    """Kill every process inside a lab, and those that they start meanwhile."""
    for _ in range(20):
        pids = processes(lab)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove(lab: str) -> None:
    """Kill what runs in a lab and take its namespaces down; its links go with them."""
    kill(lab)
    for name in namespaces(lab):
        _ip("delete", name)
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), glob.escape(lab) + "-*")):
        shutil.rmtree(folder, ignore_errors=True)


def _entries() -> list[str]:
    return os.listdir(NETNS) if os.path.isdir(NETNS) else []


def _ip(*args: str) -> str:
    # Two removers may meet (a watchdog and the next lab), so a name that is gone already is no error.
    return subprocess.run(["ip", "netns", *args], capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(sys.argv[1])

"""Remove a lab, whatever happens to the process that made it.

The lab starts this file as a script and holds the other end of its standard input. When the owner leaves
the lab, or dies of any signal, that pipe closes and the script removes the namespaces; no other code does.
If both processes are killed, the next lab finds the remains by the owner in their names.

The script imports the standard library only, so that it starts in milliseconds.
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
    """Start of a process in clock ticks since boot; together with its id it is unique."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def new_name(number: int) -> str:
    """Name for a lab of this process, by its number."""
    return f"netlab-{os.getpid()}-{started(os.getpid())}-{number}"


def namespaces(lab: str) -> list[str]:
    """The existing namespaces of a lab."""
    return sorted(entry for entry in _entries() if entry.startswith(lab + "."))


def stale() -> list[str]:
    """Names of labs whose owner has exited."""
    matches = filter(None, map(_NAME.fullmatch, _entries()))
    return sorted({m[1] for m in matches if started(int(m[2])) != int(m[3])})


def processes(lab: str) -> list[int]:
    """The processes inside a lab."""
    return [int(pid) for name in namespaces(lab) for pid in _ip("pids", name).split()]


def kill(lab: str) -> None:
    """Kill every process inside a lab, including those started meanwhile."""
    for _ in range(20):
        pids = processes(lab)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove(lab: str) -> None:
    """Kill all processes in a lab and delete its namespaces and with them its links."""
    kill(lab)
    for name in namespaces(lab):
        _ip("delete", name)
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), glob.escape(lab) + "-*")):
        shutil.rmtree(folder, ignore_errors=True)


def _entries() -> list[str]:
    return os.listdir(NETNS) if os.path.isdir(NETNS) else []


def _ip(*args: str) -> str:
    # A watchdog and the next lab may both remove a name, so a missing name is no error.
    return subprocess.run(["ip", "netns", *args], capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(sys.argv[1])

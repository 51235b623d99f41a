"""The variables ``COMPCOLL_*`` of the environment; errors name the variable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TypeVar

from compcoll.core.names import did_you_mean

__all__ = [
    "check_all",
    "checks",
    "device_buffers",
    "disabled",
    "nodes",
    "notice",
    "pretends_nodes",
    "read",
    "shared_memory",
    "summary",
    "table",
    "threads",
    "timeout",
    "trace",
    "warn_of_unknown",
]

T = TypeVar("T")
PREFIX = "COMPCOLL_"
#: Variables that users set, without the prefix.
NAMES = (
    "CHECK",
    "CODEC",
    "CONFIG",
    "CPU",
    "CUBINS",
    "DEVICE_BUFFERS",
    "DISABLE",
    "NODES",
    "NOTICE",
    "PYTHON",
    "SHARED_MEMORY",
    "SUMMARY",
    "TABLE",
    "THREADS",
    "TIMEOUT",
    "TRACE",
)
#: Variables that compcoll, its build, its benchmarks and its tests set for their own processes.
INTERNAL = (
    "CARRIED",
    "ENGINE_FLAGS",
    "EXECUTOR_SEED",
    "GPU_LOCK",
    "LIBPYTHON",
    "LIMIT",
    "SETTINGS",
    "SHARED",
    "STANDIN_DEVICES",
    "STANDIN_FAULTS",
)
#: Most threads that a rank may be given.
MOST_THREADS = 256
#: Seconds after which a call says that it waits.
_NOTICE_SECONDS = 60.0


def read(name: str, parse: Callable[[str], T]) -> T | None:
    """The value of a variable; None if it is not set, or empty.

    Raises
    ------
    ValueError, OSError
        Errors of ``parse``, preceded by the variable's name and value.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return parse(text)
    except OSError as error:
        raise type(error)(f"{name} = {text!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{name} = {text!r}: {error}") from None


def threads() -> int | None:
    """``COMPCOLL_THREADS``."""
    return read("COMPCOLL_THREADS", _threads)


def timeout() -> float:
    """``COMPCOLL_TIMEOUT``, in seconds; infinite if it is not set, as in MPI."""
    seconds = read("COMPCOLL_TIMEOUT", _seconds)
    return inf if seconds is None else seconds


def notice() -> float:
    """``COMPCOLL_NOTICE``, in seconds; infinite if it is 0, or if ``COMPCOLL_TIMEOUT`` is set."""
    seconds = read("COMPCOLL_NOTICE", lambda text: inf if text == "0" else _seconds(text))
    if timeout() < inf:
        return inf
    return _NOTICE_SECONDS if seconds is None else seconds


def device_buffers() -> bool:
    """``COMPCOLL_DEVICE_BUFFERS``."""
    return bool(read("COMPCOLL_DEVICE_BUFFERS", _flag))


def disabled() -> bool:
    """``COMPCOLL_DISABLE``, which the layer reads, too: programs under ``compcoll run`` run as without it."""
    return os.environ.get("COMPCOLL_DISABLE", "") not in ("", "0")


def nodes(size: int) -> list[int] | None:
    """``COMPCOLL_NODES``: the node of each rank of COMM_WORLD, which has ``size``, for tests."""
    return read("COMPCOLL_NODES", lambda text: _nodes(text, size))


def pretends_nodes() -> bool:
    """True if ``COMPCOLL_NODES`` is set: what calls take says nothing of a network."""
    return bool(read("COMPCOLL_NODES", str))


def shared_memory() -> bool:
    """``COMPCOLL_SHARED_MEMORY``: whether frames may lie in memory that the processes of a node share."""
    return read("COMPCOLL_SHARED_MEMORY", _flag) is not False


def summary() -> bool:
    """``COMPCOLL_SUMMARY``: true if a program whose world is wrapped prints a summary at its end."""
    return read("COMPCOLL_SUMMARY", _flag) is not False


def table() -> str | None:
    """``COMPCOLL_TABLE``: ``"off"``, ``"read"``, or the folder of the tables; None if it is not set."""
    return read("COMPCOLL_TABLE", _table)


def trace() -> Path | None:
    """``COMPCOLL_TRACE``, the folder that a trace of the program is written to; it is made."""
    return read("COMPCOLL_TRACE", _folder)


def check_all() -> None:
    """Read the variables that need neither ranks nor a folder; ValueError if one is wrong."""
    checks(default=False)
    for reader in (device_buffers, notice, shared_memory, summary, table, threads, timeout):
        reader()


def warn_of_unknown() -> None:
    """Print a line for each variable ``COMPCOLL_*`` that does not exist, and so has no effect."""
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in NAMES or name in INTERNAL:
            continue
        hint = did_you_mean(name, NAMES, PREFIX) or f"; after {PREFIX} come {', '.join(NAMES)}"
        print(f"compcoll: there is no variable {variable}, it is ignored{hint}", file=sys.stderr, flush=True)


def _folder(text: str) -> Path:
    path = Path(text)
    path.mkdir(parents=True, exist_ok=True)
    return path


def checks(default: bool) -> bool:
    """``COMPCOLL_CHECK``: whether ranks compare their calls; ``default`` where it is not set."""
    wanted = read("COMPCOLL_CHECK", _flag)
    return default if wanted is None else wanted


def _table(text: str) -> str:
    if text not in ("off", "read") and os.sep not in text:
        raise ValueError(f"not off, read or the path of a folder, with a {os.sep}")
    return text


def _threads(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_THREADS:
        raise ValueError(f"not a whole number from 0 to {MOST_THREADS}")
    return int(text)


def _nodes(text: str, size: int) -> list[int]:
    found = [part.strip() for part in text.split(",")]
    if len(found) != size or not all(part.isdecimal() and len(part) < 10 for part in found):
        raise ValueError(f"not {size} whole numbers with commas between them, one for each rank")
    return [int(part) for part in found]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError("not a number of seconds above 0")
    return seconds


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("neither 0 nor 1")
    return text == "1"

"""Internals of compiled code: runs of one schedule, received messages, layouts, virtual time.

An extension of tests/native, linked with compcoll's library, provides them.
"""

import sys
from pathlib import Path
from sysconfig import get_config_var

import compcoll

_NATIVE, _SUFFIX = Path(__file__).parents[1] / "native", get_config_var("EXT_SUFFIX")
_BUILT, _LINKED = _NATIVE / f"_internals{_SUFFIX}", Path(compcoll.__file__).parent / f"_native{_SUFFIX}"
if not _BUILT.exists() or _BUILT.stat().st_mtime < _LINKED.stat().st_mtime:
    raise ImportError(f"{_BUILT} is missing, or older than {_LINKED}: `make internals` builds it")
sys.path.append(str(_NATIVE))

from _internals import (  # noqa: E402
    LOOP,
    RUN,
    Running,
    entry_of,
    run_in_virtual_time,
    set_recv_hook,
    wait,
)

__all__ = ["LOOP", "RUN", "Running", "entry_of", "run_in_virtual_time", "set_recv_hook", "wait"]

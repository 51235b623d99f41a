"""MPI for ranks that torch's launchers or a program started: a client that finds the server by torch's store.

MPI is initialised when a process group first needs it. Importing mpi4py.MPI would initialise MPI for this
process alone, so this module imports it first, without initialising.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from compcoll.launch import forget_launcher, is_child, is_launched
from compcoll.launch.bootstrap import become_rank, import_mpi, initialise, listen, patch_method

__all__ = ["is_deferred", "missing", "prefix", "start_mpi"]


def _defer_mpi() -> bool:
    """Import MPI without initialising it; True unless mpiexec or its like started this process."""
    if is_child():
        forget_launcher()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        return False
    # Whatever launcher may have started torchrun.
    if is_launched() and "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    MPI = import_mpi()
    for name in ("Get_size", "Get_rank"):
        patch_method(MPI.Comm, name, _before_mpi(MPI, getattr(MPI.Comm, name)))
    return True


def _before_mpi(MPI: Any, method: Callable[[Any], int]) -> Callable[[Any], int]:
    """Wrap Get_size or Get_rank for calls before MPI is initialised, because MPI would end the process.

    Lightning calls Get_size to learn whether mpiexec has started it. A program that calls Get_rank uses MPI
    on its own: MPI is initialised for this process, as by the import of mpi4py.MPI, unless torch has given it
    a rank.
    """
    asks_size = method.__name__ == "Get_size"
    variable = "TORCHELASTIC_RUN_ID" if asks_size else "RANK"

    @wraps(method)
    def wrapped(self: Any) -> int:
        if not MPI.Is_initialized():
            if variable in os.environ:
                raise RuntimeError("MPI begins with the first process group of the backend compcoll")
            if asks_size:
                return 1
            initialise(MPI)
        patch_method(MPI.Comm, method.__name__, method)
        return method(self)

    return wrapped


#: True if `start_mpi` has to come before MPI is used.
is_deferred = _defer_mpi()


def start_mpi(store: Any, rank: int, size: int, timeout: float) -> None:
    """Initialise MPI with the ranks of a store; collective over all of them.

    Parameters
    ----------
    store : torch.distributed.Store
    rank, size : int
    timeout : float
        Seconds.

    Raises
    ------
    TimeoutError
        If ranks are missing; the error names them.
    RuntimeError
        See `compcoll.bootstrap`.
    """
    if size == 1 and not is_launched():
        initialise(import_mpi())
        return
    import_mpi(needed=True)
    key, listener = f"{prefix()}/server", None
    if rank == 0:
        # Other hosts may use names and addresses of this host that it does not know itself.
        listener = listen("", 0)
        port, host = listener.getsockname()[1], socket.gethostname()
        store.set(key, json.dumps({"host": host, "port": port, "secret": secrets.token_hex(16)}))
    if missing(store, [key], timeout):
        raise TimeoutError(f"rank {rank} of {size}: rank 0 did not come within {timeout:g} s")
    server = json.loads(store.get(key))
    # Ranks with a file store know only rank 0's name of its host.
    host = _host(store) or os.environ.get("MASTER_ADDR") or server["host"]
    become_rank(rank, size, (host, server["port"]), listener, server["secret"], timeout)


def prefix() -> str:
    """The beginning of all keys in torch's store."""
    return f"compcoll/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def missing(store: Any, keys: list[str], timeout: float) -> list[int]:
    """The indices of the keys that are not set in time."""
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        return [number for number, key in enumerate(keys) if not store.check([key])]
    return []


def _host(store: Any) -> str | None:
    """The host of a TCP store, which is rank 0's; None for other stores."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)

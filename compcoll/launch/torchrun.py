"""Ranks that torch's launchers or a program started: they find MPI's server by torch's store.

They do so when a group first needs MPI. Importing mpi4py.MPI would initialise MPI for this process alone, so
this module imports it first.
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
from itertools import chain
from typing import Any

from compcoll.launch import forget_launcher, is_child, is_launched
from compcoll.launch.bootstrap import become_rank, import_mpi, listen, patch_method, thread_level
from compcoll.launch.pmi import ranks_of

__all__ = ["is_deferred", "missing", "prefix", "start_mpi"]

#: Seconds by which others wait longer than rank 0, which says why it gives up.
_LONGER = 10.0


def _defer_mpi() -> bool:
    """Import MPI without initialising it, unless mpiexec or its like started this process."""
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
    """Get_size or Get_rank where MPI may not have begun, which the library would end the process for.

    Lightning asks for the size to learn whether mpiexec has started it. A program that asks for its rank uses
    MPI on its own, and begins it as the import of mpi4py.MPI does otherwise, unless it has one of torch's.
    """
    asks_size = method.__name__ == "Get_size"
    given = "TORCHELASTIC_RUN_ID" if asks_size else "RANK"

    @wraps(method)
    def asked(self: Any) -> int:
        if not MPI.Is_initialized():
            if given in os.environ:
                raise RuntimeError("MPI begins with the first process group of the backend compcoll")
            if asks_size:
                return 1
            MPI.Init_thread(thread_level(MPI))
        patch_method(MPI.Comm, method.__name__, method)
        return method(self)

    return asked


#: Whether `start_mpi` has to come before MPI is used.
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
        Where ranks are missing, which it names.
    OSError
        On all ranks, where rank 0 has no address that the others know it by.
    RuntimeError
        As `compcoll.bootstrap`.
    """
    if size == 1 and not is_launched():
        MPI = import_mpi()
        MPI.Init_thread(thread_level(MPI))
        return
    import_mpi(needed=True)
    own = prefix()
    host = _host(store) or os.environ.get("MASTER_ADDR")
    if not host:  # a file brings the ranks together
        if rank == 0:
            store.set(f"{own}/host", socket.gethostname())
        host = _told_by_0(store, f"{own}/host", rank, size, timeout)
    mine = _addresses(host)
    store.set(f"{own}/addresses/{rank}", json.dumps(mine))
    listeners: list[socket.socket] = []
    if rank == 0:
        try:
            opened = _open(listeners, _told(store, own, size, timeout), host)
        except OSError as error:
            store.set(f"{own}/server", json.dumps({"error": str(error)}))
            raise
        store.set(f"{own}/server", json.dumps(opened))
    answer = json.loads(_told_by_0(store, f"{own}/server", rank, size, timeout))
    if "error" in answer:
        raise OSError(answer["error"])
    address = next(address for address in mine if address in answer["ports"])
    place = address, answer["ports"][address]
    become_rank(rank, size, place, listeners, answer["secret"], timeout)


def prefix() -> str:
    """What all keys in torch's store begin with."""
    return f"compcoll/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _host(store: Any) -> str | None:
    """The host of a store over TCP, which is rank 0's; None of others."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)


def _told_by_0(store: Any, key: str, rank: int, size: int, timeout: float) -> str:
    """What rank 0 has said, or will say."""
    if missing(store, [key], timeout + _LONGER):
        raise TimeoutError(f"rank {rank} of {size}: rank 0 did not come within {timeout:g} s")
    return store.get(key).decode()


def _addresses(host: str) -> list[str]:
    """The addresses by which this process knows a host; none where it does not."""
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))
    except OSError:
        return []


def _told(store: Any, own: str, size: int, timeout: float) -> list[list[str]]:
    """The addresses that each rank knows rank 0's host by."""
    keys = [f"{own}/addresses/{rank}" for rank in range(size)]
    late = missing(store, keys, timeout)
    if late:
        raise TimeoutError(f"{ranks_of(late)} of {size} did not come within {timeout:g} s")
    return [json.loads(store.get(key)) for key in keys]


def missing(store: Any, keys: list[str], timeout: float) -> list[int]:
    """The indices of the keys that are not set in time."""
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        return [number for number, key in enumerate(keys) if not store.check([key])]
    return []


def _open(listeners: list[socket.socket], told: list[list[str]], host: str) -> dict[str, Any]:
    """Listen at all addresses of this host by which the ranks know it."""
    ports = {}
    for address in dict.fromkeys(chain.from_iterable(told)):
        try:
            listeners += listen([(address, 0)])
        except OSError:  # an address that only others know, of a translator for instance
            continue
        ports[address] = listeners[-1].getsockname()[1]
    lost = [rank for rank, addresses in enumerate(told) if not ports.keys() & set(addresses)]
    if lost:
        known = ", ".join(dict.fromkeys(chain.from_iterable(told[rank] for rank in lost))) or "nothing"
        for listener in listeners:
            listener.close()
        raise OSError(
            f"{ranks_of(lost)} know rank 0's host {host} as {known}; rank 0 has no such address and "
            f"listens at {', '.join(ports) or 'none'}"
        )
    return {"ports": ports, "secret": secrets.token_hex(16)}

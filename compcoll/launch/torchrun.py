"""Ranks that torchrun started: they find MPI's server by torch's store, when a group first needs MPI.

Importing mpi4py.MPI would initialise MPI for this process alone, so this module imports it first.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from datetime import timedelta
from itertools import chain
from typing import Any

from compcoll.launch import is_launched
from compcoll.launch.bootstrap import become_rank, import_mpi, listen
from compcoll.launch.pmi import ranks_of

__all__ = ["is_deferred", "start_mpi"]

#: Seconds by which others wait longer than rank 0, which says why it gives up.
_LONGER = 10.0


def _defer_mpi() -> bool:
    """Import MPI without initialising it, where torchrun or its like started this process."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        return False
    given = {"RANK", "WORLD_SIZE"} <= os.environ.keys() and not is_launched()
    if given or "TORCHELASTIC_RUN_ID" in os.environ:  # whatever launcher may have started torchrun
        import_mpi()
        return True
    return False


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
    import_mpi(needed=True)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix, host = f"compcoll/{attempt}", os.environ.get("MASTER_ADDR") or socket.gethostname()
    mine = _addresses(host)
    store.set(f"{prefix}/addresses/{rank}", json.dumps(mine))
    listeners: list[socket.socket] = []
    if rank == 0:
        try:
            answer = _open(listeners, _told(store, prefix, size, timeout), host)
        except OSError as error:
            store.set(f"{prefix}/server", json.dumps({"error": str(error)}))
            raise
        store.set(f"{prefix}/server", json.dumps(answer))
    elif _missing(store, [f"{prefix}/server"], timeout + _LONGER):
        raise TimeoutError(f"rank {rank} of {size}: rank 0 did not come within {timeout:g} s")
    answer = json.loads(store.get(f"{prefix}/server"))
    if "error" in answer:
        raise OSError(answer["error"])
    address = next(address for address in mine if address in answer["ports"])
    place = address, answer["ports"][address]
    become_rank(rank, size, place, listeners, answer["secret"], timeout)


def _addresses(host: str) -> list[str]:
    """The addresses by which this process knows a host; none where it does not."""
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))
    except OSError:
        return []


def _told(store: Any, prefix: str, size: int, timeout: float) -> list[list[str]]:
    """The addresses that each rank knows rank 0's host by."""
    keys = [f"{prefix}/addresses/{rank}" for rank in range(size)]
    missing = _missing(store, keys, timeout)
    if missing:
        raise TimeoutError(f"{ranks_of(missing)} of {size} did not come within {timeout:g} s")
    return [json.loads(store.get(key)) for key in keys]


def _missing(store: Any, keys: list[str], timeout: float) -> list[int]:
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
            f"{ranks_of(lost)} know MASTER_ADDR={host} as {known}; rank 0 has no such address and listens at "
            f"{', '.join(ports) or 'none'}"
        )
    return {"ports": ports, "secret": secrets.token_hex(16)}

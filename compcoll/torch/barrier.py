"""A barrier that can say who does not come."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist
from mpi4py import MPI

from compcoll.torch.core import Core

__all__ = ["monitored"]

#: Seconds between two looks.
_PAUSE = 1e-3


def monitored(core: Core, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """Wait for all ranks; rank 0 names those that have not come in time.

    Parameters
    ----------
    core : Core
    timeout : timedelta, optional
        The group's if there is none.
    wait_all_ranks : bool
        Whether to name all of them, not just the first.

    Raises
    ------
    RuntimeError
        On every rank that has come, where another has not.
    """
    core.check_usable()
    core.flush()
    seconds = timeout.total_seconds() if timeout is not None else core.timeout
    until, comm, tag = time.monotonic() + seconds, core.group.private_comm, core.group.pairwise_tags[0]
    if core.rank:
        _wait(comm.Isend([b"", MPI.BYTE], 0, tag), until, 0, seconds)
        answer = bytearray(1)
        _wait(comm.Irecv([answer, MPI.BYTE], 0, tag), until + 1.0, 0, seconds)
        if answer[0]:
            raise RuntimeError("monitored_barrier: rank 0 has found that not all ranks have come")
        return
    arriving = {rank: comm.Irecv([bytearray(0), MPI.BYTE], rank, tag) for rank in range(1, core.size)}
    missing: list[int] = []
    for rank, request in arriving.items():
        try:
            _wait(request, until, rank, seconds)
        except RuntimeError:
            missing.append(rank)
            if not wait_all_ranks:
                break
    note = bytes([bool(missing)])
    sent = [comm.Isend([note, MPI.BYTE], rank, tag) for rank in arriving]
    if missing:
        core.break_up(f"ranks {missing} did not come to a monitored_barrier")
        raise RuntimeError(
            f"Rank 0 timed out in monitoredBarrier: {', '.join(f'rank {rank}' for rank in missing)} did "
            f"not come within {seconds:g} s"
        )
    MPI.Request.Waitall(sent)


def _wait(request: MPI.Request, until: float, rank: int, seconds: float) -> None:
    while not request.Test():
        if time.monotonic() > until:
            raise dist.DistBackendError(f"monitored_barrier: rank {rank} did not answer within {seconds:g} s")
        time.sleep(_PAUSE)

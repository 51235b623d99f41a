"""Trial of whether MPI really takes device memory: a query, then one process alone, then all ranks.

If MPI reads a device's address as the host's, the system ends it and the program. MPI is therefore queried
first; if it has no query, a child process tries to send a device buffer to itself. Only then do the ranks
send each other device buffers, small and large, and compare the received bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from time import monotonic
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.core.errors import DeviceBufferError
from compcoll.devices import aware

__all__ = ["check"]

#: Bytes of the trials: an eager message, and a rendezvous.
SIZES = (1 << 10, 4 << 20)
SECONDS = 60.0
#: Prefixes of the environment variables that launchers set for their ranks.
_LAUNCHERS = ("PMI", "PMIX", "OMPI_", "PRTE_", "HYDRA", "MPI_LOCAL", "MPIEXEC", "SLURM_")
_CANNOT_START = 77
_CHILD = f"""
import sys
try:
    from mpi4py import MPI
except BaseException:
    sys.exit({_CANNOT_START})
from compcoll.devices.handover import exchange
exchange(MPI.COMM_SELF)
"""
_UNFINISHED: list[Any] = []


def check_gpu() -> None:
    """Raise RuntimeError if CuPy has no GPU."""
    try:
        import cupy

        found = cupy.cuda.is_available()
    except ImportError:
        found = False
    if not found:
        raise RuntimeError("CuPy finds no GPU")


def check(comm: MPI.Intracomm) -> None:
    """Raise `DeviceBufferError` on all ranks if any rank's device memory cannot be sent; collective."""
    for step in (_ask, _try_alone, exchange):
        problem = ""
        try:
            step(comm)
        except Exception as error:
            problem = str(error) or type(error).__name__
        found = [(rank, text) for rank, text in enumerate(comm.allgather(problem)) if text]
        if found:
            rank, text = found[0]
            more = f" (and {len(found) - 1} other ranks)" if len(found) > 1 else ""
            raise DeviceBufferError(f"device_buffers=True cannot work: on rank {rank}{more} {text}")


def _ask(comm: MPI.Intracomm) -> None:
    check_gpu()
    if aware.reported() is False:
        name = MPI.Get_library_version().split("\n")[0].strip()
        raise RuntimeError(f"MPI says that it does not take device memory: {name}")


def _try_alone(comm: MPI.Intracomm) -> None:
    """Try in one process for each rank; no result if it cannot be started without the launcher."""
    if aware.reported() is not None:
        return
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD], env=environment, timeout=SECONDS, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a process sent itself a device buffer and took {SECONDS:g} s and more") from None
    if child.returncode < 0:
        raise RuntimeError(f"MPI was ended by signal {-child.returncode} when it was given a device buffer")
    if child.returncode not in (0, _CANNOT_START):
        last = child.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"a process could not send itself a device buffer: {' '.join(last)}")


def exchange(comm: MPI.Intracomm) -> None:
    """Send device buffers round the ring of ranks; RuntimeError for wrong bytes, or none in time."""
    import cupy

    damaged = []
    for nbytes in SIZES:
        mine = cupy.asarray(_pattern(comm.rank, nbytes))
        came = cupy.asarray(np.zeros(nbytes, np.uint8))
        cupy.cuda.get_current_stream().synchronize()
        _transfer(comm, mine, came)
        if not np.array_equal(came.get(), _pattern((comm.rank - 1) % comm.size, nbytes)):
            damaged.append(nbytes)  # the others still wait for this rank
    if damaged:
        raise RuntimeError(f"{damaged[0]} bytes of device memory arrived as other bytes")


def _transfer(comm: MPI.Intracomm, mine: Any, came: Any) -> None:
    requests = [
        comm.Irecv([came, MPI.BYTE], (comm.rank - 1) % comm.size, 0),
        comm.Isend([mine, MPI.BYTE], (comm.rank + 1) % comm.size, 0),
    ]
    end = monotonic() + SECONDS
    while not MPI.Request.Testall(requests):
        if monotonic() > end:
            _UNFINISHED.append((requests, mine, came))  # MPI may still use them
            raise RuntimeError(f"{mine.nbytes} bytes of device memory did not arrive within {SECONDS:g} s")


def _pattern(rank: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(0, 256, nbytes, np.uint8)

"""What ranks get of cores and of memory while all of them are at work, measured."""

from __future__ import annotations

from time import perf_counter, process_time

import numpy as np
from mpi4py import MPI

from compcoll.algorithms.stream import recv_block, send_block
from compcoll.codecs import codec
from compcoll.runtime.host import HostWork
from compcoll.runtime.mpi import MPIRuntime
from compcoll.runtime.pool import Pool

__all__ = ["measure_call", "measure_memory", "measure_sharing"]

#: Chunks, of so few bytes that only their number matters, by which the cost of one is measured.
N_CHUNKS, CHUNK_NBYTES = 200, 1 << 10
#: More than caches hold.
COPIED_NBYTES = 64 << 20


def measure_sharing(comm: MPI.Intracomm, seconds: float = 0.1) -> float:
    """How many times longer work takes while all ranks work, the most on any of them; collective.

    The least of several times: what else runs on the machine comes and goes.
    """
    return min(_sharing(comm, seconds / 3) for _ in range(5))


def _sharing(comm: MPI.Intracomm, seconds: float) -> float:
    sample = np.ones(1 << 12)
    comm.Barrier()
    start, own = perf_counter(), process_time()
    while (spent := perf_counter() - start) < seconds:
        sample.sum()
    return max(1.0, comm.allreduce(spent / max(process_time() - own, 1e-9), MPI.MAX))


def measure_memory(comm: MPI.Intracomm, seconds: float = 0.1) -> float:
    """Bytes read and written per second of a processor's time while all ranks copy; collective."""
    source = np.ones(COPIED_NBYTES, np.uint8)
    target = np.ones_like(source)
    comm.Barrier()
    copied, start, own = 0, perf_counter(), process_time()
    while perf_counter() - start < seconds:
        np.copyto(target, source)
        copied += 2 * source.nbytes
    return comm.allreduce(copied / max(process_time() - own, 1e-9), MPI.MIN)


def measure_call(comm: MPI.Intracomm) -> float:
    """Seconds of a processor that a chunk costs where it is coded, besides its bytes; collective."""
    own = MPI.COMM_SELF.Dup()
    source = np.zeros(N_CHUNKS * CHUNK_NBYTES, np.uint8)
    target = np.empty_like(source)

    async def to_itself(rt: MPIRuntime) -> None:
        rt.start(recv_block(rt, target, 0))
        await send_block(rt, source, 0)

    seconds = []
    for _ in range(5):
        rt = MPIRuntime(own, HostWork(codec("raw"), Pool()), CHUNK_NBYTES, (0, 1))
        start = process_time()
        rt.run(to_itself(rt))
        seconds.append(process_time() - start)
    own.Free()
    return comm.allreduce(min(seconds), MPI.MAX) / (2 * N_CHUNKS)

"""What ranks get of cores and of the network while all of them are at work, measured."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time, sleep

import numpy as np
from mpi4py import MPI

from compcoll.algorithms.stream import recv_block, send_block
from compcoll.choices import chunk_nbytes
from compcoll.codecs import codec
from compcoll.runtime.host import HostWork
from compcoll.runtime.mpi import MPIRuntime
from compcoll.runtime.pool import Pool
from compcoll.runtime.simulated import Link

__all__ = [
    "all_done",
    "leaders_of",
    "measure_call",
    "measure_cpu",
    "measure_memory",
    "measure_patterns",
    "measure_sharing",
]

#: Sizes of messages, from what socket buffers hold to what lasts, and how often they are exchanged.
REPEATS = {1 << 20: 15, 4 << 20: 9, 16 << 20: 5}
#: Larger messages than a round of exchanges may have are left out.
ROUND_SECONDS = 0.5
#: Pieces of those that are sent without blocking, as chunks are.
PIECE_NBYTES = 256 << 10
#: Message whose cost to processors is measured, and the pause between two looks at it, in seconds.
CPU_NBYTES, PAUSE = 4 << 20, 5e-5
#: Chunks, of so few bytes that only their number matters, by which the cost of one is measured.
N_CHUNKS, CHUNK_NBYTES = 200, 1 << 10
#: More than caches hold.
COPIED_NBYTES = 64 << 20


def leaders_of(comm: MPI.Intracomm) -> list[int]:
    """For each rank the first one of its node; collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.allgather(node.bcast(comm.rank))
    node.Free()
    return leaders


def measure_sharing(comm: MPI.Intracomm, seconds: float = 0.1) -> float:
    """How many times longer work takes while all ranks work, the most on any of them; collective."""
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


def measure_cpu(comm: MPI.Intracomm) -> float:
    """Seconds that a byte costs the processors of both ends in the kernel and in MPI; collective.

    Where waiting takes no processor's time, unlike in `measure_patterns`.
    """
    around = _around(comm)
    send, recv = np.ones(CPU_NBYTES, np.uint8), np.empty(CPU_NBYTES, np.uint8)
    seconds = []
    for _ in range(5):
        comm.Barrier()
        own = process_time()
        _at_once(comm, around, send, recv, lambda: sleep(PAUSE))
        seconds.append(process_time() - own)
        all_done(comm)
    return comm.allreduce(median(seconds), MPI.SUM) / (comm.size * len(around) * 2 * CPU_NBYTES)


def all_done(comm: MPI.Intracomm) -> None:
    """A barrier that leaves the cores to those who are late."""
    request = comm.Ibarrier()
    while not request.Test():
        sleep(1e-3)


def _around(comm: MPI.Intracomm) -> list[tuple[int, int]]:
    """Ranks to send to and to receive from, the next ones first."""
    rank, size = comm.rank, comm.size
    return [((rank + d) % size, (rank - d) % size) for d in range(1, min(size, 4))]


def measure_patterns(comm: MPI.Intracomm, network: Link) -> dict[str, list[tuple[int, float]]]:
    """What exchanges of all ranks at once get of the network; see `MachineProfile`; collective.

    Nothing for two ranks, whose exchange gives the bandwidth, and where ranks share nodes.
    """
    rank, size = comm.rank, comm.size
    if size < 3 or len(set(leaders_of(comm))) < size:
        return {}
    around, pool = _around(comm), Pool()
    steps = range(1, len(around) + 1)
    patterns: dict[str, Callable[[np.ndarray, np.ndarray], object]] = {
        "shift": lambda send, recv: _in_turn(comm, around, send, recv),
        "ring": lambda send, recv: _in_turn(comm, around[:1] * len(steps), send, recv),
        "all": lambda send, recv: _streamed(comm, around, send, recv, pool),
    }
    if not size & (size - 1):
        partners = [(rank ^ d, rank ^ d) for d in steps]
        patterns["pairs"] = lambda send, recv: _in_turn(comm, partners, send, recv)
    sizes = [n for n in REPEATS if len(steps) * n / network.bandwidth < ROUND_SECONDS]
    return {
        name: [(n, _share(comm, network, exchange, n, len(steps))) for n in sizes]
        for name, exchange in patterns.items()
    }


def _in_turn(comm: MPI.Intracomm, peers: list[tuple[int, int]], send: np.ndarray, recv: np.ndarray) -> None:
    """Blocking calls, one after the other; a row of the arrays for each."""
    for (dest, source), block, into in zip(peers, send, recv, strict=True):
        comm.Sendrecv(block, dest, recvbuf=into, source=source)


def _at_once(
    comm: MPI.Intracomm, peers: list[tuple[int, int]], send: np.ndarray, recv: np.ndarray,
    wait: Callable[[], None],
) -> None:  # fmt: skip
    """All messages in pieces and under way together."""
    pieces = range(0, send.size, PIECE_NBYTES)
    requests = [comm.Irecv(recv[i : i + PIECE_NBYTES], source) for i in pieces for _, source in peers]
    requests += [comm.Isend(send[i : i + PIECE_NBYTES], dest) for i in pieces for dest, _ in peers]
    while not MPI.Request.Testall(requests):
        wait()


def _streamed(
    comm: MPI.Intracomm, peers: list[tuple[int, int]], send: np.ndarray, recv: np.ndarray, pool: Pool
) -> None:
    """As collectives do it, chunk by chunk: with few cores, their work and copies hold the network up."""

    async def exchange(rt: MPIRuntime) -> None:
        for (dest, source), block, into in zip(peers, send, recv, strict=True):
            rt.start(recv_block(rt, into, source))
            rt.start(send_block(rt, block, dest))

    raw = codec("raw")
    chunk = chunk_nbytes("Allgather", send[0].nbytes, comm.size, raw)
    rt = MPIRuntime(comm, HostWork(raw, pool), chunk, (0, 1))
    rt.run(exchange(rt))


def _share(comm: MPI.Intracomm, network: Link, exchange: Callable, nbytes: int, messages: int) -> float:
    """Part of the bandwidth that a round of exchanges reaches, in the median."""
    send = np.ones((messages, nbytes), np.uint8)
    recv = np.empty_like(send)
    seconds = []
    for _ in range(REPEATS[nbytes]):
        comm.Barrier()
        start = perf_counter()
        exchange(send, recv)
        seconds.append(comm.allreduce(perf_counter() - start, MPI.MAX))
    return min(1.0, messages * (nbytes / network.bandwidth + network.latency) / median(seconds))

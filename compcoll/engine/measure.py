"""Measuring a machine: links by MPI itself, processors and memory, this library's engine, and codecs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from statistics import median
from time import perf_counter, process_time, sleep, time

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.codecs.registry import default_specs
from compcoll.core import dtypes
from compcoll.engine import _engine
from compcoll.engine.coding import coding
from compcoll.engine.start import start_engine
from compcoll.model.advisor import measure_speed
from compcoll.model.noise import Noise
from compcoll.model.plain import by_the_book
from compcoll.model.predict import Call
from compcoll.model.profile import TCP_CPU, UNKNOWN, CodecSpeed, MachineProfile, fingerprint
from compcoll.schedule.trace import Tracer, trace
from compcoll.schedule.virtual import Link

__all__ = [
    "estimate_link",
    "leaders_of",
    "measure_codecs",
    "measure_links",
    "measure_machine",
    "midmean",
    "sample",
    "slowest",
    "tune",
]

#: Types of values on which `tune` measures codecs.
DTYPES = (np.dtype("float32"), np.dtype("float64"), dtypes.BFLOAT16)
#: Networks with more latency go through the kernel, whose work per message and byte is counted.
KERNEL_LATENCY = 3e-6
#: Bytes of messages that tell what a byte costs, and what a message costs, and of them at once; the pause
#: between two looks at them, in seconds.
PIECE_NBYTES, SMALL_NBYTES, PIECES, PAUSE = 256 << 10, 64, 16, 5e-5
#: More than caches hold.
COPIED_NBYTES = 64 << 20
#: Operations, on so few bytes that only their number matters, by which the cost of one is measured.
N_CHUNKS, CHUNK = 256, 1024
#: The exchange of which plain MPI's part of the bandwidth is learnt.
PLAIN_NBYTES = 1 << 20


def tune(
    comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None
) -> tuple[MachineProfile, Noise]:
    """Measure the machine that the ranks of a communicator run on; collective, well under half a minute.

    Returns
    -------
    machine : MachineProfile
    noise : Noise
        Of all ranks.
    """
    noise = Noise()
    machine = measure_machine(comm, report, noise)
    codecs = measure_codecs(comm, report)
    noise = Noise.of_all(comm.allgather(noise))
    machine = replace(machine, codecs=codecs, date=comm.bcast(time()), spread=noise.spread)
    noise.check(machine)
    return machine, noise


def measure_machine(
    comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None, noise: Noise | None = None
) -> MachineProfile:
    """All of a profile but the codecs; collective. The spreads of this rank go to ``noise``."""
    noise = noise or Noise()
    report("links")
    links = measure_links(comm, noise=noise)
    report("processors")
    machine = replace(
        UNKNOWN,
        name=comm.bcast(fingerprint()),
        memory=_memory(comm),
        call=_call(comm),
        sharing=_sharing(comm, noise),
        library=MPI.get_vendor()[0],
        source="compcoll tune",
    ).with_links(**links)
    report("plain MPI")
    return replace(machine, plain=_plain(comm, machine, noise))


def measure_codecs(
    comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None
) -> dict[str, CodecSpeed]:
    """The least speeds of any rank by spec/dtype, of every codec that all ranks know; collective."""
    keys = [
        f"{codec(spec).spec}/{dtype}" for dtype in DTYPES for spec in default_specs(dtype) if spec != "raw"
    ]
    known = set(keys).intersection(*comm.allgather(keys))
    speeds = {}
    for key in filter(known.__contains__, comm.bcast(keys)):
        report(key)
        spec, _, name = key.rpartition("/")
        dtype = next(dtype for dtype in DTYPES if str(dtype) == name)
        speeds[key] = slowest(comm, measure_speed(codec(spec), sample(dtype)))
    return speeds


def sample(dtype: np.dtype, n: int = 1 << 18) -> np.ndarray:
    """Smooth values with noise, as fields are; normal ones, as weights are, for 16 bits."""
    rng = np.random.default_rng(1)
    if dtype.itemsize == 2:
        return (0.02 * rng.standard_normal(n)).astype(dtype)
    return (np.sin(np.arange(n) * 1e-3) + 1e-3 * rng.standard_normal(n)).astype(dtype)


def slowest(comm: MPI.Intracomm, speed: CodecSpeed) -> CodecSpeed:
    """The least figures of any rank; collective."""
    return CodecSpeed(*(comm.allreduce(x, MPI.MIN) for x in astuple(speed)))


def midmean(values: Iterable[float]) -> float:
    """The interquartile mean: no single value changes it much, nor which of two modes has the median."""
    ordered = np.sort(np.fromiter(values, np.float64))
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


# -- links


def leaders_of(comm: MPI.Intracomm) -> list[int]:
    """For each rank the first one of its node; collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.allgather(node.bcast(comm.rank))
    node.Free()
    return leaders


def measure_links(
    comm: MPI.Intracomm, seconds: float = 0.1, noise: Noise | None = None
) -> dict[str, Link | None]:
    """The links ``network`` and ``node``, the same on all ranks; collective.

    None where no two ranks are at the ends of such a link. The spreads of this rank go to ``noise``.
    """
    noise = noise or Noise()
    leaders = leaders_of(comm)
    near = next((r for r in range(1, comm.size) if leaders[r] == leaders[0]), None)
    far = next((r for r in range(1, comm.size) if leaders[r] != leaders[0]), None)
    inside = _measure_link(comm, near, seconds, noise, "inside a node") if near is not None else None
    between = _measure_link(comm, far, seconds, noise, "between nodes") if far is not None else None
    if between is not None and between.latency > KERNEL_LATENCY:
        message, piece = _processors(comm, SMALL_NBYTES), _processors(comm, PIECE_NBYTES)
        between = replace(between, overhead=message, cpu=noise.cpu(message, piece, PIECE_NBYTES))
    return {"network": between, "node": inside}


def estimate_link(comm: MPI.Intracomm, peer: int) -> Link:
    """The link between rank 0 and a peer, as well as it can be known in less than 0.1 s; collective."""
    link = _measure_link(comm, peer, 0.02, Noise(), "", repeats=4)
    return replace(link, cpu=TCP_CPU) if link.latency > KERNEL_LATENCY else link


def _measure_link(
    comm: MPI.Intracomm, peer: int, seconds: float, noise: Noise, where: str, repeats: int = 12
) -> Link:
    """Rank 0 and a peer exchange messages, both ways at once as collectives do."""
    link = None
    if comm.rank in (0, peer):
        other = peer if comm.rank == 0 else 0
        small = _exchange(comm, other, 8, 20)
        nbytes, spent = 256 << 10, 0.0
        while spent < seconds / 4 and nbytes < 64 << 20:
            nbytes *= 2
            mine = min(_exchange(comm, other, nbytes, 2))
            spent = max(mine, comm.sendrecv(mine, other, source=other))  # the same at both ends
        large = _exchange(comm, other, nbytes, repeats)
        spent = min(spent, max(min(large), comm.sendrecv(min(large), other, source=other)))
        link = noise.link(where, min(small), nbytes, spent)
        noise.add(f"the latency {where}", small)
        noise.add(f"a message of {nbytes >> 10} KiB {where}", large)
    _all_done(comm)  # the others leave the cores to these two: MPI waits with all its might
    return comm.bcast(link)


def _exchange(comm: MPI.Intracomm, other: int, nbytes: int, repeats: int) -> list[float]:
    """Seconds in which two ranks send each other a message at the same time."""
    send, recv = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    seconds = []
    for _ in range(repeats + 1):
        comm.Sendrecv(send[:1], other, recvbuf=recv[:1], source=other)
        start = perf_counter()
        comm.Sendrecv(send, other, recvbuf=recv, source=other)
        seconds.append(perf_counter() - start)
    return seconds


def _processors(comm: MPI.Intracomm, nbytes: int) -> float:
    """Seconds of a processor, at either end, for a message in the kernel and in MPI; collective.

    Where waiting takes no processor's time, unlike in MPI's own calls.
    """
    rank, size = comm.rank, comm.size
    steps = range(1, min(size, 4))
    send, recv = np.ones(nbytes * PIECES, np.uint8), np.empty(nbytes * PIECES, np.uint8)
    pieces = range(0, nbytes * PIECES, nbytes)
    seconds = []
    for _ in range(5):
        comm.Barrier()
        own = process_time()
        requests = [comm.Irecv(recv[i : i + nbytes], (rank - d) % size) for i in pieces for d in steps]
        requests += [comm.Isend(send[i : i + nbytes], (rank + d) % size) for i in pieces for d in steps]
        while not MPI.Request.Testall(requests):
            sleep(PAUSE)
        seconds.append(process_time() - own)
        _all_done(comm)
    return comm.allreduce(median(seconds), MPI.SUM) / (size * len(steps) * 2 * PIECES)


def _all_done(comm: MPI.Intracomm) -> None:
    """A barrier that leaves the cores to those who are late."""
    request = comm.Ibarrier()
    while not request.Test():
        sleep(1e-3)


def _plain(comm: MPI.Intracomm, machine: MachineProfile, noise: Noise) -> float:
    """The part of the network's bandwidth that MPI's own exchange of all ranks gets of it; collective."""
    nodes = len(set(leaders_of(comm)))
    if nodes < 2:
        return 1.0
    call = Call("Alltoall", PLAIN_NBYTES, comm.size, -(-comm.size // nodes))
    send = np.ones((comm.size, PLAIN_NBYTES), np.uint8)
    recv = np.empty_like(send)
    seconds, expected = [], by_the_book(call, machine)
    for _ in range(min(24, max(3, int(2 / expected)))):
        comm.Barrier()
        start = perf_counter()
        comm.Alltoall(send, recv)
        seconds.append(comm.allreduce(perf_counter() - start, MPI.MAX))
    noise.add("plain MPI's Alltoall", seconds)
    fixed = by_the_book(replace(call, nbytes=0), machine)
    return float(np.clip((expected - fixed) / max(midmean(seconds) - fixed, 1e-9), 0.02, 1.0))


# -- processors


def _sharing(comm: MPI.Intracomm, noise: Noise, seconds: float = 0.03) -> float:
    """How many times longer work takes while all ranks work, the most on any of them; collective.

    The least of several times: what else runs on the machine comes and goes. What is above the number of
    ranks for each core is noise.
    """
    values, found = np.ones(1 << 12), []
    for _ in range(5):
        comm.Barrier()
        start, own = perf_counter(), process_time()
        while (spent := perf_counter() - start) < seconds:
            values.sum()
        found.append(max(1.0, comm.allreduce(spent / max(process_time() - own, 1e-9), MPI.MAX)))
    alone = _ranks_per_core(comm)
    noise.add("the time of a rank's work", (alone, max(alone, min(found)), max(alone, min(found))))
    return min(found)


def _ranks_per_core(comm: MPI.Intracomm) -> float:
    """Ranks of this node for each core that they may use, at least 1; collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = set().union(*node.allgather(os.sched_getaffinity(0)))
    ranks = node.size
    node.Free()
    return max(1.0, ranks / len(cores))


def _memory(comm: MPI.Intracomm, seconds: float = 0.1) -> float:
    """Bytes read and written per second of a processor's time while all ranks copy; collective."""
    source = np.ones(COPIED_NBYTES, np.uint8)
    target = np.ones_like(source)
    comm.Barrier()
    copied, start, own = 0, perf_counter(), process_time()
    while perf_counter() - start < seconds:
        np.copyto(target, source)
        copied += 2 * source.nbytes
    return comm.allreduce(copied / max(process_time() - own, 1e-9), MPI.MIN)


def _call(comm: MPI.Intracomm) -> float:
    """Seconds of a processor that the engine takes for one operation, besides its bytes; collective."""

    async def there_and_back(rt: Tracer, send: list, recv: list) -> None:
        for chunk, into in zip(rt.chunks(send[0]), rt.chunks(recv[0]), strict=True):
            await rt.decode(await rt.encode(chunk), into)

    n = N_CHUNKS * CHUNK
    schedule = trace(there_and_back, 0, 1, [n], [n], CHUNK)
    source, target = np.zeros(n, np.uint8), np.empty(n, np.uint8)
    start_engine()
    seconds = []
    for _ in range(9):
        start = process_time()
        run = _engine.Running(
            schedule.compiled,
            coding(codec("raw"), source.dtype),
            _engine.handle(MPI.COMM_SELF),
            0,
            1,
            [source, target],
        )
        _engine.wait(run)
        seconds.append(process_time() - start)
    return comm.allreduce(min(seconds), MPI.MAX) / len(schedule)

"""Measuring a machine: links by MPI itself, codecs on data of the kinds that they are made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from math import inf
from time import perf_counter

import numpy as np
from mpi4py import MPI

from compcoll import dtypes
from compcoll.codecs import codec
from compcoll.model.advisor import measure_speed
from compcoll.model.profile import CodecSpeed, MachineProfile, fingerprint
from compcoll.model.sharing import (
    all_done,
    leaders_of,
    measure_call,
    measure_cpu,
    measure_memory,
    measure_patterns,
    measure_sharing,
)
from compcoll.runtime.simulated import Link

__all__ = ["CODECS", "measure_codecs", "measure_links", "measure_machine", "tune"]

#: What `tune` measures: codecs and the types that they serve.
CODECS = {
    "zfp:rate=8": ("float32", "float64"),
    "zfp:rate=16": ("float32", "float64"),
    "mpc": ("float32", "float64"),
    "lossless": ("float32", "float64", "bfloat16"),
    "szp:rel=0.001": ("float32", "float64"),
    "int8": ("float32", "bfloat16"),
}
#: One node's memory, where there is no second rank to measure with.
MEMORY = Link(1e-6, 8e9)
#: Networks with more latency go through the kernel, whose work per byte is counted.
KERNEL_LATENCY = 3e-6


def tune(comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None) -> MachineProfile:
    """Measure the machine that the ranks of a communicator run on; collective, well under a minute."""
    machine = measure_machine(comm, report)
    codecs = {}
    for key, speed in measure_codecs():
        report(key)
        codecs[key] = CodecSpeed(*(comm.allreduce(x, MPI.MIN) for x in astuple(speed)))
    return replace(machine, codecs=codecs)


def measure_machine(comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None) -> MachineProfile:
    """All of a profile but the codecs; collective."""
    report("links")
    network, node = measure_links(comm)
    report("patterns")
    return MachineProfile(
        comm.bcast(fingerprint()), network, node, memory=measure_memory(comm), call=measure_call(comm),
        sharing=measure_sharing(comm), library=MPI.get_vendor()[0],
        patterns=measure_patterns(comm, network), source="compcoll tune",
    )  # fmt: skip


def measure_links(comm: MPI.Intracomm, seconds: float = 0.1) -> tuple[Link, Link]:
    """The links between nodes and inside a node, the same on all ranks; collective.

    Where all ranks share a node, its link stands for the network too.
    """
    leaders = leaders_of(comm)
    near = next((r for r in range(1, comm.size) if leaders[r] == leaders[0]), None)
    far = next((r for r in range(1, comm.size) if leaders[r] != leaders[0]), None)
    inside = _measure_link(comm, near, seconds) if near is not None else MEMORY
    between = _measure_link(comm, far, seconds) if far is not None else inside
    if far is not None and between.latency > KERNEL_LATENCY:
        between = replace(between, cpu=measure_cpu(comm))
    return between, inside


def _measure_link(comm: MPI.Intracomm, peer: int, seconds: float) -> Link:
    """Rank 0 and a peer exchange messages, both ways at once as collectives do."""
    link = None
    if comm.rank in (0, peer):
        other = peer if comm.rank == 0 else 0
        latency = _exchange(comm, other, 8, 20)
        nbytes, spent = 256 << 10, 0.0
        while spent < seconds / 4 and nbytes < 64 << 20:
            nbytes *= 2
            mine = _exchange(comm, other, nbytes, 2)
            spent = max(mine, comm.sendrecv(mine, other, source=other))  # the same at both ends
        mine = _exchange(comm, other, nbytes, 6)
        spent = min(spent, max(mine, comm.sendrecv(mine, other, source=other)))
        link = Link(latency, nbytes / max(spent - latency, 1e-9))
    all_done(comm)  # the others leave the cores to these two: MPI waits with all its might
    return comm.bcast(link)


def _exchange(comm: MPI.Intracomm, other: int, nbytes: int, repeats: int) -> float:
    """Least seconds in which two ranks send each other a message at the same time."""
    send, recv = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    best = inf
    for _ in range(repeats + 1):
        comm.Sendrecv(send[:1], other, recvbuf=recv[:1], source=other)
        start = perf_counter()
        comm.Sendrecv(send, other, recvbuf=recv, source=other)
        best = min(best, perf_counter() - start)
    return best


def measure_codecs() -> Iterator[tuple[str, CodecSpeed]]:
    """(spec/dtype, speed) of every codec that is registered and every type that exists here."""
    for spec, names in CODECS.items():
        try:
            made = codec(spec)
        except ValueError:
            continue
        for name in names:
            dtype = dtypes.BFLOAT16 if name == "bfloat16" else np.dtype(name)
            if dtype is not None:
                yield f"{made.spec}/{name}", measure_speed(made, _sample(dtype))


def _sample(dtype: np.dtype) -> np.ndarray:
    """Smooth values with noise, as fields are; normal ones, as weights are, for 16 bits."""
    n = 1 << 18
    rng = np.random.default_rng(1)
    if dtype.itemsize == 2:
        return (0.02 * rng.standard_normal(n)).astype(dtype)
    return (np.sin(np.arange(n) * 1e-3) + 1e-3 * rng.standard_normal(n)).astype(dtype)

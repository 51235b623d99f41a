"""Measuring a machine: links by MPI itself, codecs on data of the kinds that they are made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from compcoll import dtypes
from compcoll.codecs import codec
from compcoll.model.advisor import measure_speed
from compcoll.model.network import measure_links
from compcoll.model.patterns import measure_patterns, sample, slowest
from compcoll.model.profile import CodecSpeed, MachineProfile, fingerprint
from compcoll.model.sharing import measure_call, measure_memory, measure_sharing

__all__ = ["CODECS", "measure_codecs", "measure_machine", "tune"]

#: What `tune` measures: codecs and the types that they serve.
CODECS = {
    "zfp:rate=8": ("float32", "float64"),
    "zfp:rate=16": ("float32", "float64"),
    "mpc": ("float32", "float64"),
    "lossless": ("float32", "float64", "bfloat16"),
    "szp:rel=0.001": ("float32", "float64"),
    "int8": ("float32", "bfloat16"),
}


def tune(comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None) -> MachineProfile:
    """Measure the machine that the ranks of a communicator run on; collective, well under a minute."""
    machine = measure_machine(comm, report)
    codecs = {}
    for key, speed in measure_codecs():
        report(key)
        codecs[key] = slowest(comm, speed)
    return replace(machine, codecs=codecs)


def measure_machine(comm: MPI.Intracomm, report: Callable[[str], None] = lambda text: None) -> MachineProfile:
    """All of a profile but the codecs; collective."""
    report("links")
    network, node = measure_links(comm)
    machine = MachineProfile(
        comm.bcast(fingerprint()), network, node, memory=measure_memory(comm), call=measure_call(comm),
        sharing=measure_sharing(comm), library=MPI.get_vendor()[0], source="compcoll tune",
    )  # fmt: skip
    report("patterns")
    return measure_patterns(comm, machine)


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
                yield f"{made.spec}/{name}", measure_speed(made, sample(dtype))

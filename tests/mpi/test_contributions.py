"""Ranks that contribute or receive nothing may describe that as they like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from common import FORMS, bits, complete, data, offsets
from mpi4py import MPI

import compcoll
from compcoll.operations import OPERATIONS

N = 5003
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank's calls are MPI's own")


def empty_struct() -> MPI.Datatype:
    return MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()


#: A block without elements, of which MPI compares no types.
NOTHING = {
    "array of another type": lambda: np.zeros(0, "f8"),
    "bytes": lambda: bytearray(),
    "null": lambda: [None, 0, MPI.BYTE],
    "foreign": lambda: [np.zeros(3, "f4"), 0, MPI.FLOAT],
    "several basic types": lambda: [None, 0, empty_struct()],
}


def of_each(nothing: Any, op: str, size: int) -> list:
    """The same in place of a block for each rank."""
    buffer, n, datatype = nothing if isinstance(nothing, list) else (nothing, 0, MPI.BYTE)
    return [buffer, ([n] * size, [0] * size), [datatype] * size if op == "Alltoallw" else datatype]


def exchanged(array: np.ndarray, counts: list[int], op: str) -> list:
    """Blocks for each rank, one behind the other."""
    where, n = offsets(counts), len(counts)
    if op == "Alltoallw":
        return [array, (counts, [array.itemsize * at for at in where]), [MPI.INT64_T] * n]
    return [array, (counts, where)]


def arguments(op: str, comm, idle: list[int], nothing: Any) -> tuple[tuple, np.ndarray]:
    """Arguments of a call of int64, and the array that it writes to."""
    size, rank = comm.size, comm.rank
    counts = [0 if r in idle else N + r for r in range(size)]
    if op in ("Alltoallv", "Alltoallw"):
        n = [0 if {rank, r} & set(idle) else N for r in range(size)]
        sent, got = data(sum(n), "i8", rank), np.zeros(sum(n), "i8")
        if rank in idle:
            return (of_each(nothing, op, size),) * 2, got
        return (exchanged(sent, n, op), exchanged(got, n, op)), got
    whole, own = data(sum(counts), "i8", 9), data(counts[rank], "i8", rank)
    each, one = exchanged(whole, counts, op), nothing if rank in idle else own
    if op == "Allgatherv":
        return (one, each), whole
    if op == "Gatherv":
        return (one, each if rank == 0 else None), whole
    return (each if rank == 0 else None, one), own


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["Allgatherv", "Gatherv", "Scatterv", "Alltoallv", "Alltoallw"])
@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_ranks_with_nothing_to_exchange(comm, agree, nothing, op, form):
    size = comm.size
    for least in (0, 4096):
        ours = compcoll.Comm(comm, "lossless", min_nbytes=least)
        for idle in ([size - 1], list(range(1, size)), list(range(size - 1))):
            args, want = arguments(op, comm, idle, np.zeros(0, "i8"))  # Open MPI chooses by the type
            getattr(comm, op)(*args)
            args, got = arguments(op, comm, idle, nothing())
            complete(ours, OPERATIONS[op].forms[FORMS.index(form)], args)
            assert agree(bits(got) == bits(want)), (least, idle)
            assert agree(op != "Allgatherv" or ours.report.accelerated)
        ours.Free()

"""Ranks that contribute or receive nothing may describe their empty blocks in any way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import collectives
from common import FORMS, bits, complete
from mpi4py import MPI

import compcoll
from compcoll.operations import OPERATIONS

N = 5003
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank's calls are MPI's own")


def empty_struct() -> MPI.Datatype:
    return MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()


#: Blocks without elements, whose types MPI does not compare.
NOTHING = {
    "array of another type": lambda: np.zeros(0, "f8"),
    "bytes": lambda: bytearray(),
    "null": lambda: [None, 0, MPI.BYTE],
    "foreign": lambda: [np.zeros(3, "f4"), 0, MPI.FLOAT],
    "several basic types": lambda: [None, 0, empty_struct()],
}


def of_each(nothing: Any, op: str, size: int) -> list:
    """Argument with an empty block for each rank."""
    buffer, n, datatype = nothing if isinstance(nothing, list) else (nothing, 0, MPI.BYTE)
    return [buffer, ([n] * size, [0] * size), [datatype] * size if op == "Alltoallw" else datatype]


def arguments(op: str, comm, idle: list[int], nothing: Any) -> tuple[tuple, np.ndarray]:
    """Arguments of a call of int64, and the array that the call writes."""
    size, rank = comm.size, comm.rank
    counts = [0 if r in idle else N + r for r in range(size)]
    pairs = [[0 if {i, j} & set(idle) else N for j in range(size)] for i in range(size)]
    call = collectives(rank, size, 0, counts=counts, pairs=pairs)[op]
    sent, got = call.memory("i8", 0, rank)
    written = np.zeros(0) if got is None else got
    if rank in idle and op in ("Alltoallv", "Alltoallw"):
        return (of_each(nothing, op, size),) * 2, written
    if rank in idle:
        sent, got = (sent, nothing) if op == "Scatterv" else (nothing, got)
    return call.form(sent, got), written


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

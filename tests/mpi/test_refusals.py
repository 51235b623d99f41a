"""A call refused on one rank leaves nothing behind: the right one then matches those of other ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from common import FORMS, bits, complete, offsets
from mpi4py import MPI

import compcoll
from compcoll.operations import OPERATIONS

N = 5000
INT64, NULL = MPI.INT64_T, MPI.DATATYPE_NULL
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank's calls are MPI's own")
OPS = [
    *("Bcast", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw"),
    *("Gather", "Gatherv", "Scatter", "Scatterv", "Allreduce"),
]
#: Wrong part of a call: its count, datatype or root; or a datatype that ``strict`` does not leave to MPI.
WRONG = ["count", "type", "root", "strict"]
PARTS = MPI.Datatype.Create_struct([1, 1], [0, 4], [MPI.FLOAT, MPI.INT]).Commit()


def arguments(op: str, comm, wrong: str = "") -> tuple[tuple[Any, ...], np.ndarray]:
    """Arguments of a call of int64, and the array that the call writes."""
    size, rank = comm.size, comm.rank
    whole, got = np.arange(N * size) + rank, np.zeros(N * size, "i8")
    counts, n = [N] * size, -1 if wrong == "count" else N
    good = PARTS if wrong == "strict" else INT64
    datatype, root = NULL if wrong == "type" else good, size + 3 if wrong == "root" else 0
    if op in ("Alltoallv", "Alltoallw"):
        displs, bad = offsets(counts), datatype
        if op == "Alltoallw":
            displs, good, bad = [8 * at for at in displs], [good] * size, [bad] * size
        return ([whole, ([n] * size, displs), bad], [got, (counts, displs), good]), got
    one = [whole[:N], n, datatype]
    each = [got, (counts, offsets(counts)), good] if op.endswith("v") else [got, N, good]
    if op == "Bcast":
        return ([got, n, datatype], root), got
    if op.startswith("Gather"):
        return (one, each if rank == 0 else None, root), got
    if op.startswith("Scatter"):
        each[0] = whole
        return (each if rank == 0 else None, [got[:N], n, datatype], root), got
    if op == "Alltoall":
        return ([whole, n, datatype], each), got
    if op == "Allreduce":
        return (one, [got, N, INT64]), got
    return (one, each), got


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_call_that_one_rank_repeats(comm, agree, wrong, op, form):
    if wrong == "root" and not OPERATIONS[op].root:
        pytest.skip("there is no root")
    if wrong == "strict" and OPERATIONS[op].decides.name == "ALL":
        pytest.skip("all ranks make this call alike")
    for least in (0, 4096) if wrong == "strict" else (0, 4096, 10**5):
        ours = compcoll.Comm(comm, "lossless", min_nbytes=least, strict=wrong == "strict")
        method = OPERATIONS[op].forms[FORMS.index(form)]
        if comm.rank == comm.size - 1:
            for _ in range(3):
                with pytest.raises((MPI.Exception, ValueError)):
                    getattr(ours, method)(*arguments(op, ours, wrong)[0])
        for _ in range(2):
            args, want = arguments(op, comm)
            getattr(comm, op)(*args)
            args, got = arguments(op, comm)
            complete(ours, method, args)
            assert agree(bits(got) == bits(want)), least
        large = np.arange(10**5) + comm.rank
        ours.Ibcast(large).Wait()
        assert agree(bits(large) == bits(np.arange(10**5)) and ours.report.accelerated), least
        ours.Free()

"""Which methods of a communicator are calls, and how many bytes their arguments say they send."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["CALLS", "buffer_nbytes", "sent_nbytes"]

_BLOCKING = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan",
    "Exscan", "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv",
    "Neighbor_alltoallw", "Send", "Ssend", "Bsend", "Rsend", "Recv", "Sendrecv", "Sendrecv_replace",
)  # fmt: skip
_OBJECTS = (
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
    "neighbor_allgather", "neighbor_alltoall", "send", "ssend", "bsend", "recv", "sendrecv", "isend",
    "issend", "ibsend", "irecv",
)  # fmt: skip
#: Methods that are calls, as far as a communicator's class has them.
CALLS = (*_BLOCKING, *(f"I{name.lower()}" for name in _BLOCKING), *_OBJECTS, "Probe", "Mprobe")

_RECEIVES = {"Recv", "Irecv", "recv", "irecv", "Probe", "Mprobe"}
_FROM_ROOT = {"Bcast", "Ibcast", "bcast", "Scatter", "Scatterv", "Iscatter", "Iscatterv", "scatter"}
_SECOND = {"Scatter", "Scatterv", "Iscatter", "Iscatterv"}


def buffer_nbytes(name: str, args: tuple, kwargs: dict[str, Any]) -> int:
    """Bytes of the buffer that a call is about; 0 where its arguments do not tell."""
    values = (*args, *kwargs.values())
    for value in values[:2] if name in _SECOND or (values and values[0] is MPI.IN_PLACE) else values[:1]:
        nbytes = _nbytes(value)
        if nbytes:
            return nbytes
    return 0


def sent_nbytes(name: str, nbytes: int, rank: int, args: tuple, kwargs: dict[str, Any]) -> int:
    """Of a call that MPI served, the bytes that this rank handed over to be sent."""
    if name in _RECEIVES:
        return 0
    if name in _FROM_ROOT:
        roots = [value for value in args[1:] if type(value) is int]
        root = kwargs.get("root", roots[-1] if roots else 0)
        return nbytes if root == rank else 0
    return nbytes


def _nbytes(value: Any) -> int:
    if type(value) is np.ndarray:
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return _described(value) if value else 0
    if value is None or value is MPI.IN_PLACE or value is MPI.BOTTOM:
        return 0
    nbytes = getattr(value, "nbytes", None)
    if nbytes is None and isinstance(value, (bytes, bytearray, memoryview)):
        nbytes = len(value)
    return nbytes if isinstance(nbytes, int) else 0


def _described(spec: Any) -> int:
    """Bytes of ``[buffer, ..., type]``; of the whole buffer where counts are not a single one."""
    datatype = spec[-1]
    if len(spec) == 3 and isinstance(datatype, MPI.Datatype) and isinstance(spec[1], int):
        return spec[1] * datatype.Get_size()
    return 0 if isinstance(spec[0], (list, tuple)) else _nbytes(spec[0])

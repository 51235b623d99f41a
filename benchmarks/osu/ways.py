"""Other ways to send the same arrays: as pickled objects, and packed by MPI beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["PICKLED", "Packed", "Pickled"]

#: Benchmarks that OSU has for objects as well.
PICKLED = (
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "bibw",
    "bw",
    "gather",
    "latency",
    "multi_lat",
    "reduce",
    "scatter",
)


class Packed:
    """A communicator whose Alltoallw packs the blocks by MPI, calls Alltoallv, and unpacks them."""

    def __init__(self, comm: MPI.Intracomm):
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Alltoallw(self, send, recv) -> None:
        rooms = []
        for array, types in (send, recv):
            counts = [datatype.Get_size() // array.itemsize for datatype in types]
            rooms.append((np.empty(sum(counts), array.dtype), counts))
        position = 0
        for datatype in send[1]:
            position = datatype.Pack(send[0], rooms[0][0], position, MPI.COMM_SELF)
        self._comm.Alltoallv(*rooms)
        position = 0
        for datatype in recv[1]:
            position = datatype.Unpack(rooms[1][0], position, recv[0], MPI.COMM_SELF)


class Pickled:
    """The communicator methods that the benchmarks call, carried out by their lower-case counterparts.

    A call receives new objects, as in a program; `settle` copies the last ones to the benchmark's buffer.
    """

    def __init__(self, comm: MPI.Intracomm):
        self._comm = comm
        self._settle: Callable[[], object] = _nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def settle(self) -> None:
        """Copy the last received objects into the array of the call."""
        self._settle()
        self._settle = _nothing

    def _received(self, into, found) -> None:
        self._settle = lambda: np.concatenate(found if isinstance(found, list) else [found], out=into)

    def Allgather(self, send, recv) -> None:
        self._received(recv, self._comm.allgather(send))

    def Allreduce(self, send, recv, op: MPI.Op = MPI.SUM) -> None:
        if send is MPI.IN_PLACE:  # the benchmark's own
            self._comm.Allreduce(send, recv, op)
        else:
            self._received(recv, self._comm.allreduce(send, op))

    def Alltoall(self, send, recv) -> None:
        self._received(recv, self._comm.alltoall(np.split(send, self._comm.size)))

    def Bcast(self, buffer, root: int = 0) -> None:
        mine = self._comm.rank == root
        found = self._comm.bcast(buffer if mine else None, root)
        if not mine:
            self._received(buffer, found)

    def Gather(self, send, recv, root: int = 0) -> None:
        found = self._comm.gather(send, root)
        if found is not None:
            self._received(recv, found)

    def Reduce(self, send, recv, root: int = 0) -> None:
        found = self._comm.reduce(send, root=root)
        if found is not None:
            self._received(recv, found)

    def Scatter(self, send, recv, root: int = 0) -> None:
        parts = None if send is None else np.split(send, self._comm.size)
        self._received(recv, self._comm.scatter(parts, root))

    def Send(self, send, dest: int) -> None:
        self._comm.send(send, dest)

    def Recv(self, recv, source: int) -> None:
        self._received(recv, self._comm.recv(source=source))

    def Sendrecv(self, send, dest: int, *, recvbuf, source: int) -> None:
        self._received(recvbuf, self._comm.sendrecv(send, dest, source=source))


def _nothing() -> None:
    """Do nothing: no received object is pending."""

"""Persistent messages: prepared once, and started again and again."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

from compcoll.mpi.buffers import on_gpu
from compcoll.mpi.forms import CollectiveMethods, KeptArguments
from compcoll.mpi.p2p.methods import PointToPoint
from compcoll.mpi.prequest import Prequest

__all__ = ["PersistentCalls"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG


class PersistentCalls(CollectiveMethods, PointToPoint):
    """The persistent forms of messages: each returns an `MPI.Prequest`."""

    def Send_init(self, buf, dest: int, tag: int = 0) -> MPI.Prequest:
        return self._prepare_send(PointToPoint.Isend, super().Send_init, buf, dest, tag)

    def Ssend_init(self, buf, dest: int, tag: int = 0) -> MPI.Prequest:
        return self._prepare_send(PointToPoint.Issend, super().Ssend_init, buf, dest, tag)

    def Recv_init(self, buf, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MPI.Prequest:
        if self._incoming(buf, source) is None:
            return self._to_mpi(super().Recv_init, buf, source, tag)
        self._check_receive(buf, source, tag)
        kept = KeptArguments(buf)
        return Prequest(lambda: PointToPoint.Irecv(self, kept.args[0], source, tag), kept.free)

    def _prepare_send(
        self, begin: Callable[..., MPI.Request], plain: Callable[..., MPI.Prequest], buf, dest: int, tag: int
    ) -> MPI.Prequest:  # fmt: skip
        _, decision = self._outgoing("Send", buf, dest)
        if decision is None and (self._passes_gpu_memory or not on_gpu(buf)):
            return self._to_mpi(plain, buf, dest, tag)
        self._check_send(buf, dest, tag)
        kept = KeptArguments(buf)
        return Prequest(lambda: begin(self, kept.args[0], dest, tag), kept.free)

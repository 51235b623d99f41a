"""Comm: an MPI communicator whose large messages are compressed on the way."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from mpi4py import MPI

from compcoll import calls
from compcoll._shortcut import shortcut
from compcoll.engine import Engine
from compcoll.pointtopoint import PointToPoint
from compcoll.policy import make_policy
from compcoll.staging import NEIGHBOUR, Guarded, guard
from compcoll.vectors import VectorCalls

__all__ = ["Cartcomm", "Comm", "Distgraphcomm", "Graphcomm"]


class _DefaultCodec(str):
    """The default of ``codec``, told from the same word given by a caller: the environment may change it."""


DEFAULT_CODEC = _DefaultCodec("lossless")


class _Accelerated(VectorCalls, PointToPoint, Guarded, Engine):
    """The accelerated methods, mixed into mpi4py's classes of intracommunicators."""

    def __init__(
        self, comm: MPI.Intracomm | None = None, codec=DEFAULT_CODEC, *, when: str = "always",
        min_nbytes: int | None = None, strict: bool = False, owner_exact: bool = False, policy=None,
        device_buffers: bool | None = None,
    ):  # fmt: skip
        if comm is None or comm == MPI.COMM_NULL:
            return
        if codec is DEFAULT_CODEC:
            codec = None
        if device_buffers is None:
            device_buffers = os.environ.get("COMPCOLL_DEVICE_BUFFERS", "0") not in ("", "0")
        make = partial(make_policy, None, codec, when, min_nbytes, policy)
        self._setup(make, strict, owner_exact, bool(device_buffers))

    def using(self, codec=None, *, when=None, min_nbytes=None, strict=None, owner_exact=None, policy=None):
        """The same communicator with another policy; collective.

        Parameters
        ----------
        codec, when, min_nbytes, strict, owner_exact, policy
            As for `Comm`; what is not given stays as it is.

        Returns
        -------
        Comm
            Shares the MPI communicator: freeing one frees both.
        """
        other = type(self).__new__(type(self), self)
        other._device_buffers = self._device_buffers
        other._setup(
            lambda: make_policy(self.policy, codec, when, min_nbytes, policy),
            self._strict if strict is None else strict,
            self._owner_exact if owner_exact is None else owner_exact,
            self._device_buffers,
        )
        return other

    # -- collectives: what `_run` does not carry out goes to MPI unchanged

    @shortcut(1)
    def Bcast(self, buf, root: int = 0) -> None:
        if not self._run("Bcast", calls.bcast, buf, root):
            self._to_mpi(super().Bcast, buf, root)

    @shortcut(2)
    def Allgather(self, sendbuf, recvbuf) -> None:
        if not self._run("Allgather", calls.allgather, sendbuf, recvbuf):
            self._to_mpi(super().Allgather, sendbuf, recvbuf)

    @shortcut(2)
    def Allgatherv(self, sendbuf, recvbuf) -> None:
        if not self._run("Allgatherv", calls.allgatherv, sendbuf, recvbuf):
            self._to_mpi(super().Allgatherv, sendbuf, recvbuf)

    @shortcut(2)
    def Alltoall(self, sendbuf, recvbuf) -> None:
        if not self._run("Alltoall", calls.alltoall, sendbuf, recvbuf):
            self._to_mpi(super().Alltoall, sendbuf, recvbuf)

    @shortcut(2)
    def Gather(self, sendbuf, recvbuf, root: int = 0) -> None:
        if not self._run("Gather", calls.gather, sendbuf, recvbuf, root):
            self._to_mpi(super().Gather, sendbuf, recvbuf, root)

    @shortcut(2)
    def Scatter(self, sendbuf, recvbuf, root: int = 0) -> None:
        if not self._run("Scatter", calls.scatter, sendbuf, recvbuf, root):
            self._to_mpi(super().Scatter, sendbuf, recvbuf, root)

    # -- reductions

    @shortcut(2)
    def Allreduce(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM) -> None:
        if not self._run_sum("Allreduce", op, calls.allreduce, sendbuf, recvbuf):
            self._to_mpi(super().Allreduce, sendbuf, recvbuf, op)

    @shortcut(2)
    def Reduce(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        if not self._run_sum("Reduce", op, calls.reduce, sendbuf, recvbuf, root):
            self._to_mpi(super().Reduce, sendbuf, recvbuf, op, root)

    @shortcut(2)
    def Reduce_scatter_block(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM) -> None:
        if not self._run_sum("Reduce_scatter_block", op, calls.reduce_scatter_block, sendbuf, recvbuf):
            self._to_mpi(super().Reduce_scatter_block, sendbuf, recvbuf, op)

    @shortcut(2)
    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op: MPI.Op = MPI.SUM) -> None:
        more = recvcounts, self._context, self._min_nbytes
        if not self._run_sum("Reduce_scatter", op, calls.reduce_scatter, sendbuf, recvbuf, *more):
            self._to_mpi(super().Reduce_scatter, sendbuf, recvbuf, recvcounts, op)

    # -- new communicators have the same policy

    def _adopt(self, comm):
        """Give a communicator that MPI made from this one its policy; collective over the new one."""
        if comm == MPI.COMM_NULL or self._context is None:
            return comm
        cls = next(ours for theirs, ours in _SIBLINGS.items() if isinstance(comm, theirs))
        new = comm if type(comm) is cls else cls.__new__(cls, comm)
        new._device_buffers = self._device_buffers  # checked among all of these ranks, and more
        new._setup(lambda: self.policy, self._strict, self._owner_exact, self._device_buffers)
        return new

    def Dup(self, info: MPI.Info | None = None):
        return self._adopt(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info):
        return self._adopt(super().Dup_with_info(info))

    def Clone(self):
        return self._adopt(super().Clone())

    def Split(self, color: int = 0, key: int = 0):
        return self._adopt(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL):
        return self._adopt(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group):
        return self._adopt(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0):
        return self._adopt(super().Create_group(group, tag))


class Comm(_Accelerated, MPI.Intracomm):
    """A drop-in for an mpi4py intracommunicator that compresses what goes over the wire.

    Making one is collective. Alltoall(v), Bcast, Allgather(v), Gather(v), Scatter(v), Reduce,
    Allreduce, Reduce_scatter(_block) (for `MPI.SUM`), Send, Recv and Sendrecv of floating-point and
    integer types are accelerated where a message has at least ``min_nbytes``; everything else goes to
    MPI unchanged. Integers are only ever coded losslessly.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator, whose handle it shares.
    codec : str or Codec
        A codec's spec, such as ``"zfp:rate=8"``; ``"lossless"`` changes no bit of any result;
        ``"auto"`` is lossless, and only where the model says that it pays. Where it is not given,
        ``COMPCOLL_CONFIG`` and ``COMPCOLL_CODEC`` can change it.
    when : {"always", "pays"}
        ``"pays"`` asks the model before each call whether the codec would save time.
    min_nbytes : int, optional
        Smallest message from one rank to another that is compressed, in bytes.
    strict : bool
        Raise `FallbackError` where a call does not run as the policy says.
    owner_exact : bool
        Let the owner of a lossily coded block keep its exact values, while others have decoded ones.
    policy : Policy, mapping or path, optional
        Rules by operation, type, size and communicator; a path names a TOML file.
    device_buffers : bool, optional
        Give MPI the frames of collectives of GPU arrays in the GPU's memory, and GPU arrays that are not
        compressed as they are. Needs a CUDA-aware MPI, which is tried first. By default what
        ``COMPCOLL_DEVICE_BUFFERS`` says, else no.

    Attributes
    ----------
    report : Report
        What the last call did.
    calls_accelerated : int
        Calls that did not go to MPI unchanged.

    Raises
    ------
    ValueError
        For an unknown codec or a parameter out of its limits, on the rank that gave it.
    PolicyError
        Where ranks disagree, on all others.
    DeviceBufferError
        Where MPI does not take device memory of one rank, on all ranks.
    """

    def Create_cart(self, dims, periods=None, reorder: bool = False):
        return self._adopt(super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index, edges, reorder: bool = False):
        return self._adopt(super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(self, sources, destinations, *args: Any, **kwargs: Any):
        return self._adopt(super().Create_dist_graph_adjacent(sources, destinations, *args, **kwargs))

    def Create_dist_graph(self, sources, degrees, destinations, *args: Any, **kwargs: Any):
        return self._adopt(super().Create_dist_graph(sources, degrees, destinations, *args, **kwargs))


@guard(*NEIGHBOUR)
class Cartcomm(_Accelerated, MPI.Cartcomm):
    """`Comm` with a Cartesian topology."""

    def Sub(self, remain_dims):
        return self._adopt(super().Sub(remain_dims))


@guard(*NEIGHBOUR)
class Graphcomm(_Accelerated, MPI.Graphcomm):
    """`Comm` with a graph topology."""


@guard(*NEIGHBOUR)
class Distgraphcomm(_Accelerated, MPI.Distgraphcomm):
    """`Comm` with a distributed graph topology."""


#: The sibling of each of mpi4py's classes, special ones first.
_SIBLINGS = {
    MPI.Cartcomm: Cartcomm, MPI.Graphcomm: Graphcomm, MPI.Distgraphcomm: Distgraphcomm, MPI.Intracomm: Comm,
}  # fmt: skip

"""Comm: an MPI communicator whose large messages are compressed on the way."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.core import environment
from compcoll.engine.group import wait_for_duplicates
from compcoll.mpi import objects
from compcoll.mpi._shortcut import Gate
from compcoll.mpi.context import Context
from compcoll.mpi.core import CommBase, describe
from compcoll.mpi.forms import collective, start_prepared
from compcoll.mpi.p2p import methods as p2p
from compcoll.mpi.p2p import probe as probes
from compcoll.mpi.staging import BUFFERED, NEIGHBOUR, guard
from compcoll.policy import Policy, make_policy

__all__ = ["CLASSES", "PREDEFINED", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "wrap_world"]


#: What a policy is made of: itself, its keys, or the path of a file.
PolicyLike = Policy | Mapping[str, Any] | str | os.PathLike[str]


class _DefaultCodec(str):
    """The default of ``codec``, told from the same word given by a caller: the environment may change it."""


DEFAULT_CODEC = _DefaultCodec("auto")


@guard(*BUFFERED)
class _Accelerated(CommBase):
    """The accelerated methods, mixed into mpi4py's classes of intracommunicators."""

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        codec: str | Codec | None = DEFAULT_CODEC,
        *,
        when: str = "always",
        min_nbytes: int | None = None,
        strict: bool = False,
        owner_exact: bool = False,
        policy: PolicyLike | None = None,
        device_buffers: bool | None = None,
    ) -> None:
        if comm is None or comm == MPI.COMM_NULL:
            return
        if codec is DEFAULT_CODEC:
            codec = None
        _record()
        make = partial(make_policy, None, codec, when, min_nbytes, policy)
        self._setup(make, strict, owner_exact, device_buffers)

    _start = start_prepared

    if not TYPE_CHECKING:  # checkers take the types of mpi4py's methods
        Bcast, Ibcast, Bcast_init = collective("Bcast")
        Allgather, Iallgather, Allgather_init = collective("Allgather")
        Allgatherv, Iallgatherv, Allgatherv_init = collective("Allgatherv")
        Alltoall, Ialltoall, Alltoall_init = collective("Alltoall")
        Alltoallv, Ialltoallv, Alltoallv_init = collective("Alltoallv")
        Alltoallw, Ialltoallw, Alltoallw_init = collective("Alltoallw")
        Gather, Igather, Gather_init = collective("Gather")
        Gatherv, Igatherv, Gatherv_init = collective("Gatherv")
        Scatter, Iscatter, Scatter_init = collective("Scatter")
        Scatterv, Iscatterv, Scatterv_init = collective("Scatterv")
        Allreduce, Iallreduce, Allreduce_init = collective("Allreduce")
        Reduce, Ireduce, Reduce_init = collective("Reduce")
        Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init = collective(
            "Reduce_scatter_block"
        )
        Reduce_scatter, Ireduce_scatter, Reduce_scatter_init = collective("Reduce_scatter")

    Send = p2p.Send
    Isend = p2p.Isend
    Ssend = p2p.Ssend
    Issend = p2p.Issend
    Recv = p2p.Recv
    Irecv = p2p.Irecv
    Sendrecv = p2p.Sendrecv
    Isendrecv = p2p.Isendrecv
    Sendrecv_replace = p2p.Sendrecv_replace
    Isendrecv_replace = p2p.Isendrecv_replace
    Send_init = p2p.Send_init
    Ssend_init = p2p.Ssend_init
    Recv_init = p2p.Recv_init
    Probe = probes.Probe
    Iprobe = probes.Iprobe
    Mprobe = probes.Mprobe
    Improbe = probes.Improbe
    probe, iprobe = probes.Probe, probes.Iprobe  # as in mpi4py, where these do not look into a message

    bcast = objects.bcast
    allgather = objects.allgather
    gather = objects.gather
    scatter = objects.scatter
    alltoall = objects.alltoall
    reduce = objects.reduce
    allreduce = objects.allreduce
    scan = objects.scan
    exscan = objects.exscan
    send = objects.send
    isend = objects.isend
    sendrecv = objects.sendrecv

    def using(
        self,
        codec: str | Codec | None = None,
        *,
        when: str | None = None,
        min_nbytes: int | None = None,
        strict: bool | None = None,
        owner_exact: bool | None = None,
        policy: PolicyLike | None = None,
    ) -> Self:
        """Return the same communicator with another policy; collective.

        Parameters
        ----------
        codec, when, min_nbytes, strict, owner_exact, policy
            As for `Comm`; others stay as they are. A ``codec`` without a ``policy`` takes the place of the
            rules in force as well, and is that of all calls.

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

    def __repr__(self) -> str:
        if self == MPI.COMM_NULL:
            return f"<compcoll.{type(self).__name__}: null>"
        name = f"{self._name!r}, " if self._name else ""
        if self._unattached is None and self._own is None:
            return f"<compcoll.{type(self).__name__}: {name}not accelerated>"
        rules = f", {len(self._policy.rules)} rules" if self._policy.rules else ""
        return (
            f"<compcoll.{type(self).__name__}: {name}rank {self._rank} of {self._size}, "
            f"{self._policy.codec}, min_nbytes={self._policy.min_nbytes}{rules}>"
        )

    def __reduce__(self) -> Any:
        """Communicators that MPI has from the beginning can be pickled, as mpi4py's can."""
        name = next((name for name, comm in PREDEFINED.items() if self == comm), None)
        if name is None:
            raise ValueError(f"cannot serialize '{type(self).__module__}.{type(self).__name__}' instance")
        if self._context is None:
            return _plain, (type(self), name)
        return _rewrapped, (name, self.settings)

    @classmethod
    def fromhandle(cls, handle: int) -> MPI.Comm:
        """As mpi4py's; a communicator that is wrapped already has the policy of its last wrapper."""
        return _known(MPI.Comm.fromhandle(handle))

    @classmethod
    def fromint(cls, arg: int, /) -> MPI.Comm:
        """As `fromhandle`."""
        return _known(MPI.Comm.fromint(arg))

    @classmethod
    def f2py(cls, arg: int) -> MPI.Comm:
        """As `fromhandle`."""
        return _known(MPI.Comm.f2py(arg))

    def Free(self) -> None:
        """As mpi4py's: calls under way come to their ends."""
        Context.part(MPI.Intracomm(self))
        super().Free()

    def Disconnect(self) -> None:
        """As mpi4py's, after calls under way have come to their ends."""
        Context.part(MPI.Intracomm(self))
        super().Disconnect()

    # -- new communicators have the same policy

    def _make(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a communicator and give it the policy of this one; collective over the new one.

        A private communicator that is still being made is complete before: MPICH waits for that without end
        where the new one has a single rank.
        """
        context = self._context
        if context is not None and method.__name__ != "Create_group":  # which the group's ranks alone call
            self._await_all(method.__name__)
        comm = method(*args, **kwargs)
        if comm == MPI.COMM_NULL or context is None:
            return comm
        new = _sibling(comm)
        new._descend(self, False)
        return new

    def _await_all(self, what: str) -> None:
        """TimeoutError where not all ranks come to a call in which MPI would wait without end."""
        self._meet_all(what, environment.timeout())

    def _make_duplicate(self, method: Callable[..., Any], *args: Any) -> Any:
        """`_make` for one of the same ranks, which agree already."""
        context = self._context
        if context is None:
            return method(*args)
        self._await_all(method.__name__)
        comm = method(*args)
        new = _sibling(comm)
        new._descend(self, True)
        return new

    def _idup(self, method: Callable[..., tuple[Any, ...]], info: MPI.Info | None) -> Any:
        """The same for one that is complete only when its request is."""
        context = self._context
        if context is None:
            return method(info)
        wait_for_duplicates()
        with context.heir() as heir:
            comm, request = method(info)
        heir.belong_to(comm, *context.idup(comm))
        new = _sibling(comm)
        # Others may be attached before this one.
        heir.least, heir.wrappers = self._policy.min_nbytes, [ref(new)]
        new._unattached, new._gate = heir, Gate(0, ("", "no call yet"))
        new._policy, new._strict, new._owner_exact, new._device_buffers = self.settings
        new._rank, new._size = self._rank, self._size
        new._min_nbytes, new._idle = self._min_nbytes, self._idle
        return new, request

    def Dup(self, info: MPI.Info | None = None) -> Self:
        return self._make_duplicate(super().Dup, info)

    def Dup_with_info(self, info: MPI.Info) -> Self:
        return self._make_duplicate(super().Dup_with_info, info)

    def Clone(self) -> Self:
        return self._make_duplicate(super().Clone)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        return self._idup(super().Idup, info)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        return self._idup(super().Idup_with_info, info)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        return self._make(super().Split, color, key)

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        return self._make(super().Split_type, split_type, key, info)

    def Create(self, group: MPI.Group) -> Comm:
        return self._make(super().Create, group)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        return self._make(super().Create_group, group, tag)

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        return self._make(super().Create_cart, dims, periods, reorder)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Graphcomm:
        return self._make(super().Create_graph, index, edges, reorder)

    def Create_dist_graph_adjacent(
        self, sources: Sequence[int], destinations: Sequence[int], *args: Any, **kwargs: Any
    ) -> Distgraphcomm:
        return self._make(super().Create_dist_graph_adjacent, sources, destinations, *args, **kwargs)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> Distgraphcomm:
        return self._make(super().Create_dist_graph, sources, degrees, destinations, *args, **kwargs)

    @classmethod
    def Create_from_group(cls, group: MPI.Group, *args: Any, **kwargs: Any) -> MPI.Intracomm:
        """As mpi4py's; the communicator, which was made from none, has the default policy."""
        comm = MPI.Intracomm.Create_from_group(group, *args, **kwargs)
        return comm if comm == MPI.COMM_NULL else Comm(comm)

    def Create_intercomm(
        self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int = 0
    ) -> MPI.Intercomm:
        inter = super().Create_intercomm(local_leader, peer_comm, remote_leader, tag)
        if inter == MPI.COMM_NULL or self._context is None:
            return inter
        new = Intercomm(inter)
        new._settings = self.settings
        return new


class Comm(_Accelerated, MPI.Intracomm):
    """A drop-in for an mpi4py intracommunicator that compresses large messages.

    Making one is collective. Alltoall(v, w), Bcast, Allgather(v), Gather(v), Scatter(v), Reduce,
    Allreduce, Reduce_scatter(_block) (for `MPI.SUM`), Send, Recv and Sendrecv of floating-point and
    integer types are accelerated where a message has at least ``min_nbytes``; everything else goes to
    MPI unchanged. Integers are only ever coded losslessly.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator, whose handle it shares.
    codec : str or Codec
        A codec's spec, such as ``"zfp:rate=8"``; ``"lossless"`` compresses all that it can, sums
        included, which are then added up in an order of their own; ``"auto"`` gives every result MPI's
        bits: between nodes messages are compressed losslessly where that saves time, and floating-point
        sums are left to MPI; ``"none"`` leaves all calls to MPI. Where it is not given,
        ``COMPCOLL_CONFIG`` and ``COMPCOLL_CODEC`` can change it; where it is, without a ``policy``, no rule
        of theirs applies.
    when : {"always", "pays"}
        ``"pays"`` asks the model before each call whether the codec would save time.
    min_nbytes : int, optional
        Smallest message from one rank to another that is compressed, in bytes. That of the communicator's
        first wrapper is the least for Send and its like.
    strict : bool
        Raise `FallbackError` where a call does not run as the policy says.
    owner_exact : bool
        Let the owner of a lossily coded block keep its exact values, while others have decoded ones.
    policy : Policy, mapping or path, optional
        Rules by operation, type, size and communicator; a path names a TOML file.
    device_buffers : bool, optional
        Give MPI the frames of collectives of GPU arrays in the GPU's memory, and GPU arrays that are not
        compressed as they are. Needs a CUDA-aware MPI, which is tried first. The default is that of
        ``COMPCOLL_DEVICE_BUFFERS``, else no.

    Attributes
    ----------
    report : Report
        The record of the last completed call.
    calls_accelerated : int
        Calls that did not go to MPI unchanged.

    Raises
    ------
    ValueError
        For an unknown codec or a parameter out of its limits, on the rank that gave it.
    PolicyError
        Where ranks disagree, on all others.
    TimeoutError
        Where not all ranks come within ``COMPCOLL_TIMEOUT``.
    DeviceBufferError
        Where MPI does not take device memory of one rank, on all ranks.
    """


@guard(*NEIGHBOUR)
class Cartcomm(_Accelerated, MPI.Cartcomm):
    """`Comm` with a Cartesian topology."""

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        return self._make(super().Sub, remain_dims)


@guard(*NEIGHBOUR)
class Graphcomm(_Accelerated, MPI.Graphcomm):
    """`Comm` with a graph topology."""


@guard(*NEIGHBOUR)
class Distgraphcomm(_Accelerated, MPI.Distgraphcomm):
    """`Comm` with a distributed graph topology."""


#: The sibling of each of mpi4py's classes, special ones first; all of them.
_SIBLINGS = {
    MPI.Cartcomm: Cartcomm,
    MPI.Graphcomm: Graphcomm,
    MPI.Distgraphcomm: Distgraphcomm,
    MPI.Intracomm: Comm,
}
CLASSES = tuple(_SIBLINGS.values())


class Intercomm(MPI.Intercomm):
    """An intercommunicator made from a `Comm`: it sends as MPI does, and knows what `Merge` makes of it."""

    _settings: tuple[Any, ...] | None = None

    def Merge(self, high: bool = False) -> MPI.Intracomm:
        """As mpi4py's; the communicator has the policy of both groups, which have to agree."""
        merged = super().Merge(high)
        return merged if self._settings is None else _wrapped(merged, self._settings)


#: The communicators that MPI has from the beginning: a program may put others into their places.
PREDEFINED = {"COMM_WORLD": MPI.COMM_WORLD, "COMM_SELF": MPI.COMM_SELF}


def _wrapped(comm: MPI.Intracomm, settings: tuple[Any, ...]) -> Comm:
    """A communicator with these settings; collective."""
    policy, strict, owner_exact, device_buffers = settings
    return Comm(comm, policy=policy, strict=strict, owner_exact=owner_exact, device_buffers=device_buffers)


def _sibling(comm: MPI.Intracomm) -> Any:
    """The same communicator as an object of the class here that stands for its own."""
    cls = next(ours for theirs, ours in _SIBLINGS.items() if isinstance(comm, theirs))
    return comm if type(comm) is cls else cls.__new__(cls, comm)


def _known(comm: Any) -> Any:
    """The same communicator as it was wrapped before, if it was."""
    context = Context.find(comm) if isinstance(comm, MPI.Intracomm) else None
    settings = [known.settings for known in context.attached] if context is not None else []
    if settings:
        comm = _sibling(comm)
        comm._attach(context, settings[-1])
    return comm


def _plain(cls: type, name: str) -> Any:
    """Unpickle a communicator that is not wrapped."""
    return cls.__new__(cls, PREDEFINED[name])


def _rewrapped(name: str, settings: tuple[Any, ...]) -> Comm:
    """Unpickle a `Comm`: the same object where this process has it."""
    comm = PREDEFINED[name]
    context = Context.find(comm)
    if context is None and name != "COMM_SELF":
        raise pickle.UnpicklingError(
            f"{name} was pickled as a compcoll.Comm, which this process has not made"
        )
    for known in context.attached if context is not None else ():
        if known.settings == settings:
            return known
    if context is None:
        return _wrapped(comm, settings)
    new = Comm.__new__(Comm, comm)
    new._attach(context, settings)
    return new


@cache
def _record() -> None:
    """Trace a program that wraps its communicators itself as well."""
    if environment.trace() is not None:
        from compcoll.tracing import recording

        recording.start(CLASSES, describe)


# -- in the places of MPI.COMM_WORLD and MPI.COMM_SELF

# By these names pickle finds mpi4py's own in a program that has others in their places.
COMM_WORLD, COMM_SELF = MPI.COMM_WORLD, MPI.COMM_SELF


def wrap_world(summary: bool | None = None, **settings: Any) -> None:
    """Put a `Comm` into the places of `MPI.COMM_WORLD` and `MPI.COMM_SELF`; collective over all ranks.

    Later imports find the wrapped ones, and communicators made from them inherit their policy. A second call
    has no effect.

    Parameters
    ----------
    summary : bool, optional
        Whether rank 0 writes a line about all calls to the standard error output when the program ends; by
        default what ``COMPCOLL_SUMMARY`` says, else yes.
    **settings
        As for `compcoll.Comm`.
    """
    if isinstance(MPI.COMM_WORLD, Comm):
        return
    from compcoll.tracing import recording

    recording.start(CLASSES, describe, environment.summary() if summary is None else summary)
    for name, comm in PREDEFINED.items():
        setattr(MPI, name, Comm(comm, **settings))

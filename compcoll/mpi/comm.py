"""Comm: an MPI communicator whose large messages are compressed on the way."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import ref

from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.core import environment
from compcoll.engine.group import wait_for_duplicates
from compcoll.mpi import check, objects
from compcoll.mpi.context import Context
from compcoll.mpi.forms import collective
from compcoll.mpi.p2p import methods as p2p
from compcoll.mpi.p2p import probe as probes
from compcoll.mpi.staging import BUFFERED, NEIGHBOUR, guard
from compcoll.mpi.state import Settings, State, describe
from compcoll.policy import Policy, make_policy
from compcoll.report import Report

__all__ = ["CLASSES", "PREDEFINED", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "wrap_world"]


_Made = TypeVar("_Made", bound="Comm")
#: What a policy is made of: itself, its keys, or the path of a file.
PolicyLike = Policy | Mapping[str, Any] | str | os.PathLike[str]


class _DefaultCodec(str):
    """The default of ``codec``, told from the same word given by a caller: the environment may change it."""


DEFAULT_CODEC = _DefaultCodec("auto")


def _document(cls: type) -> None:
    """Give methods of a class that say nothing themselves the words of mpi4py's."""
    for name, method in vars(cls).items():
        if not name.startswith("_") and callable(method) and not method.__doc__:
            method.__doc__ = getattr(getattr(MPI.Intracomm, name, None), "__doc__", None)


@guard(*BUFFERED)
class Comm(MPI.Intracomm):
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

    _state: State
    _make_state: type[State] = State

    def __new__(cls, comm: MPI.Intracomm | None = None, *args: Any, **kwargs: Any) -> Self:
        if comm is not None and not MPI.Is_initialized():
            MPI.COMM_WORLD.Get_rank()  # begins MPI after an import of compcoll.torch, or says what will
        self = MPI.Intracomm.__new__(cls, comm)  # which siblings with a topology have beneath theirs
        self._state = cls._make_state(MPI.Intracomm(comm))
        return self

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
        self._state.agree(self, make, strict, owner_exact, device_buffers)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._state.policy

    @property
    def report(self) -> Report:
        """The report of the last call on this rank."""
        return self._state.report

    @property
    def settings(self) -> Settings:
        """Policy, ``strict``, ``owner_exact`` and ``device_buffers``."""
        return self._state.settings

    @property
    def calls_accelerated(self) -> int:
        """Calls that did not go to MPI unchanged."""
        return self._state.accelerated

    @property
    def workers(self) -> int:
        """Threads that encode and decode beside this rank's messages; the fewest of all ranks."""
        context = self._state.context
        return context.facts.workers if context is not None else 0

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
        mine = self._state
        other._state.device_buffers = mine.device_buffers
        other._state.agree(
            other,
            lambda: make_policy(self.policy, codec, when, min_nbytes, policy),
            mine.strict if strict is None else strict,
            mine.owner_exact if owner_exact is None else owner_exact,
            mine.device_buffers,
        )
        return other

    def __repr__(self) -> str:
        if self == MPI.COMM_NULL:
            return f"<compcoll.{type(self).__name__}: null>"
        state = self._state
        name = f"{state.name!r}, " if state.name else ""
        if state.unattached is None and state.context is None:
            return f"<compcoll.{type(self).__name__}: {name}not accelerated>"
        rules = f", {len(self.policy.rules)} rules" if self.policy.rules else ""
        return (
            f"<compcoll.{type(self).__name__}: {name}rank {state.rank} of {state.size}, "
            f"{self.policy.codec}, min_nbytes={self.policy.min_nbytes}{rules}>"
        )

    def __reduce__(self) -> Any:
        """Communicators that MPI has from the beginning can be pickled, as mpi4py's can."""
        name = next((name for name, comm in PREDEFINED.items() if self == comm), None)
        if name is None:
            raise ValueError(f"cannot serialize '{type(self).__module__}.{type(self).__name__}' instance")
        if self._state.context is None:
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

    def Set_name(self, name: str) -> None:
        super().Set_name(name)
        self._state.name = self.Get_name()
        self._state.known.clear()

    def Free(self) -> None:
        """As mpi4py's: calls under way come to their ends."""
        Context.part(self._state.comm)
        super().Free()
        self._state.comm = MPI.Intracomm()

    def Disconnect(self) -> None:
        """As mpi4py's, after calls under way have come to their ends."""
        Context.part(self._state.comm)
        super().Disconnect()
        self._state.comm = MPI.Intracomm()

    # -- new communicators have the same policy

    def _make(
        self,
        kind: type[_Made],
        method: Callable[..., Any],
        *args: Any,
        same_ranks: bool = False,
        **kwargs: Any,
    ) -> _Made:
        """Make a communicator, of a kind, and give it the policy of this one; collective over the new one.

        A private communicator that is still being made is complete before: MPICH waits for that without end
        where the new one has a single rank.
        """
        state = self._state
        context = state.context
        if context is not None and method.__name__ != "Create_group":  # which the group's ranks alone call
            state.meet_all(method.__name__, environment.timeout())
        new: _Made = method(*args, **kwargs)
        if new != MPI.COMM_NULL and (context is not None or isinstance(new, Comm)):
            new = _sibling(new)
        if new == MPI.COMM_NULL or context is None:
            return new
        new._state.descend(new, state, same_ranks)
        return new

    def _idup(
        self, method: Callable[..., tuple[Self, MPI.Request]], info: MPI.Info | None
    ) -> tuple[Self, MPI.Request]:
        """The same for a duplicate that is complete only when its request is."""
        state = self._state
        context = state.context
        if context is None:
            comm, request = method(info)
            return _sibling(comm), request
        wait_for_duplicates()
        with context.heir() as heir:
            comm, request = method(info)
        heir.belong_to(comm, *(context.private_comm.Idup() if context.size > 1 else (comm,)))
        new = _sibling(comm)
        # Others may be attached before this one.
        heir.least, heir.wrappers = state.policy.min_nbytes, [ref(new)]
        new._state.expect(heir, state)
        return new, request

    def Dup(self, info: MPI.Info | None = None) -> Self:
        return self._make(type(self), super().Dup, info, same_ranks=True)

    def Dup_with_info(self, info: MPI.Info) -> Self:
        return self._make(type(self), super().Dup_with_info, info, same_ranks=True)

    def Clone(self) -> Self:
        return self._make(type(self), super().Clone, same_ranks=True)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        return self._idup(super().Idup, info)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        return self._idup(super().Idup_with_info, info)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        return self._make(Comm, super().Split, color, key)

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        return self._make(Comm, super().Split_type, split_type, key, info)

    def Create(self, group: MPI.Group) -> Comm:
        return self._make(Comm, super().Create, group)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        return self._make(Comm, super().Create_group, group, tag)

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        return self._make(Cartcomm, super().Create_cart, dims, periods, reorder)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Graphcomm:
        return self._make(Graphcomm, super().Create_graph, index, edges, reorder)

    def Create_dist_graph_adjacent(
        self, sources: Sequence[int], destinations: Sequence[int], *args: Any, **kwargs: Any
    ) -> Distgraphcomm:
        return self._make(
            Distgraphcomm, super().Create_dist_graph_adjacent, sources, destinations, *args, **kwargs
        )

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> Distgraphcomm:
        return self._make(
            Distgraphcomm, super().Create_dist_graph, sources, degrees, destinations, *args, **kwargs
        )

    @classmethod
    def Create_from_group(cls, group: MPI.Group, *args: Any, **kwargs: Any) -> MPI.Intracomm:
        """As mpi4py's; the communicator, which was made from none, has the default policy."""
        comm = MPI.Intracomm.Create_from_group(group, *args, **kwargs)
        return comm if comm == MPI.COMM_NULL else Comm(comm)

    def Create_intercomm(
        self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int = 0
    ) -> MPI.Intercomm:
        inter = super().Create_intercomm(local_leader, peer_comm, remote_leader, tag)
        if inter == MPI.COMM_NULL or self._state.context is None:
            return inter
        new = Intercomm(inter)
        new._settings = self.settings
        return new


@guard(*NEIGHBOUR)
class Cartcomm(Comm, MPI.Cartcomm):
    """`Comm` with a Cartesian topology."""

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        return self._make(Cartcomm, super().Sub, remain_dims)


@guard(*NEIGHBOUR)
class Graphcomm(Comm, MPI.Graphcomm):
    """`Comm` with a graph topology."""


@guard(*NEIGHBOUR)
class Distgraphcomm(Comm, MPI.Distgraphcomm):
    """`Comm` with a distributed graph topology."""


#: The sibling of each of mpi4py's classes, special ones first; all of them.
_SIBLINGS = {
    MPI.Cartcomm: Cartcomm,
    MPI.Graphcomm: Graphcomm,
    MPI.Distgraphcomm: Distgraphcomm,
    MPI.Intracomm: Comm,
}
#: The base of the others first.
CLASSES = tuple(reversed(_SIBLINGS.values()))
for _class in CLASSES:
    _document(_class)
    if check.ON:
        check.install(_class)


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
    if type(comm) is not cls:
        return cls.__new__(cls, comm)
    comm._state.comm = MPI.Intracomm(comm)  # which mpi4py has made after its object
    return comm


def _known(comm: MPI.Comm) -> MPI.Comm:
    """The same communicator as it was wrapped before, if it was."""
    if not isinstance(comm, MPI.Intracomm):
        return comm
    context = Context.find(comm)
    if context is None or not (attached := context.attached):
        return comm
    known: Comm = _sibling(comm)
    known._state.attach(context, attached[-1].settings, known)
    return known


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
    if context is None:
        return _wrapped(comm, settings)
    for known in context.attached:
        if known.settings == settings:
            return known
    new = Comm.__new__(Comm, comm)
    new._state.attach(context, settings, new)
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

"""Comm: an MPI communicator whose large messages are compressed on the way.

mpi4py's own methods call MPI, and a layer in between serves the calls on marked communicators (csrc/layer).
So a `Comm` is mpi4py's class over a marked duplicate, with a policy, a report, and methods that make further
communicators.
"""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.comm.construct import construct
from compcoll.comm.marked import Marked, Settings, class_name
from compcoll.comm.objects import ObjectCalls
from compcoll.engine import _engine
from compcoll.engine.report import Report, describe
from compcoll.policy import Policy, make_policy
from compcoll.policy.policy import below_min_nbytes

__all__ = ["CLASSES", "PREDEFINED", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "of_handle"]

#: Arguments that a policy can be made from: a policy, its keys, or the path of a file.
PolicyLike = Policy | Mapping[str, Any] | str | os.PathLike[str]


class _DefaultText(str):
    """A default that differs from the same word given by a caller: policy or environment may change it."""


DEFAULT_CODEC, DEFAULT_WHEN = _DefaultText("auto"), _DefaultText("always")


class Comm(ObjectCalls, MPI.Intracomm):
    """A drop-in for an mpi4py intracommunicator that compresses large messages.

    It is a duplicate of the given communicator, made collectively; the same settings on the same communicator
    give the same duplicate. Its methods are mpi4py's. Alltoall(v, w), Bcast, Allgather(v), Gather(v),
    Scatter(v), Reduce, Allreduce, Reduce_scatter(_block) (for `MPI.SUM`), Send, Recv and Sendrecv of
    floating-point and integer types are accelerated if a message has at least ``min_nbytes``, in all forms;
    everything else goes to MPI unchanged. Integers are only ever coded losslessly. Errors are MPI's: see
    `compcoll.errors`.

    Parameters
    ----------
    comm : MPI.Intracomm
    codec : str or Codec
        A codec's spec, such as ``"zfp:rate=8"``. ``"lossless"`` compresses everything that it can, including
        sums, which are then added in another order. ``"auto"`` gives every result MPI's bits: messages
        between nodes are compressed losslessly if that saves time, and floating-point sums are left to MPI.
        ``"none"`` leaves all calls to MPI. If no codec is given, ``COMPCOLL_CONFIG`` and ``COMPCOLL_CODEC``
        can set it; a codec that is given without a ``policy`` overrides their rules.
    when : {"always", "pays"}
        ``"pays"`` compresses only if trials show that it saves time.
    min_nbytes : int, optional
        Smallest message from one rank to another that is compressed, in bytes.
    strict : bool
        Raise an error if a call does not run as the policy says.
    owner_exact : bool
        Let the owner of a lossily coded block keep its exact values, while others have decoded ones.
    policy : Policy, mapping or path, optional
        Rules by operation, type, size and communicator; a path names a TOML file.
    device_buffers : bool, optional
        Pass frames of collectives of GPU arrays to MPI in GPU memory, and GPU arrays that are not compressed
        unchanged. This needs a CUDA-aware MPI, which is tried first. The default is
        ``COMPCOLL_DEVICE_BUFFERS``, else no.

    Attributes
    ----------
    report : Report
        The record of the last completed call.
    calls_accelerated : int
        Calls that did not go to MPI unchanged.

    Raises
    ------
    TypeError
        If ``comm`` is not an intracommunicator.
    ValueError
        For an unknown codec or a parameter out of its limits, on the rank that gave it.
    PolicyError
        If ranks disagree, on all other ranks.
    TimeoutError
        If not all ranks call within ``COMPCOLL_TIMEOUT``.
    DeviceBufferError
        If MPI does not take device memory of some rank, on all ranks.
    RuntimeError
        If a program has only an MPI session and has not initialised MPI.
    """

    __slots__ = ("_origin",)
    _origin: MPI.Intracomm | None

    def __new__(cls, comm: MPI.Intracomm | None = None, *args: Any, **kwargs: Any) -> Self:
        is_null = comm is None or (isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL)
        if not is_null and not isinstance(comm, MPI.Intracomm):
            raise TypeError(
                f"compcoll.Comm takes an intracommunicator of mpi4py such as MPI.COMM_WORLD, not {comm!r}, a "
                f"{type(comm).__name__}"
            )
        if comm is not None and not MPI.Is_initialized():
            MPI.COMM_WORLD.Get_rank()  # begins MPI after an import of compcoll.torch, or says what will
            if not MPI.Is_initialized():
                raise RuntimeError(
                    "compcoll.Comm of a communicator of an MPI session needs MPI.Init() before"
                )
        _engine.hook()
        if cls is Comm and comm is not None:
            cls = class_of(comm)  # type: ignore[assignment]
        self = MPI.Intracomm.__new__(cls)
        self._origin = None
        return self

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        codec: str | Codec | None = DEFAULT_CODEC,
        *,
        when: str = DEFAULT_WHEN,
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
        make = partial(make_policy, None, codec, None if when is DEFAULT_WHEN else when, min_nbytes, policy)
        self._become(comm, construct(comm, make, strict, owner_exact, device_buffers))

    def _become(self, origin: MPI.Intracomm, handle: int) -> None:
        """Be the marked communicator of a handle."""
        _take_handle(self, MPI.Comm.fromhandle(handle))
        self._origin = MPI.Intracomm(origin)
        _adopt(self)

    __del__ = _engine.drop_comm

    @property
    def _marked(self) -> Marked | None:
        """Python's side of it; None if it is not marked."""
        number = _engine.number_of(self)
        return Marked.of(number) if number else None

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        marked = self._marked
        return Policy() if marked is None else marked.policy

    @property
    def settings(self) -> Settings:
        """Policy, ``strict``, ``owner_exact`` and ``device_buffers``."""
        marked = self._marked
        return (Policy(), False, False, False) if marked is None else marked.settings

    @property
    def origin(self) -> MPI.Intracomm:
        """The communicator that it was made from, for libraries that call MPI themselves.

        If a program has made this communicator from a `Comm`, itself as mpi4py's class. Null if it was freed.
        """
        return MPI.Intracomm(self) if self._origin is None or self == MPI.COMM_NULL else self._origin

    @property
    def report(self) -> Report:
        """The report of the last call on this rank."""
        last = _engine.last_of(self)
        if last == _engine.OBJECTS:
            marked = self._marked
            assert marked is not None
            return marked.report_of_objects
        if last is None:
            return describe("", "no call yet")
        if isinstance(last, str):
            marked = self._marked
            assert marked is not None
            return describe(last, marked.idle or below_min_nbytes(marked.policy.min_nbytes))
        return describe(*last)

    @property
    def calls_accelerated(self) -> int:
        """Calls that did not go to MPI unchanged."""
        marked = self._marked
        return int(_engine.accelerated_of(self)) + (0 if marked is None else marked.objects)

    @property
    def workers(self) -> int:
        """Number of worker threads that encode and decode; the smallest of all ranks."""
        marked = self._marked
        return marked.facts.workers if marked is not None else 0

    def using(
        self,
        codec: str | Codec | None = None,
        *,
        when: str | None = None,
        min_nbytes: int | None = None,
        strict: bool | None = None,
        owner_exact: bool | None = None,
        policy: PolicyLike | None = None,
    ) -> Comm:
        """Return the same ranks with another policy; collective.

        Parameters
        ----------
        codec, when, min_nbytes, strict, owner_exact, policy
            See `Comm`; arguments that are not given keep their values. A ``codec`` without a ``policy`` also
            replaces the current rules, and applies to all calls.

        Returns
        -------
        Comm
            Another duplicate of the same communicator, to be freed like any other.
        """
        mine, was_strict, was_exact, device_buffers = self.settings
        origin = self.origin
        handle = construct(
            origin,
            lambda: make_policy(mine, codec, when, min_nbytes, policy),
            was_strict if strict is None else strict,
            was_exact if owner_exact is None else owner_exact,
            device_buffers,
        )
        return of_handle(handle, origin)

    def __repr__(self) -> str:
        if self == MPI.COMM_NULL:
            return f"<compcoll.{type(self).__name__}: null>"
        name = self.Get_name()
        shown, marked = f"{name!r}, " if name else "", self._marked
        if marked is None:
            return f"<compcoll.{type(self).__name__}: {shown}not accelerated>"
        rules = f", {len(self.policy.rules)} rules" if self.policy.rules else ""
        return (
            f"<compcoll.{type(self).__name__}: {shown}rank {self.rank} of {self.size}, "
            f"{self.policy.codec}, min_nbytes={self.policy.min_nbytes}{rules}>"
        )

    def __reduce__(self) -> Any:
        """Pickle a `Comm` that was made from COMM_WORLD or COMM_SELF."""
        name = next((name for name, comm in PREDEFINED.items() if self.origin == comm), None)
        if name is None or self == MPI.COMM_NULL:
            raise ValueError(f"cannot serialize '{type(self).__module__}.{type(self).__name__}' instance")
        return _unpickled, (name, self.settings)

    def free(self) -> None:
        """Free it, as mpi4py does, unless MPI has had it from the beginning."""
        if self not in PREDEFINED.values():
            super().free()

    @classmethod
    def fromhandle(cls, handle: int) -> MPI.Comm:
        """Make an object of a handle, as mpi4py does; a `Comm` of a marked communicator."""
        return _known(MPI.Comm.fromhandle(handle))

    @classmethod
    def fromint(cls, arg: int, /) -> MPI.Comm:
        """Make an object of a handle; see `fromhandle`."""
        return _known(MPI.Comm.fromint(arg))

    @classmethod
    def f2py(cls, arg: int) -> MPI.Comm:
        """Make an object of a handle; see `fromhandle`."""
        return _known(MPI.Comm.f2py(arg))

    # -- new communicators have the same policy: the layer has marked them

    def Dup(self, info: MPI.Info | None = None) -> Self:
        return _adopt(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Self:
        return _adopt(super().Dup_with_info(info))

    def Clone(self) -> Self:
        return _adopt(super().Clone())

    def Idup(self, info: MPI.Info | None = None) -> tuple[MPI.Intracomm, MPI.Request]:  # type: ignore[override]
        """Duplicate it to a plain communicator: no rank waits until that could have a policy."""
        return MPI.Intracomm(self).Idup(info)

    def Idup_with_info(self, info: MPI.Info) -> tuple[MPI.Intracomm, MPI.Request]:  # type: ignore[override]
        """Duplicate it to a plain communicator; see `Idup`."""
        return MPI.Intracomm(self).Idup_with_info(info)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        return _known(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        return _known(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Comm:
        return _known(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        return _known(super().Create_group(group, tag))

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        return _known(super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Graphcomm:
        return _known(super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(
        self, sources: Sequence[int], destinations: Sequence[int], *args: Any, **kwargs: Any
    ) -> Distgraphcomm:
        return _known(super().Create_dist_graph_adjacent(sources, destinations, *args, **kwargs))

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        *args: Any,
        **kwargs: Any,
    ) -> Distgraphcomm:
        return _known(super().Create_dist_graph(sources, degrees, destinations, *args, **kwargs))


class Cartcomm(Comm, MPI.Cartcomm):
    """`Comm` with a Cartesian topology."""

    __slots__ = ()

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        return _known(super().Sub(remain_dims))


class Graphcomm(Comm, MPI.Graphcomm):
    """`Comm` with a graph topology."""

    __slots__ = ()


class Distgraphcomm(Comm, MPI.Distgraphcomm):
    """`Comm` with a distributed graph topology."""

    __slots__ = ()


#: The sibling of each of mpi4py's classes, special ones first; all of them.
_SIBLINGS = {
    MPI.Cartcomm: Cartcomm,
    MPI.Graphcomm: Graphcomm,
    MPI.Distgraphcomm: Distgraphcomm,
    MPI.Intracomm: Comm,
}
#: The base of the others first.
CLASSES = tuple(reversed(_SIBLINGS.values()))
_BY_NAME = {cls.__name__: cls for cls in CLASSES}

if not TYPE_CHECKING:  # they keep mpi4py's documentation
    for _class in (ObjectCalls, *CLASSES):
        for _name, _method in vars(_class).items():
            if not _name.startswith("_") and callable(_method) and not _method.__doc__:
                _method.__doc__ = getattr(getattr(MPI.Intracomm, _name, None), "__doc__", None)


def _replacing(cls: type[Comm]) -> type[Comm]:
    """A class of communicators that checks the root's buffer of a Bcast, which a lossy codec overwrites.

    mpi4py allows read-only memory at the root.
    """

    def checked(name: str) -> Callable[..., Any]:
        plain = getattr(MPI.Intracomm, name)

        def method(self: Comm, buf: Any, root: int = 0, *args: Any, **kwargs: Any) -> Any:
            if self.rank != root or not _is_read_only(buf):
                return plain(self, buf, root, *args, **kwargs)
            with _engine.root_is_read_only():
                return plain(self, buf, root, *args, **kwargs)

        method.__name__, method.__doc__ = name, plain.__doc__
        return method

    body: dict[str, Any] = {name: checked(name) for name in ("Bcast", "Ibcast", "Bcast_init")}
    body |= {"__module__": cls.__module__, "__doc__": cls.__doc__, "__slots__": ()}
    return type(cls.__name__, (cls,), body)


_REPLACING = {cls: _replacing(cls) for cls in CLASSES}


def _is_read_only(buf: Any) -> bool:
    """True if a buffer argument is read-only memory."""
    first = buf[0] if isinstance(buf, (list, tuple)) and buf else buf
    try:
        with memoryview(first) as view:
            return view.readonly
    except (TypeError, BufferError, ValueError):
        return False


def _take_handle(into: MPI.Comm, of: MPI.Comm) -> None:
    """Give an object of mpi4py's the handle of another one."""
    ctypes.memmove(MPI._addressof(into), MPI._addressof(of), MPI._sizeof(of))


def class_of(comm: MPI.Comm) -> type[Comm]:
    """The class here that stands for that of a communicator."""
    return _BY_NAME[class_name(comm)]


def _known(comm: MPI.Comm) -> Any:
    """Wrap a communicator in the class here, if it is marked."""
    if comm == MPI.COMM_NULL or not isinstance(comm, MPI.Intracomm):
        return comm
    number = _engine.number_of(comm)
    return of_handle(comm.handle, None) if number else comm


def of_handle(handle: int, origin: MPI.Intracomm | None) -> Any:
    """A `Comm`, or its sibling, of a marked communicator."""
    comm = MPI.Comm.fromhandle(handle)
    cls = class_of(comm)
    new = cls.__new__(cls)
    _take_handle(new, comm)
    new._origin = None if origin is None else MPI.Intracomm(origin)
    return _adopt(new)


def _adopt(comm: Any) -> Any:
    """Have an object know of the end of its communicator, and how its root's buffers are to be looked at."""
    if comm == MPI.COMM_NULL:
        return comm
    _engine.note_comm(comm)
    marked = comm._marked
    if marked is not None and type(comm) in _REPLACING and _may_replace(marked):
        comm.__class__ = _REPLACING[type(comm)]
    return comm


def _may_replace(marked: Marked) -> bool:
    """True if a lossy codec may overwrite a root's buffer."""
    return marked.policy.may_lose and not marked.owner_exact


# -- pickles

#: The communicators that MPI has from the beginning: a program may put others into their places.
PREDEFINED = {"COMM_WORLD": MPI.COMM_WORLD, "COMM_SELF": MPI.COMM_SELF}


def _unpickled(name: str, settings: Settings) -> Comm:
    """Unpickle a `Comm`: the communicator that this process has made with these settings."""
    policy, strict, owner_exact, device_buffers = settings
    plain, placed = PREDEFINED[name], getattr(MPI, name)
    if isinstance(placed, Comm) and placed.settings == settings:
        return placed
    if name == "COMM_SELF":
        return Comm(
            plain, policy=policy, strict=strict, owner_exact=owner_exact, device_buffers=device_buffers
        )
    for number in filter(None, (_engine.number_of(plain), *_engine.duplicates_of(plain))):
        if Marked.of(number).settings == settings:
            handle, _ = _engine.place_of(number)
            return of_handle(handle, plain)
    raise pickle.UnpicklingError(f"{name} was pickled as a compcoll.Comm, which this process has not made")

"""The lower-case calls of NumPy arrays: mpi4py pickles them, here as frames, compressed without loss.

A pickle of a frame is decoded where it is loaded, so that nobody has to know what comes: any receive will do,
and ranks may give objects of any kind. All else is mpi4py's, the order of sums as well.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec, decode
from compcoll.core import dtypes
from compcoll.engine import _engine, hooks
from compcoll.frame import HEADER_NBYTES
from compcoll.marked import Marked
from compcoll.prepare import decide_message
from compcoll.report import Stats, describe

if TYPE_CHECKING:
    from compcoll.comm import Comm

__all__ = ["ObjectCalls"]


class _Thread(local):
    """Arrays that this thread has decoded."""

    came = 0


_thread = _Thread()


def _decoded(frame: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray = decode(frame).reshape(shape)
    _thread.came += 1
    return array


class _Packed:
    """An array that is pickled as a frame, where that is smaller; and a term of a sum or a product."""

    def __init__(self, array: np.ndarray, call: _Call, decision: Any):
        self.array, self._call, self._decision = array, call, decision

    def __reduce__(self) -> Any:
        frame = codec("lossless").encode(self.array.reshape(-1))
        if frame.nbytes >= self.array.nbytes + HEADER_NBYTES:
            return self.array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        self._call.count(self.array.nbytes, frame.nbytes, self._decision)
        return _decoded, (frame, self.array.shape)

    def __add__(self, other: Any) -> Any:
        return self._call.pack(self.array + _plain(other))

    def __radd__(self, other: Any) -> Any:
        return self._call.pack(_plain(other) + self.array)

    def __mul__(self, other: Any) -> Any:
        return self._call.pack(self.array * _plain(other))

    def __rmul__(self, other: Any) -> Any:
        return self._call.pack(_plain(other) * self.array)


def _plain(obj: Any) -> Any:
    return obj.array if isinstance(obj, _Packed) else obj


class _Call:
    """A call in which arrays are packed, and its report."""

    def __init__(self, comm: Comm, name: str):
        self._comm, self._name = comm, name
        self._marked: Marked | None = comm._marked
        self._stats, self._decision = Stats(), None
        self._op = _LIKE.get(name, "Send")

    def count(self, nbytes: int, frame_nbytes: int, decision: Any) -> None:
        """A frame was pickled."""
        self._stats.messages += 1
        self._stats.raw_nbytes += nbytes
        self._stats.wire_nbytes += frame_nbytes
        self._decision = decision

    def pack(self, obj: Any, peer: int = -1) -> Any:
        """What is pickled in the place of an object for a rank."""
        marked = self._marked
        if type(obj) is not np.ndarray or marked is None or marked.idle or peer == marked.rank:
            return obj
        if obj.nbytes < max(marked.policy.min_nbytes, 1) or not obj.flags.carray:
            return obj
        if not dtypes.supported(obj.dtype) or not _pickles():
            return obj
        name = marked.name if marked.policy.names_communicators else ""
        decision = decide_message(marked, self._op, obj.dtype, obj.nbytes, peer, name)
        if decision.codec is None:
            return obj
        return _Packed(obj, self, replace(decision, codec=codec("lossless")))

    def end(self, came: int, accelerated: int) -> None:
        """Have the communicator report what was packed, or has come."""
        if self._marked is None or not (self._stats.messages or _thread.came > came):
            return
        # Else a call of bytes that mpi4py has made counts.
        self._marked.objects += self._comm.calls_accelerated == accelerated
        self._marked.report_of_objects = describe(self._name, self._decision, self._stats)
        _engine.note_objects(self._comm)
        for hook in hooks.objects if self._stats.messages else ():
            hook(self._stats.raw_nbytes - self._stats.wire_nbytes)


def _pickles() -> bool:
    """Whether mpi4py pickles: a program may have it use other functions, which need not take a frame."""
    return MPI.pickle.dumps(None) == pickle.dumps(None, MPI.pickle.PROTOCOL)


#: Operations whose rules are those of calls of objects; of the others `Send`.
_LIKE = {"bcast": "Bcast", "allgather": "Allgatherv", "gather": "Gatherv", "scatter": "Scatterv",
         "alltoall": "Alltoallv", "reduce": "Reduce", "allreduce": "Allreduce"}


def _packing(method: Callable[..., Any]) -> Any:
    """A method of mpi4py's of which ``method(call, comm, *args)`` packs the arguments."""
    name = method.__name__
    original = getattr(MPI.Intracomm, name)

    @wraps(original)
    def packed(self: Comm, *args: Any, **kwargs: Any) -> Any:
        call, came, accelerated = _Call(self, name), _thread.came, self.calls_accelerated
        result = original(self, *method(call, self, *args, **kwargs))
        call.end(came, accelerated)
        return _plain(result)

    return packed


class ObjectCalls:
    """Methods of `compcoll.Comm` that take objects, as those of mpi4py."""

    @_packing
    def bcast(call, comm, obj, root=0):
        return call.pack(obj) if comm.rank == root else obj, root

    @_packing
    def allgather(call, comm, sendobj):
        return (call.pack(sendobj),)

    @_packing
    def gather(call, comm, sendobj, root=0):
        return call.pack(sendobj, root), root

    @_packing
    def scatter(call, comm, sendobj, root=0):
        if comm.rank == root and sendobj is not None:
            sendobj = [call.pack(one, peer) for peer, one in enumerate(sendobj)]
        return sendobj, root

    @_packing
    def alltoall(call, comm, sendobj):
        return ([call.pack(one, peer) for peer, one in enumerate(sendobj)],)

    @_packing
    def reduce(call, comm, sendobj, op=MPI.SUM, root=0):
        return call.pack(sendobj) if op in (MPI.SUM, MPI.PROD) else sendobj, op, root

    @_packing
    def allreduce(call, comm, sendobj, op=MPI.SUM):
        return call.pack(sendobj) if op in (MPI.SUM, MPI.PROD) else sendobj, op

    @_packing
    def sendrecv(
        call,
        comm,
        sendobj,
        dest,
        sendtag=0,
        recvbuf=None,
        source=MPI.ANY_SOURCE,
        recvtag=MPI.ANY_TAG,
        status=None,
    ):
        return call.pack(sendobj, dest), dest, sendtag, recvbuf, source, recvtag, status


def _sending(name: str) -> Any:
    def method(call: _Call, comm: Comm, obj: Any, dest: int, tag: int = 0) -> Any:
        return call.pack(obj, dest), dest, tag

    method.__name__ = name
    return _packing(method)


for _name in ("send", "ssend", "isend", "issend"):
    setattr(ObjectCalls, _name, _sending(_name))

"""Lower-case calls, such as ``bcast`` and ``send``, that pickle NumPy arrays as losslessly compressed frames.

Unpickling decodes a frame, so any receive of mpi4py works, and ranks may send objects of any kind. Everything
else is mpi4py's, including the order of sums.
"""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import local
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec, decode
from compcoll.comm.marked import Marked
from compcoll.comm.prepare import decide_message
from compcoll.core import dtypes
from compcoll.engine import _engine, hooks
from compcoll.engine.report import Stats, describe
from compcoll.frame import HEADER_NBYTES
from compcoll.operations import ALGORITHMS

__all__ = ["ObjectCalls"]


class _Thread(local):
    decoded = 0  # number of arrays


_thread = _Thread()


def _decoded(frame: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray = decode(frame).reshape(shape)
    _thread.decoded += 1
    return array


class _Framed:
    """Array that is pickled as a frame if that is smaller, and can be an operand of a sum or a product."""

    def __init__(self, array: np.ndarray, call: _Call, decision: Any):
        self.array, self._call, self._decision = array, call, decision

    def __reduce__(self) -> Any:
        frame = codec("lossless").encode(self.array.reshape(-1))
        if frame.nbytes >= self.array.nbytes + HEADER_NBYTES:
            return self.array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        self._call.count(self.array.nbytes, frame.nbytes, self._decision)
        return _decoded, (frame, self.array.shape)

    def __add__(self, other: Any) -> Any:
        return self._call.wrap(self.array + _unwrap(other))

    def __radd__(self, other: Any) -> Any:
        return self._call.wrap(_unwrap(other) + self.array)

    def __mul__(self, other: Any) -> Any:
        return self._call.wrap(self.array * _unwrap(other))

    def __rmul__(self, other: Any) -> Any:
        return self._call.wrap(_unwrap(other) * self.array)


def _unwrap(obj: Any) -> Any:
    return obj.array if isinstance(obj, _Framed) else obj


class _Call(AbstractContextManager["_Call"]):
    """Call whose arrays are pickled as frames, and its report."""

    def __init__(self, comm: Any, name: str):
        self._comm, self._name = comm, name
        self._marked: Marked | None = comm._marked
        self._stats = Stats()
        self._decision: Any = None

    def __enter__(self) -> Self:
        self._before = _thread.decoded, self._comm.calls_accelerated
        return self

    def __exit__(self, *exc: object) -> None:
        decoded, accelerated = self._before
        if self._marked is None or not (self._stats.messages or _thread.decoded > decoded):
            return
        # Otherwise mpi4py's own accelerated call of the bytes is already counted.
        self._marked.objects += self._comm.calls_accelerated == accelerated
        self._marked.report_of_objects = describe(self._name, self._decision, self._stats)
        _engine.note_objects(self._comm)
        for hook in hooks.objects if self._stats.messages else ():
            hook(self._stats.raw_nbytes - self._stats.wire_nbytes)

    def count(self, nbytes: int, frame_nbytes: int, decision: Any) -> None:
        """Record a frame that was pickled."""
        self._stats.messages += 1
        self._stats.raw_nbytes += nbytes
        self._stats.wire_nbytes += frame_nbytes
        self._decision = decision

    def wrap(self, obj: Any, peer: int = -1) -> Any:
        """Return the object to pickle for a rank: arrays worth a frame as `_Framed`, others unchanged."""
        marked = self._marked
        if type(obj) is not np.ndarray or marked is None or marked.idle or peer == marked.rank:
            return obj
        if obj.nbytes < max(marked.policy.min_nbytes, 1) or not obj.flags.carray:
            return obj
        if not dtypes.supported(obj.dtype) or not _pickles():
            return obj
        name = marked.name if marked.policy.names_communicators else ""
        op = _LIKE.get(self._name, self._name.capitalize())
        like = op if op in ALGORITHMS else "Send"
        decision = decide_message(marked, like, obj.dtype, obj.nbytes, peer, name)
        if decision.codec is None:
            return obj
        return _Framed(obj, self, replace(decision, codec=codec("lossless")))

    def wrap_operand(self, obj: Any, op: Any) -> Any:
        """Return the object to pickle as an operand of a reduction: a `_Framed` for sums and products."""
        self._stats.add_bound(None)  # rounding by Python's operators is unknown
        return self.wrap(obj) if op in (MPI.SUM, MPI.PROD) else obj

    def run(self, *args: Any) -> Any:
        """Call mpi4py's method and return its result."""
        return _unwrap(getattr(MPI.Intracomm, self._name)(self._comm, *args))


def _pickles() -> bool:
    """True if mpi4py uses pickle itself: functions with which a program replaces it may refuse frames."""
    return MPI.pickle.dumps(None) == pickle.dumps(None, MPI.pickle.PROTOCOL)


#: Calls of objects whose algorithm is decided under another operation's name.
_LIKE = {"allgather": "Allgatherv", "gather": "Gatherv", "scatter": "Scatterv", "alltoall": "Alltoallv"}


class ObjectCalls:
    """Lower-case methods of `compcoll.Comm`, with mpi4py's signatures."""

    __slots__ = ()
    rank: int

    def bcast(self, obj: Any, root: int = 0) -> Any:
        with _Call(self, "bcast") as call:
            return call.run(call.wrap(obj) if self.rank == root else obj, root)

    def allgather(self, sendobj: Any) -> Any:
        with _Call(self, "allgather") as call:
            return call.run(call.wrap(sendobj))

    def gather(self, sendobj: Any, root: int = 0) -> Any:
        with _Call(self, "gather") as call:
            return call.run(call.wrap(sendobj, root), root)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        with _Call(self, "scatter") as call:
            if self.rank == root and sendobj is not None:
                sendobj = [call.wrap(one, peer) for peer, one in enumerate(sendobj)]
            return call.run(sendobj, root)

    def alltoall(self, sendobj: Any) -> Any:
        with _Call(self, "alltoall") as call:
            if sendobj is not None:
                sendobj = [call.wrap(one, peer) for peer, one in enumerate(sendobj)]
            return call.run(sendobj)

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        with _Call(self, "reduce") as call:
            return call.run(call.wrap_operand(sendobj, op), op, root)

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        with _Call(self, "allreduce") as call:
            return call.run(call.wrap_operand(sendobj, op), op)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send("send", obj, dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send("ssend", obj, dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Any:
        return self._send("isend", obj, dest, tag)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Any:
        return self._send("issend", obj, dest, tag)

    def _send(self, name: str, obj: Any, dest: int, tag: int) -> Any:
        with _Call(self, name) as call:
            return call.run(call.wrap(obj, dest), dest, tag)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        with _Call(self, "sendrecv") as call:
            return call.run(call.wrap(sendobj, dest), dest, sendtag, recvbuf, source, recvtag, status)

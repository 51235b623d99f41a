"""The lower-case collectives of arrays, which are pickled as frames: compressed without loss.

All else is mpi4py's. A pickle of a frame is decoded where it is loaded, so that nobody has to know what
comes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import local
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec, decode
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES
from compcoll.marked import Marked
from compcoll.prepare import decide_message
from compcoll.report import Stats

if TYPE_CHECKING:
    from compcoll.comm import Comm

__all__ = ["allgather", "bcast", "gather", "scatter"]


class _Frame:
    """An array, as it is pickled."""

    def __init__(self, frame: np.ndarray, shape: tuple[int, ...]):
        self.frame, self.shape = frame, shape

    def __reduce__(self) -> tuple[Callable[..., np.ndarray], tuple[np.ndarray, tuple[int, ...]]]:
        return _decoded, (self.frame, self.shape)


def _decoded(frame: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray = decode(frame).reshape(shape)
    _thread.came += 1
    return array


class _Thread(local):
    """Arrays that this thread has decoded."""

    came = 0


_thread = _Thread()


class _Packing(AbstractContextManager["_Packing"]):
    """A call in which arrays are packed, and its report."""

    def __init__(self, comm: Comm, op: str, like: str):
        self._comm, self._op, self._like = comm, op, like
        self._marked: Marked | None = comm._marked
        self._stats = Stats()
        self._decision: Any = None

    def __enter__(self) -> Self:
        self._before = _thread.came, self._comm.calls_accelerated
        return self

    def __exit__(self, *exc: object) -> None:
        came, accelerated = self._before
        if self._stats.messages or _thread.came > came:
            state = self._comm._state
            state.accelerated += (
                self._comm.calls_accelerated == accelerated
            )  # else MPI's call of bytes counts
            state.last = self._op, self._decision, self._stats

    def pack(self, obj: Any, peer: int = -1) -> Any:
        """What is pickled in the place of an object for a rank: a frame, where it is smaller."""
        marked = self._marked
        if type(obj) is not np.ndarray or marked is None or marked.idle or peer == marked.rank:
            return obj
        if obj.nbytes < max(marked.policy.min_nbytes, 1) or not obj.flags.carray:
            return obj
        if not dtypes.supported(obj.dtype) or not _pickles():
            return obj
        name = marked.name if marked.policy.names_communicators else ""
        decision = decide_message(marked, self._like, obj.dtype, obj.nbytes, peer, name)
        if decision.codec is None:
            return obj
        lossless = codec("lossless")
        decision = replace(decision, codec=lossless)
        frame = lossless.encode(obj.reshape(-1))
        if frame.nbytes >= obj.nbytes + HEADER_NBYTES:
            return obj
        self._decision = decision
        self._stats.messages += 1
        self._stats.raw_nbytes += obj.nbytes
        self._stats.wire_nbytes += frame.nbytes
        return _Frame(frame, obj.shape)


def _pickles() -> bool:
    """Whether mpi4py pickles: a program may have it use other functions, which need not take a frame."""
    return MPI.pickle.dumps(None) == pickle.dumps(None, MPI.pickle.PROTOCOL)


def bcast(self: Comm, obj: Any, root: int = 0) -> Any:
    with _Packing(self, "bcast", "Bcast") as packing:
        return MPI.Intracomm.bcast(self, packing.pack(obj) if self.rank == root else obj, root)


def allgather(self: Comm, sendobj: Any) -> list[Any]:
    with _Packing(self, "allgather", "Allgatherv") as packing:
        got: list[Any] = MPI.Intracomm.allgather(self, packing.pack(sendobj))
        return got


def gather(self: Comm, sendobj: Any, root: int = 0) -> list[Any] | None:
    with _Packing(self, "gather", "Gatherv") as packing:
        return MPI.Intracomm.gather(self, packing.pack(sendobj, root), root)


def scatter(self: Comm, sendobj: Any, root: int = 0) -> Any:
    with _Packing(self, "scatter", "Scatterv") as packing:
        if self.rank == root and sendobj is not None:
            sendobj = [packing.pack(one, peer) for peer, one in enumerate(sendobj)]
        return MPI.Intracomm.scatter(self, sendobj, root)

"""Notices of ranks that leave groups, whichever way, so that the others do not wait for them in vain."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from mpi4py import MPI

from compcoll.torch import registry

__all__ = ["begin", "look", "next_serial", "send"]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
_TAG = 1
#: Seconds that messages of a rank that has left may still be under way.
_GRACE = 1.0
#: The most bytes of an explanation.
_MOST = 1000


class _Notices:
    """The private communicator that carries notices, and those that came.

    Attributes
    ----------
    left : dict
        For each group's ``key`` the ranks of MPI that have left it: how many of its collectives they have
        ended, in which words, and when this rank has heard of it.
    """

    def __init__(self) -> None:
        self.comm = MPI.Intracomm(_WORLD).Dup()
        self.sent: list[Any] = []
        self.left: dict[str, dict[int, tuple[int, str, float]]] = {}
        self._hook = sys.excepthook
        sys.excepthook = self.hook

    def hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Tell the others, and go on as ever."""
        self._hook(kind, error, trace)
        if not MPI.Is_finalized():
            self.send(f"has ended with {kind.__name__}: {error}", registry.cores())

    def send(self, words: str, cores: Iterable[Any]) -> None:
        """Tell the other ranks of some groups that this one leaves them."""
        self.sent = [request for request in self.sent if not request.Test()]
        found: dict[int, dict[str, int]] = {}
        for core in cores:
            for rank in core.members:
                found.setdefault(rank, {})[core.key] = core.n_ended
        for rank, groups in found.items():
            if rank != self.comm.rank:
                note = bytearray(json.dumps([words[:_MOST], groups]).encode())
                self.sent.append(self.comm.Isend([note, MPI.BYTE], rank, _TAG))

    def look(self) -> None:
        """Read what has come."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            self.comm.Recv([data, MPI.BYTE], status.source, _TAG)
            words, groups = json.loads(data)
            for key, calls in groups.items():
                told = self.left.setdefault(key, {})
                told.setdefault(status.source, (calls, words, time.monotonic()))


_notices: list[_Notices] = []
_serials = [0]


def begin() -> None:
    """From now on ranks tell each other; collective over all ranks of MPI, the first time."""
    if not _notices and _WORLD.Get_size() > 1:
        _notices.append(_Notices())


def next_serial(known: Iterable[int] = ()) -> int:
    """A number that no group of this rank has had; given those of all its ranks, the one to have."""
    _serials[0] = max(_serials[0], *known, 0)
    return _serials[0] + 1


def send(words: str, cores: Iterable[Any]) -> None:
    """Tell the other ranks of some groups that this one leaves them."""
    for one in _notices:
        one.send(words, cores)


def look(key: str, members: list[int]) -> dict[int, tuple[int, str]]:
    """The ranks of a group that have left it for so long that nothing of theirs is under way any more.

    Returns
    -------
    dict
        By rank in the group: how many of its collectives have ended there, and what the rank has told.
    """
    for one in _notices:
        one.look()
        told = one.left.get(key)
        if told:
            latest = time.monotonic() - _GRACE
            return {
                members.index(rank): (calls, f"rank {rank} {words}")
                for rank, (calls, words, heard) in told.items() if heard < latest
            }  # fmt: skip
    return {}

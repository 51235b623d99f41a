"""The process groups of this process, and the messages of their ranks about calls and departures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np
import torch.distributed as dist
from mpi4py import MPI

from compcoll.core import environment, errors
from compcoll.engine import _engine

__all__ = [
    "POST_AFTER", "CallBoard", "MismatchError", "SignatureCheck", "add", "checks_signatures", "cores",
    "departed", "next_serial", "remove", "send_notice", "start_notices",
]  # fmt: skip

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
#: The tag of notices, and the most bytes of their text.
_TAG, _MOST = 1, 1000
#: Seconds for which messages of a rank that has left may still arrive.
_GRACE = 1.0
#: Seconds after which a waiting rank posts its call.
POST_AFTER = 1.0
#: Time to wait for the posts of others.
_POST_TIMEOUT = timedelta(seconds=2)

_cores: list[Any] = []


def add(core: Any) -> None:
    """Register a group that was made."""
    _cores.append(core)


def remove(core: Any) -> None:
    """Remove a group that has ended."""
    _cores.remove(core)


def cores() -> list[Any]:
    """All groups, in the order in which they were made."""
    return list(_cores)


# -- ranks that leave


class _Notices:
    """Notices of ranks that leave groups, at exit, on errors or on purpose, over a private communicator."""

    def __init__(self) -> None:
        self.comm = MPI.Intracomm(_WORLD).Dup()
        self.sent: list[Any] = []
        #: By group's key and MPI's rank: the number of ended collectives, the notice, and its arrival.
        self.departed: dict[str, dict[int, tuple[int, str, float]]] = {}
        self._hook = sys.excepthook
        sys.excepthook = self.hook

    def hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Send a notice of an uncaught exception."""
        self._hook(kind, error, trace)
        if not MPI.Is_finalized():
            self.send(f"has ended with {kind.__name__}: {error}", cores())

    def send(self, text: str, groups: Iterable[Any]) -> None:
        self.sent = [request for request in self.sent if not request.Test()]
        found: dict[int, dict[str, int]] = {}
        for core in groups:
            for rank in core.members:
                found.setdefault(rank, {})[core.key] = core.n_ended
        for rank, calls in found.items():
            if rank != self.comm.rank:
                notice = bytearray(json.dumps([text[:_MOST], calls]).encode())
                self.sent.append(self.comm.Isend([notice, MPI.BYTE], rank, _TAG))

    def receive(self) -> None:
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            self.comm.Recv([data, MPI.BYTE], status.source, _TAG)
            text, groups = json.loads(data)
            for key, calls in groups.items():
                self.departed.setdefault(key, {}).setdefault(status.source, (calls, text, time.monotonic()))


_notices: list[_Notices] = []
_serials = [0]


def start_notices() -> None:
    """Send and receive notices from now on; the first time collective over all ranks of MPI."""
    if not _notices and _WORLD.Get_size() > 1:
        _notices.append(_Notices())


def next_serial(known: Iterable[int] = ()) -> int:
    """A number that no group of this rank has had; given those of all its ranks, the one to have."""
    _serials[0] = max(_serials[0], *known, 0)
    return _serials[0] + 1


def send_notice(text: str, groups: Iterable[Any]) -> None:
    """Tell the other ranks of some groups that this one leaves them."""
    for notices in _notices:
        notices.send(text, groups)


def departed(key: str, members: list[int]) -> dict[int, tuple[int, str]]:
    """The ranks of a group that have left it so long ago that no message of theirs can still arrive.

    Each has the number of the group's collectives that have ended there, and the notice.
    """
    for notices in _notices:
        notices.receive()
        found = notices.departed.get(key)
        if found:
            latest = time.monotonic() - _GRACE
            return {
                members.index(rank): (calls, f"rank {rank} {text}")
                for rank, (calls, text, arrived) in found.items() if arrived < latest
            }  # fmt: skip
    return {}


# -- the calls that ranks make


class CallBoard:
    """The calls of a group's ranks, posted in its store for messages about time-outs and mismatches."""

    def __init__(self, store: Any, rank: int, size: int):
        self._store, self._rank, self._size = store, rank, size

    def post(self, number: int, call: str) -> None:
        """Post the collective that this rank waits in."""
        with suppress(Exception):  # the error says less without it
            self._store.set(_key("waits", self._rank), json.dumps([number, call]))

    def describe_missing(self, number: int) -> str:
        """Name the ranks that are missing in a call, with the calls that they have posted."""
        absent = []
        for rank in range(self._size):
            posted = self._read("waits", rank)
            if rank == self._rank or (posted is not None and posted[0] == number):
                continue
            where = "" if posted is None else f" (it waited in call {posted[0]}, {posted[1]})"
            absent.append(f"rank {rank}{where}")
        return f"missing: {', '.join(absent)}" if absent else "all other ranks wait in it, too"

    def gather(self, number: int, call: str) -> list[str]:
        """Each rank's call of this number; the others gather at the same time."""
        kind = f"call {number}"
        with suppress(Exception):
            self._store.set(_key(kind, self._rank), json.dumps([number, call]))
            self._store.wait([_key(kind, rank) for rank in range(self._size)], _POST_TIMEOUT)
        found = [self._read(kind, rank) for rank in range(self._size)]
        found[self._rank] = number, call
        return ["unknown" if posted is None else posted[1] for posted in found]

    def _read(self, kind: str, rank: int) -> Any:
        with suppress(Exception):
            if self._store.check([_key(kind, rank)]):
                return json.loads(self._store.get(_key(kind, rank)))
        return None


def _key(kind: str, rank: int) -> str:
    return f"compcoll/{kind}/{rank}"


class MismatchError(dist.DistBackendError, errors.MismatchError):
    """Ranks of a group have called different operations."""


def checks_signatures() -> bool:
    """Whether calls are compared: ``COMPCOLL_CHECK=0`` turns it off."""
    return environment.checks(default=True)


class SignatureCheck(_engine.Request):
    """A comparison of all ranks' signatures, concurrent with their call: of checksums, then of the texts.

    Without it MPI would match any collectives, one rank's sum with another's broadcast. The collectives of
    ``comm`` are checks alone.
    """

    def __new__(cls, *args: Any) -> SignatureCheck:
        return super().__new__(cls)

    def __init__(self, comm: MPI.Intracomm, number: int, signature: str, board: CallBoard):
        code = crc32(f"{number} {signature}".encode())
        self.number, self.signature, self.board = number, signature, board
        self.extremes = np.array([code, -code], np.int64)
        super().__init__(comm.Iallreduce(MPI.IN_PLACE, self.extremes, MPI.MAX))

    def check(self) -> None:
        super().check()
        if self.extremes[0] != -self.extremes[1]:
            calls = self.board.gather(self.number, self.signature)
            raise MismatchError(
                "the ranks of the group have called different operations, or with different sizes, types or "
                f"roots, as call {self.number}: "
                + "; ".join(f"rank {rank}: {call}" for rank, call in enumerate(calls))
            )

"""What a rank that ends with an exception leaves for the others, so that they do not wait for it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

__all__ = ["begin", "look"]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
_TAG = 1


class _Notes:
    """The private communicator that carries notes, and what was sent there."""

    def __init__(self) -> None:
        self.comm = MPI.Intracomm(_WORLD).Dup()
        self.sent: list[Any] = []
        self.read = ""
        self._hook = sys.excepthook
        sys.excepthook = self.hook

    def hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Tell the others, and go on as ever."""
        self._hook(kind, error, trace)
        if not MPI.Is_finalized():
            self.send(f"{kind.__name__}: {error}")

    def send(self, text: str) -> None:
        """Tell all others why this rank ends."""
        note = bytearray(text.encode()[:1000])
        for step in range(1, self.comm.size):
            rank = (self.comm.rank + step) % self.comm.size
            self.sent.append(self.comm.Isend([note, MPI.BYTE], rank, _TAG))

    def look(self) -> None:
        """DistBackendError where another rank has told."""
        status = MPI.Status()
        if not self.read and self.comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            self.comm.Recv([data, MPI.BYTE], status.source, _TAG)
            self.read = f"rank {status.source} of MPI has ended with {data.decode(errors='replace')}"
        if self.read:
            raise dist.DistBackendError(self.read)


_notes: list[_Notes] = []


def begin() -> None:
    """From now on ranks tell each other; collective over all ranks of MPI, the first time."""
    if not _notes and _WORLD.Get_size() > 1:
        _notes.append(_Notes())


def look() -> None:
    """DistBackendError where another rank has ended with an exception."""
    for one in _notes:
        one.look()

"""The Python side of a program that calls MPI from C or Fortran; the layer imports it when MPI has begun.

It marks the program's communicators, and carries out its messages by the methods of `compcoll.Comm`, with
buffers of the program's memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import mpi4py

if "mpi4py.MPI" not in sys.modules:
    mpi4py.rc.errors = "default"  # else its import would replace the program's error handlers
    os.environ.pop("MPI4PY_MPIABI", None)  # the program has loaded its MPI library, which mpi4py finds

import numpy as np
from mpi4py import MPI

from compcoll.comm import CLASSES, Comm, mark_world
from compcoll.core import environment
from compcoll.engine import _engine
from compcoll.marked import Marked
from compcoll.mpi.p2p.probe import understands
from compcoll.preload import SETTINGS
from compcoll.preload.matched import matched_message, take_matched
from compcoll.tracing import recording

__all__ = ["begin", "transfer"]

#: The methods of matched messages.
_OF_MATCHED = {"Mrecv": "Recv", "Imrecv": "Irecv"}
#: The letters of csrc/layer/message_table.h that are arguments of mpi4py's methods.
_ARGUMENTS = "bdgBSGs"
#: What carries out the messages of communicators, by the numbers of these.
_comms: dict[int, Comm] = {}


def begin() -> None:
    """Mark the communicators that the program has, with the options of ``compcoll run``."""
    settings: dict[str, Any] = environment.read(SETTINGS, json.loads) or {}
    recording.start(CLASSES, environment.summary())
    mark_world(**settings)


def transfer(name: str, kinds: str, number: int, arguments: dict[str, Any], status: MPI.Status) -> Any:
    """Carry out a message: see `compcoll.engine._engine.take_messages`."""
    if name in _OF_MATCHED:
        matched = take_matched(arguments["m"])
        if matched is None:
            return None
        method = getattr(matched, _OF_MATCHED[name])
    else:
        comm = _comm_of(number)
        if not understands(comm._state):
            return None
        if name in ("Mprobe", "Improbe"):
            return matched_message(comm._state.context.channel, arguments["m"], status)
        method = getattr(comm, name)
    temporary: list[MPI.Datatype] = []
    given = [
        _buffer(arguments[k], temporary) if k in "bB" else arguments[k] for k in kinds if k in _ARGUMENTS
    ]
    result = method(*given)
    for datatype in temporary:
        datatype.Free()
    return True if result is None else result


def _comm_of(number: int) -> Comm:
    if number not in _comms:
        for gone in [known for known, one in _comms.items() if one == MPI.COMM_NULL]:
            del _comms[gone]
        comm: Any = Comm.fromhandle(Marked.of(number).comm.handle)
        _comms[number] = comm
    return _comms[number]


def _buffer(given: tuple[int, int, int], temporary: list[MPI.Datatype]) -> list[Any]:
    """A buffer argument; entries that begin before their address, by a temporary datatype."""
    address, count, handle = given
    datatype = MPI.Datatype.fromhandle(handle)
    if count <= 0:
        return [np.empty(0, np.uint8), 0, datatype]
    entry = _engine.entry_of(datatype)
    if address == 0:
        return [MPI.BOTTOM, count, datatype]
    if entry.lower < 0 or entry.extent < 0:
        temporary.append(datatype.Create_hindexed([count], [address]).Commit())
        return [MPI.BOTTOM, 1, temporary[-1]]
    memory: Any = MPI.buffer.fromaddress(address, (count - 1) * entry.extent + entry.lower + entry.length)
    return [np.frombuffer(memory, np.uint8), count, datatype]


# -- the beginning


def _check_library() -> None:
    """ImportError where mpi4py would call another MPI library than the program does."""

    def address(library: ctypes.CDLL) -> int | None:
        return ctypes.cast(library.PMPI_Init, ctypes.c_void_p).value

    theirs = ctypes.CDLL(None)
    if hasattr(theirs, "PMPI_Init") and address(theirs) != address(ctypes.CDLL(MPI.__file__)):
        raise ImportError(
            f"mpi4py's {os.path.basename(MPI.__file__)} is not for the MPI library of the program"
        )


_check_library()
_engine.take_messages(transfer)
_engine.set_begin(begin)

"""Which methods of a communicator are calls, and what their arguments say."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import mpi4py
from mpi4py import MPI

import compcoll
from compcoll.engine._engine import place_of
from compcoll.marked import Marked
from compcoll.operations import OPERATIONS, blocking_name
from compcoll.policy.policy import below_min_nbytes

__all__ = [
    "CALLS",
    "FROM_ROOT",
    "RECEIVES",
    "CommFacts",
    "described_nbytes",
    "facts_of",
    "is_ours",
    "leaving_nbytes",
]

_BLOCKING = ("Send", "Ssend", "Bsend", "Rsend", "Recv", "Sendrecv", "Sendrecv_replace")
_OBJECTS = (
    *(name.lower() for name in OPERATIONS if hasattr(MPI.Topocomm, name.lower())),
    "send",
    "ssend",
    "bsend",
    "recv",
    "sendrecv",
    "isend",
    "issend",
    "ibsend",
    "irecv",
)
#: Methods that are calls and no collectives of buffers, as far as a communicator's class has them.
CALLS = (*_BLOCKING, *(f"I{name.lower()}" for name in _BLOCKING), *_OBJECTS, "Probe", "Mprobe")


#: Those whose first buffer is one that they receive into, or that have none.
RECEIVES = {"Recv", "Irecv", "recv", "irecv", "Probe", "Mprobe"}
#: Those in which the root alone sends.
FROM_ROOT = {"bcast", "scatter"}
_PACKAGES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (compcoll, mpi4py))


class CommFacts(NamedTuple):
    """What is said of a communicator."""

    name: str  # its own, else that of its class
    size: int
    why_small: str  # the reason why small calls are MPI's


@lru_cache(1024)
def facts_of(number: int, name: str, size: int = 1) -> CommFacts:
    """The facts of a marked communicator with this name; of one that was freed what is known."""
    from compcoll.comm import class_of

    try:
        marked = Marked.of(number)
        place_of(number)  # MPI ends all ranks where it is asked about a communicator that is freed
        name = name or class_of(marked.comm).__name__
    except ValueError:
        return CommFacts(name or "Comm", size, "the message was small, and the communicator is freed by now")
    why = marked.idle or below_min_nbytes(marked.policy.min_nbytes)
    return CommFacts(name, marked.size, why)


def is_ours(code: CodeType) -> bool:
    """Whether code is compcoll's or mpi4py's, and not of the program that uses them."""
    return code.co_filename.startswith(_PACKAGES)


def described_nbytes(value: Any) -> int:
    """Bytes of a buffer argument that is no plain array; 0 where it does not tell.

    Of ``[buffer, ..., type]`` those of the whole buffer, where there is more than one count.
    """
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple)):
        if len(value) == 3 and isinstance(value[1], int) and isinstance(value[2], MPI.Datatype):
            return value[1] * value[2].Get_size()
        return described_nbytes(value[0]) if value and not isinstance(value[0], (list, tuple)) else 0
    try:
        nbytes = value.nbytes
    except Exception:  # of an object of the program
        return 0
    return nbytes if isinstance(nbytes, int) else 0


def leaving_nbytes(op: str, nbytes: int, size: int) -> float:
    """Bytes of a rank's buffer that leave the rank, on the average of all ranks that send.

    No algorithm sends less in all: ``P - 1`` ranks need the whole buffer of a Bcast, and all but one part of
    a sum has to be sent and, in Allreduce, has to come back.
    """
    operation = OPERATIONS.get(blocking_name(op)) or OPERATIONS.get(op.capitalize())
    if size == 1:
        return 0
    if operation is None or operation.name.startswith("Neighbor_"):
        return nbytes
    if operation.replicates and not operation.reduces:
        return nbytes * (size - 1)
    return nbytes * (size - 1) / size * (1 + operation.replicates)

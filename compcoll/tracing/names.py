"""What is said of communicators and calls."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import mpi4py

import compcoll
from compcoll.engine._engine import place_of
from compcoll.marked import Marked
from compcoll.operations import OPERATIONS, blocking_name
from compcoll.policy.policy import below_min_nbytes

__all__ = [
    "CommFacts",
    "facts_of",
    "is_ours",
    "leaving_nbytes",
]

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

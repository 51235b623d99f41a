"""Communicators: `Comm`, the decision on a call that is new, and MPI datatypes of further types.

communicator.py  `Comm` and its siblings, and their places in `MPI`; objects.py their lower-case calls
construct.py     all ranks agree on settings and make, or find, the duplicate that has them
marked.py        Python's side of a marked communicator
prepare.py       a call that is new: decision (`compcoll.policy`), then a schedule by call.py and shaping.py
buffers.py       `shaped`, `typed` and the datatypes of small floats; totals.py `compcoll.summary`
"""

from compcoll.comm.communicator import (
    CLASSES,
    PREDEFINED,
    Cartcomm,
    Comm,
    Distgraphcomm,
    Graphcomm,
    class_of,
    mark_world,
    wrap_world,
)

__all__ = [
    "CLASSES",
    "PREDEFINED",
    "Cartcomm",
    "Comm",
    "Distgraphcomm",
    "Graphcomm",
    "class_of",
    "mark_world",
    "wrap_world",
]

"""Communicators: `Comm`, the decision on new calls, and MPI datatypes for more types.

communicator.py  `Comm` and its siblings; objects.py their lower-case calls
world.py         `MPI.COMM_WORLD` and `MPI.COMM_SELF` under a policy
construct.py     all ranks agree on settings and make, or find, the duplicate with these
marked.py        Python's side of a marked communicator; recording.py starts the record of its calls
prepare.py       a new call: decision (`compcoll.policy`), then a schedule by call.py and shaping.py
coding.py        codecs as the engine takes them
buffers.py       `shaped`, `typed` and the datatypes of small floats; totals.py `compcoll.summary`
"""

from compcoll.comm.communicator import CLASSES, PREDEFINED, Cartcomm, Comm, Distgraphcomm, Graphcomm
from compcoll.comm.world import mark_world, wrap_world

__all__ = [
    "CLASSES",
    "PREDEFINED",
    "Cartcomm",
    "Comm",
    "Distgraphcomm",
    "Graphcomm",
    "mark_world",
    "wrap_world",
]

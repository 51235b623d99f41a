"""The table of operations: one row for each, from which methods, checks, tracing and policies follow.

A row has the blocks that a rank sends and receives, the root and the reduction, if any, and the ranks that
decide how a call is compressed. The names are mpi4py's; a *block* goes from one rank to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "ALGORITHMS",
    "MIN_NBYTES",
    "OPERATIONS",
    "REDUCTIONS",
    "TWO_LEVEL",
    "Blocks",
    "Decides",
    "Operation",
    "algorithm_name",
    "blocking_name",
    "has_two_levels",
    "runs_on",
]


class Blocks(Enum):
    """The blocks of one buffer argument."""

    NONE = "no such argument"
    ONE = "one block"
    EACH = "a block for each rank, all of the same count"
    COUNTED = "a block for each rank, with counts and displacements"
    TYPED = "a block for each rank, with counts, displacements in bytes and datatypes"

    @property
    def many(self) -> bool:
        """True if there is a block for each rank."""
        return self not in (Blocks.NONE, Blocks.ONE)


class Decides(Enum):
    """The ranks that know enough about a call to decide how it is compressed."""

    ALL = "all ranks, from arguments that MPI requires to be alike"
    PAIR = "each pair of ranks, for the message between them"
    NONE = "none: MPI carries the call out"


@dataclass(frozen=True)
class Operation:
    """One operation of MPI.

    Attributes
    ----------
    name : str
        The blocking method.
    send, recv : Blocks
        Blocks that a rank sends and receives. Bcast, whose only buffer is both, has only ``recv``.
    algorithms : tuple of str
        Algorithms of `compcoll.algorithms`, the default first; empty if ``decides`` is ``NONE``.
    root : {"", "send", "recv"}
        ``"send"`` if only the root sends, ``"recv"`` if only the root receives.
    reduces : bool
        True if values are combined by an `MPI.Op`.
    counts : bool
        True if each rank's count of a result is an argument of its own.
    decides : Decides
    torch : str
        The name in torch.distributed.
    """

    name: str
    send: Blocks = Blocks.NONE
    recv: Blocks = Blocks.NONE
    algorithms: tuple[str, ...] = ()
    root: str = ""
    reduces: bool = False
    counts: bool = False
    decides: Decides = Decides.ALL
    torch: str = ""

    @property
    def nonblocking(self) -> str:
        """The method that returns a request."""
        return f"I{self.name.lower()}"

    @property
    def persistent(self) -> str:
        """The method that prepares a persistent request."""
        return f"{self.name}_init"

    @property
    def forms(self) -> tuple[str, str, str]:
        """The blocking, nonblocking and persistent method."""
        return self.name, self.nonblocking, self.persistent

    @property
    def n_buffers(self) -> int:
        """Buffer arguments, which come first."""
        return (self.send is not Blocks.NONE) + (self.recv is not Blocks.NONE)

    @property
    def written(self) -> int:
        """Position of the buffer that the call writes to."""
        return self.n_buffers - 1

    @property
    def in_place(self) -> int:
        """Position of the buffer that may be `MPI.IN_PLACE`."""
        return 1 if self.root == "send" else 0

    @property
    def shares_out(self) -> bool:
        """True if a rank's buffer has a part for each rank, and each message is a part."""
        return self.send.many or self.reduces

    @property
    def replicates(self) -> bool:
        """True if all ranks have the same values afterwards."""
        return self.name in ("Bcast", "Allgather", "Allgatherv", "Allreduce")


_ONE, _EACH, _COUNTED, _TYPED = Blocks.ONE, Blocks.EACH, Blocks.COUNTED, Blocks.TYPED
_PAIR, _MPI = Decides.PAIR, Decides.NONE
_GATHERING, _SUM = ("ring", "recursive_doubling"), ("ring", "direct", "compressed")
_WHOLE_SUM = (*_SUM, "recursive_halving")

_COLLECTIVES = (
    Operation("Bcast", recv=_ONE, algorithms=("chain", "tree"), root="send", torch="broadcast"),
    Operation("Allgather", _ONE, _EACH, _GATHERING, torch="all_gather"),
    Operation("Allgatherv", _ONE, _COUNTED, _GATHERING, torch="all_gather"),
    Operation("Alltoall", _EACH, _EACH, ("pairwise",), torch="all_to_all"),
    Operation("Alltoallv", _COUNTED, _COUNTED, ("pairwise",), decides=_PAIR, torch="all_to_all"),
    Operation("Alltoallw", _TYPED, _TYPED, ("pairwise",), decides=_PAIR),
    Operation("Gather", _ONE, _EACH, ("linear",), "recv", torch="gather"),
    Operation("Gatherv", _ONE, _COUNTED, ("linear",), "recv", decides=_PAIR, torch="gather"),
    Operation("Scatter", _EACH, _ONE, ("linear",), "send", torch="scatter"),
    Operation("Scatterv", _COUNTED, _ONE, ("linear",), "send", decides=_PAIR, torch="scatter"),
    Operation("Allreduce", _ONE, _ONE, _WHOLE_SUM, reduces=True, torch="all_reduce"),
    Operation("Reduce", _ONE, _ONE, _WHOLE_SUM, "recv", reduces=True, torch="reduce"),
    Operation("Reduce_scatter_block", _EACH, _ONE, _SUM, reduces=True, torch="reduce_scatter"),
    Operation("Reduce_scatter", _ONE, _ONE, _SUM, reduces=True, counts=True, torch="reduce_scatter"),
    Operation("Scan", _ONE, _ONE, reduces=True, decides=_MPI),
    Operation("Exscan", _ONE, _ONE, reduces=True, decides=_MPI),
    Operation("Barrier", decides=_MPI),
    Operation("Neighbor_allgather", _ONE, _EACH, decides=_MPI),
    Operation("Neighbor_allgatherv", _ONE, _COUNTED, decides=_MPI),
    Operation("Neighbor_alltoall", _EACH, _EACH, decides=_MPI),
    Operation("Neighbor_alltoallv", _COUNTED, _COUNTED, decides=_MPI),
    Operation("Neighbor_alltoallw", _TYPED, _TYPED, decides=_MPI),
)
#: Collectives by the names of their blocking methods.
OPERATIONS = {operation.name: operation for operation in _COLLECTIVES}
#: The algorithms of each accelerated operation, the default first; messages as well.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    **{name: operation.algorithms for name, operation in OPERATIONS.items() if operation.algorithms},
    "Send": ("stream",),
    "Recv": ("stream",),
    "Sendrecv": ("stream",),
}
#: Operations with algorithms of two levels; in others each value crosses a port once in any case. Alltoall
#: has one for small blocks; in its variants only the two ends of a block know its size.
TWO_LEVEL = (
    *(
        name
        for name, operation in OPERATIONS.items()
        if operation.replicates or (operation.reduces and operation.algorithms)
    ),
    "Alltoall",
)
#: Default of ``min_nbytes``, the smallest message that is compressed.
MIN_NBYTES = 16 << 10
#: Bytes for each peer up to which Alltoall gathers inside nodes; for more, copies take longer than messages.
GATHERED_NBYTES = 16 << 10
REDUCTIONS = tuple(name for name in ALGORITHMS if name in OPERATIONS and OPERATIONS[name].reduces)


def has_two_levels(op: str, nbytes: int) -> bool:
    """True if an operation with messages of ``nbytes`` has an algorithm of two levels."""
    return op in TWO_LEVEL and (op != "Alltoall" or nbytes <= GATHERED_NBYTES)


def runs_on(algorithm: str, size: int) -> bool:
    """True if an algorithm runs on this number of ranks."""
    return algorithm != "recursive_doubling" or size & (size - 1) == 0


def algorithm_name(algorithm: str, levels: int) -> str:
    """Name of an algorithm in reports."""
    return f"two_level {algorithm}" if levels == 2 else algorithm


def blocking_name(method: str) -> str:
    """The blocking form of a method's name: ``"Bcast"`` for ``"Ibcast"`` and ``"Bcast_init"``."""
    name = method.removesuffix("_init")
    return name[1:].capitalize() if name[:1] == "I" and name[1:2].islower() else name

"""Table of the collectives under test: send buffers, receive buffers, and the arguments made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import bits, close_sum, complete, data, offsets, spec, typed, vspec
from mpi4py import MPI

from compcoll.comm.buffers import datatype_of
from compcoll.operations import OPERATIONS


@dataclass(frozen=True)
class CallCase:
    """One rank's arguments to a collective.

    Attributes
    ----------
    name : str
        The blocking method.
    n_sent, n_received : int or None
        Elements of the send buffer and of the receive buffer; None if the rank has no such buffer.
    form : callable
        ``form(sent, received)`` returns the call's arguments, for arrays in host or device memory.
    summed : slice or None
        Part of each rank's contribution whose sum this rank receives; None if nothing is summed.
    n_results : int or None
        Elements of the receive buffer that MPI defines after the call; None for all.
    """

    name: str
    n_sent: int | None
    n_received: int | None
    form: Callable[[Any, Any], tuple]
    summed: slice | None = None
    n_results: int | None = None

    def arguments(self, sent, received) -> tuple:
        return tuple(typed(one) if hasattr(one, "dtype") else one for one in self.form(sent, received))

    def memory(self, dtype, seed: int, rank: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The rank's send buffer and receive buffer, filled with test data."""
        sent = None if self.n_sent is None else data(self.n_sent, dtype, seed + rank)
        other = 0 if sent is None else 50
        received = None if self.n_received is None else data(self.n_received, dtype, seed + rank + other)
        return sent, received


def collectives(
    rank: int,
    size: int,
    n: int,
    root: int | None = None,
    counts: Sequence[int] | None = None,
    pairs: Sequence[Sequence[int]] | None = None,
    gap: int = 0,
) -> dict[str, CallCase]:
    """Table of all accelerated operations by name; some appear in place as well.

    Parameters
    ----------
    n : int
        Elements of each block.
    root : int, optional
        The last rank by default.
    counts : sequence of int, optional
        Elements of each rank's block in operations with counts; by default ``n + 3 * rank``.
    pairs : sequence of sequence of int, optional
        Elements from each rank to each; by default a pair sends other counts in one direction than in the
        other.
    gap : int
        Elements between consecutive blocks in memory.
    """
    root = size - 1 if root is None else root
    here, all_, own = rank == root, slice(None), slice(rank * n, (rank + 1) * n)
    counts = [n + 3 * r for r in range(size)] if counts is None else list(counts)
    pairs = pairs or [[counts[(i + 2 * j) % size] for j in range(size)] for i in range(size)]
    out, into, mine = pairs[rank], [row[rank] for row in pairs], counts[rank]
    part = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    room, sent, received = (sum(lengths) + gap * size for lengths in (counts, out, into))
    one, whole = n, n * size
    at_root, elsewhere = (lambda m: m if here else None), (lambda m: None if here else m)

    def blocks(array, lengths):
        return None if array is None else vspec(array, lengths, offsets(lengths, gap))

    both = lambda s, r: (_place(s), r)  # noqa: E731
    gathered, scattered = (lambda s, r: (_place(s), r, root)), (lambda s, r: (s, _place(r), root))
    reduced = lambda s, r: (_place(s), r, MPI.SUM, root)  # noqa: E731
    table = {
        "Bcast": (None, one, lambda s, r: (r, root)),
        "Allgather": (one, whole, both),
        "Allgather in place": (None, whole, both),
        "Allgatherv": (mine, room, lambda s, r: (s, blocks(r, counts))),
        "Alltoall": (whole, whole, both),
        "Alltoall in place": (None, whole, both),
        "Alltoallv": (sent, received, lambda s, r: (blocks(s, out), blocks(r, into))),
        "Alltoallw": (sent, received, lambda s, r: (_each_typed(s, out), _each_typed(r, into))),
        "Gather": (one, at_root(whole), gathered),
        "Gather in place": (elsewhere(one), at_root(whole), gathered),
        "Gatherv": (mine, at_root(room), lambda s, r: (s, blocks(r, counts), root)),
        "Scatter": (at_root(whole), one, scattered),
        "Scatter in place": (at_root(whole), elsewhere(one), scattered),
        "Scatterv": (at_root(room), mine, lambda s, r: (blocks(s, counts), r, root)),
        "Allreduce": (one, one, both, all_),
        "Allreduce in place": (None, one, both, all_),
        "Reduce": (one, at_root(one), reduced, all_),
        "Reduce in place": (elsewhere(one), at_root(one), reduced, all_),
        "Reduce_scatter_block": (whole, one, both, own),
        "Reduce_scatter_block in place": (None, whole, both, own, n),
        "Reduce_scatter": (sum(counts), mine, lambda s, r: (s, r, counts), part),
    }
    return {name: CallCase(name.partition(" ")[0], *row) for name, row in table.items()}


def _place(array):
    return MPI.IN_PLACE if array is None else array


def _each_typed(array, lengths: Sequence[int]) -> list:
    """Argument of Alltoallw: contiguous blocks, with a datatype for each."""
    places = [array.dtype.itemsize * at for at in offsets(lengths)]
    return [array, (lengths, places), [datatype_of(array.dtype)] * len(lengths)]


def check(comm, ours, agree, call: CallCase, dtype, form: int = 0, seed: int = 0) -> None:
    """Call both communicators, and assert that results are equal and the send buffer is unchanged.

    Floating-point sums may differ by rounding, but Allreduce must give all ranks the same bits.
    """
    sent, got = call.memory(dtype, seed, comm.rank)
    kept, want = (array if array is None else array.copy() for array in (sent, got))
    complete(ours, OPERATIONS[call.name].forms[form], call.arguments(sent, got))
    if call.summed is None:
        theirs = [array if array is None else spec(array) for array in (sent, want)]
        getattr(comm, call.name)(*call.arguments(*theirs))
        right = got is None or bits(got) == bits(want)
    else:
        parts = [
            given if given is not None else received
            for given, received in (call.memory(dtype, seed, rank) for rank in range(comm.size))
        ]
        right = got is None or close_sum(got[: call.n_results], [part[call.summed] for part in parts])
        right &= call.name != "Allreduce" or bits(got) == comm.bcast(bits(got))
    assert agree(right and (sent is None or bits(sent) == bits(kept))), call.name

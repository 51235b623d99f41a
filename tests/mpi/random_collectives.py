"""Collectives of random programs: each draws its arguments, and lists the buffers with its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from common import exact_sum
from mpi4py import MPI
from random_buffers import LARGEST, Blocks, Buffer, draw_count, draw_dtype, is_known, mpi_type, values

__all__ = ["COLLECTIVES", "Draw", "RandomCall"]

IN_PLACE = MPI.IN_PLACE
#: Fewest elements of a message in place: Open MPI mixes up nonblocking calls in which a rank exchanges none.
_FEWEST = int(MPI.get_vendor()[0] == "Open MPI")


@dataclass
class RandomCall:
    """One rank's arguments to a collective.

    Attributes
    ----------
    args : list
    results : list of Buffer
    exact : bool
        True if results must be equal bit for bit.
    addends : callable, optional
        For a sum in a type that MPI lacks: ``addends(k)`` returns this rank's contribution to the ``k``-th
        use.
    part : slice
        Part of such a sum that this rank receives.
    others : list of Buffer
        Buffers that are neither in ``args`` nor in ``results``.
    """

    args: list[Any]
    results: list[Buffer] = field(default_factory=list)
    exact: bool = True
    addends: Callable[[int], np.ndarray] | None = None
    part: slice = field(default_factory=lambda: slice(None))
    others: list[Buffer] = field(default_factory=list)

    @property
    def buffers(self) -> list[Buffer]:
        return [*(a for a in self.args if isinstance(a, Buffer)), *self.others]

    def fill(self, k: int) -> None:
        """Prepare the buffers for the ``k``-th use."""
        for buffer in {id(b): b for b in (*self.buffers, *self.results)}.values():
            buffer.fill(k)

    def sum_for_mpi(self, comm: MPI.Intracomm, k: int) -> None:
        """Compute a sum in a type that MPI lacks."""
        assert self.addends is not None
        parts = comm.allgather(self.addends(k))
        for buffer in self.results:
            total = exact_sum(parts).astype(buffer.dtype)[self.part]
            buffer.put(total)


class Draw:
    """Random arguments: ``rng`` draws the same on all ranks, ``own`` on this rank alone."""

    def __init__(self, seed: list[int], rank: int, size: int, plain: bool, least: int):
        self.rank, self.size, self.plain, self.least = rank, size, plain, least
        self.rng, self.own = np.random.default_rng(seed), np.random.default_rng([*seed, rank])
        self.seed = int(self.rng.integers(1 << 20))
        self.derived = True
        self.kind = str(self.rng.choice(["smooth", "smooth", "special"]))

    def shared(self, n: int) -> int:
        """Random number below ``n``, equal on all ranks."""
        return int(self.rng.integers(n))

    def of(self, rank: int, n: int, dtype: np.dtype) -> Callable[[int], np.ndarray]:
        """Function that returns the values of a rank for the ``k``-th use."""
        return lambda k: values(n, dtype, self.seed + rank + 16 * k, self.kind)

    def send(self, n: int, dtype: np.dtype, blocks: int = 1) -> Buffer:
        source = self.of(self.rank, n, dtype)
        return Buffer(self.own, n, dtype, self.plain, source, blocks, sends=True, derived=self.derived)

    def recv(self, n: int, dtype: np.dtype, blocks: int = 1) -> Buffer:
        return Buffer(self.own, n, dtype, self.plain, None, blocks, derived=self.derived)

    def both(self, n: int, dtype: np.dtype, blocks: int = 1) -> Buffer:
        source = self.of(self.rank, n, dtype)
        return Buffer(self.own, n, dtype, self.plain, source, blocks, derived=self.derived)

    def shape(self, blocks: int) -> tuple[int, np.dtype]:
        """Elements of a block, and their type."""
        dtype = draw_dtype(self.rng)
        return draw_count(self.rng, dtype, self.least, blocks), dtype

    def counts(self, dtype: np.dtype) -> list[int]:
        return [draw_count(self.rng, dtype, self.least, self.size) for _ in range(self.size)]

    def vsend(self, counts: list[int], dtype: np.dtype) -> Blocks:
        return Blocks(self.own, counts, dtype, self.plain, self.of(self.rank, sum(counts), dtype))

    def vrecv(self, counts: list[int], dtype: np.dtype) -> Blocks:
        return Blocks(self.own, counts, dtype, self.plain)

    def vboth(self, counts: list[int], dtype: np.dtype) -> Blocks:
        return self.vsend(counts, dtype)


def bcast(d: Draw) -> RandomCall:
    (n, dtype), root = d.shape(1), d.shared(d.size)
    buf = d.send(n, dtype) if d.rank == root else d.recv(n, dtype)
    return RandomCall([buf, root], [buf])


def allgather(d: Draw) -> RandomCall:
    n, dtype = d.shape(d.size)
    if d.shared(4) == 0:
        both = d.both(n * d.size, dtype, d.size)
        return RandomCall([IN_PLACE, both], [both])
    recv = d.recv(n * d.size, dtype, d.size)
    return RandomCall([d.send(n, dtype), recv], [recv])


def alltoall(d: Draw) -> RandomCall:
    n, dtype = d.shape(d.size)
    if d.shared(4) == 0:
        both = d.both(n * d.size, dtype, d.size)
        return RandomCall([IN_PLACE, both], [both])
    recv = d.recv(n * d.size, dtype, d.size)
    return RandomCall([d.send(n * d.size, dtype, d.size), recv], [recv])


def gather(d: Draw) -> RandomCall:
    (n, dtype), root, in_place = d.shape(d.size), d.shared(d.size), d.shared(4) == 0
    if d.rank != root:
        return RandomCall([d.send(n, dtype), None, root])
    recv = d.both(n * d.size, dtype, d.size)
    return RandomCall([IN_PLACE if in_place else d.send(n, dtype), recv, root], [recv])


def scatter(d: Draw) -> RandomCall:
    (n, dtype), root, in_place = d.shape(d.size), d.shared(d.size), d.shared(4) == 0
    send = d.send(n * d.size, dtype, d.size) if d.rank == root else None
    if in_place and send is not None:
        return RandomCall([send, IN_PLACE, root])
    recv = d.recv(n, dtype)
    return RandomCall([send, recv, root], [recv])


def allgatherv(d: Draw) -> RandomCall:
    dtype = draw_dtype(d.rng)
    counts = d.counts(dtype)
    if d.shared(4) == 0:
        both = d.vboth(counts, dtype)
        return RandomCall([IN_PLACE, both], [both])
    recv = d.vrecv(counts, dtype)
    return RandomCall([d.send(counts[d.rank], dtype), recv], [recv])


def exchanged(d: Draw, dtypes: list[np.dtype]) -> list[list[int]]:
    """Elements from each rank to each other.

    In every second call, some ranks exchange few elements or none with all ranks.
    """
    most = [(LARGEST, 0, 64)[d.shared(3)] for _ in range(d.size)] if d.shared(2) else [LARGEST] * d.size
    return [
        [min(draw_count(d.rng, t, d.least, d.size), m // t.itemsize, n // t.itemsize) for n in most]
        for t, m in zip(dtypes, most, strict=True)
    ]


def alltoallv(d: Draw) -> RandomCall:
    dtype = draw_dtype(d.rng)
    counts = exchanged(d, [dtype] * d.size)
    if d.shared(4) == 0:  # in place: each pair sends as much as it receives
        mine = [max(counts[min(d.rank, r)][max(d.rank, r)], _FEWEST) for r in range(d.size)]
        both = d.vboth(mine, dtype)
        return RandomCall([IN_PLACE, both], [both])
    recv = d.vrecv([row[d.rank] for row in counts], dtype)
    return RandomCall([d.vsend(counts[d.rank], dtype), recv], [recv])


def alltoallw(d: Draw) -> RandomCall:
    dtypes = [t if is_known(t) else np.dtype("f4") for t in (draw_dtype(d.rng) for _ in range(d.size))]
    counts = exchanged(d, dtypes)

    def side(mine: list[tuple[int, np.dtype]], make: Callable) -> tuple[Buffer, list]:
        displs = [0, *accumulate(-(-n * t.itemsize // 16) * 16 for n, t in mine)]
        buf = make([displs.pop()], np.dtype("u1"))
        return buf, [buf.base, ([n for n, _ in mine], displs), [mpi_type(t) for _, t in mine]]

    # Blocks have their sender's type.
    send, send_arg = side([(n, dtypes[d.rank]) for n in counts[d.rank]], d.vsend)
    recv, recv_arg = side([(row[d.rank], t) for row, t in zip(counts, dtypes, strict=True)], d.vrecv)
    return RandomCall([send_arg, recv_arg], [recv], others=[send])


def gatherv(d: Draw) -> RandomCall:
    dtype, root, in_place = draw_dtype(d.rng), d.shared(d.size), d.shared(4) == 0
    counts = d.counts(dtype)
    if d.rank != root:
        return RandomCall([d.send(counts[d.rank], dtype), None, root])
    recv = d.vboth(counts, dtype)
    return RandomCall([IN_PLACE if in_place else d.send(counts[d.rank], dtype), recv, root], [recv])


def scatterv(d: Draw) -> RandomCall:
    dtype, root, in_place = draw_dtype(d.rng), d.shared(d.size), d.shared(4) == 0
    counts = d.counts(dtype)
    send = d.vsend(counts, dtype) if d.rank == root else None
    if in_place and send is not None:
        return RandomCall([send, IN_PLACE, root])
    recv = d.recv(counts[d.rank], dtype)
    return RandomCall([send, recv, root], [recv])


def reduction(d: Draw, name: str) -> RandomCall:
    """Arguments of a collective that combines the elements of all ranks."""
    counts: list[int] | None = None
    n, dtype = d.shape(1)
    op, root, in_place = MPI.SUM, d.shared(d.size), d.shared(3) == 0
    d.derived, d.kind = False, ("exact", "smooth")[d.shared(2)]
    if d.shared(4) == 0 and is_known(dtype):
        op = MPI.PROD if dtype.kind == "c" else (MPI.MAX, MPI.MIN, MPI.PROD)[d.shared(3)]
    if name in ("Scan", "Exscan") and not is_known(dtype):
        dtype = np.dtype("f4")
    part, got = slice(None), n
    if name == "Reduce_scatter_block":
        n, got = got // d.size * d.size, got // d.size
        part = slice(d.rank * got, (d.rank + 1) * got)
    elif name == "Reduce_scatter":
        counts = d.counts(dtype)
        n, got = sum(counts), counts[d.rank]
        part = slice(sum(counts[: d.rank]), sum(counts[: d.rank + 1]))
    blocks = d.size if name == "Reduce_scatter_block" else 1
    here = name != "Reduce" or d.rank == root
    if in_place and here:
        recv = d.both(n, dtype, blocks)
        recv.n_results = got  # the rest is undefined
        args: list[Any] = [IN_PLACE, recv]
    else:
        recv = d.recv(got, dtype) if here else None
        args = [d.send(n, dtype, blocks), recv]
    args += [counts] * (name == "Reduce_scatter") + [op] + [root] * (name == "Reduce")
    results = [recv] if recv is not None and (name != "Exscan" or d.rank) else []
    exact = dtype.kind in "iu" or (op == MPI.SUM and d.kind == "exact") or op in (MPI.MAX, MPI.MIN)
    addends = None if is_known(dtype) else d.of(d.rank, n, dtype)
    return RandomCall(args, results, exact, addends, part)


COLLECTIVES: dict[str, Callable[[Draw], RandomCall]] = {
    "Bcast": bcast,
    "Allgather": allgather,
    "Alltoall": alltoall,
    "Gather": gather,
    "Scatter": scatter,
    "Allgatherv": allgatherv,
    "Alltoallv": alltoallv,
    "Alltoallw": alltoallw,
    "Gatherv": gatherv,
    "Scatterv": scatterv,
    "Barrier": lambda d: RandomCall([]),
    **{
        name: partial(reduction, name=name)
        for name in ("Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")
    },
}

"""Ranks make the same decision in a call, however differently they describe it to MPI.

Ranks give types of equal signatures that are made, spread and counted differently, and some of them in place
where MPI lets one rank choose. They make some types anew and keep others, and forget prepared calls at
different times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from common import bits, complete, few_or_many, offsets
from mpi4py import MPI
from random_steps import prepare_auto

import compcoll
from compcoll import Policy, Rule
from compcoll.engine import _engine
from compcoll.operations import OPERATIONS

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")
IS_OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
IN_PLACE = MPI.IN_PLACE
#: Basic types; `OTHER` is the type of empty members of structs.
BASES = {"f8": MPI.DOUBLE, "f4": MPI.FLOAT, "c8": MPI.COMPLEX, "i4": MPI.INT, "u1": MPI.UINT8_T}
OTHER = MPI.SHORT
#: Elements of messages: multiples of the elements of all types, and few values, so that calls repeat.
SIZES = [0, 12, 120, 300, 1200, 6000, 12_000]


@dataclass
class Kind:
    """Datatype of some elements of a basic type.

    Attributes
    ----------
    datatype : MPI.Datatype
    at : numpy.ndarray
        Places of these elements in an entry, in elements.
    extent : int
        Elements from one entry to the next.
    """

    datatype: MPI.Datatype
    at: np.ndarray
    extent: int
    is_predefined: bool = False

    def count(self, n: int) -> int:
        """Entries that have ``n`` elements."""
        return n // len(self.at)

    def places(self, first: int, n: int) -> np.ndarray:
        """Places of ``n`` elements, from entry ``first`` on."""
        return ((first + np.arange(self.count(n)))[:, None] * self.extent + self.at).ravel()

    def room(self, n: int) -> int:
        """Elements of memory that ``n`` elements need."""
        return self.count(n) * self.extent

    def free(self) -> None:
        if not self.is_predefined:
            self.datatype.Free()


def _made(datatype: MPI.Datatype, at, extent: int, nbytes: int) -> Kind:
    resized = datatype.Create_resized(0, extent * nbytes)
    datatype.Free()
    return Kind(resized.Commit(), np.asarray(at), extent)


def _shuffled(base, k, rng):
    at = rng.permutation(k + 3)[:k]
    return base.Create_indexed_block(1, at.tolist()), at, k + 3


def _backwards(base, k, _):
    at = np.arange(k)[::-1]
    return base.Create_hindexed([1] * k, (at * base.Get_size()).tolist()), at, k


def _dup(base, k, _):
    row = base.Create_contiguous(k)
    made = row.Dup()
    row.Free()
    return made, np.arange(k), k


def _nested(base, k, _):
    pair = base.Create_contiguous(k // 2)
    made = pair.Create_vector(2, 1, 2)
    pair.Free()
    return made, np.r_[: k // 2, k // 2 * 2 : k // 2 * 3], 3 * (k // 2) + 1


#: Functions of a basic type, a number of elements and a generator that return a datatype, the places of its
#: elements, and its extent.
STYLES: dict[str, Callable] = {
    "contiguous": lambda base, k, _: (base.Create_contiguous(k), np.arange(k), k),
    "dup": _dup,
    "spread": lambda base, k, _: (base.Create_vector(k, 1, 2), 2 * np.arange(k), 2 * k),
    "wide": lambda base, k, _: (base.Create_contiguous(k), np.arange(k), k + 2),
    "struct": lambda base, k, _: (
        MPI.Datatype.Create_struct([0, k, 0], [0, 0, 4], [OTHER, base, OTHER]),
        np.arange(k),
        k,
    ),
    "subarray": lambda base, k, _: (
        base.Create_subarray([k, 4], [k // 2, 2], [1, 1]),
        (4 * np.arange(1, k // 2 + 1)[:, None] + [1, 2]).ravel(),
        4 * k,
    ),
    "shuffled": _shuffled,
    "backwards": _backwards,
    "nested": _nested,
}


class Draw:
    """Random calls: ``rng`` draws the same on all ranks, ``own`` on this rank alone."""

    def __init__(self, seed: int, comm: MPI.Intracomm):
        self.rank, self.size = comm.rank, comm.size
        self.rng, self.own = np.random.default_rng(seed), np.random.default_rng([seed, 1 + comm.rank])
        self.pool: dict[tuple[str, str, int], Kind] = {}
        self.old: list[Kind] = []
        self.code, self.n, self.root, self.in_place, self.root_in_place = "f8", 0, 0, False, False

    def next_call(self) -> None:
        """Draw what all ranks must agree on in the next call, and whether the root has it in place."""
        while self.old:
            self.old.pop().free()
        self.code = str(self.rng.choice(list(BASES)))
        self.n, self.root = int(self.rng.choice(SIZES)), int(self.rng.integers(self.size))
        self.in_place = bool(self.rng.random() < 0.25)
        self.root_in_place = bool(self.own.random() < 0.4)

    def kind(self, *, at_once: int = 0, alike: bool = False) -> Kind:
        """Datatype of this rank's choice, of ``at_once`` elements or a few; kept from before or just made."""
        base, rng = BASES[self.code], self.rng if alike else self.own
        if rng.random() < 0.3:
            return Kind(base, np.arange(1), 1, is_predefined=True)
        style = str(rng.choice(list(STYLES)))
        k = at_once if at_once and rng.random() < 0.5 else int(rng.choice([2, 4, 6, 12]))
        key = self.code, style, k
        if key in self.pool and self.own.random() < 0.5:
            return self.pool[key]
        if key in self.pool:
            self.old.append(self.pool[key])
        made = self.pool[key] = _made(*STYLES[style](base, k, self.own), nbytes=base.Get_size())
        return made

    def free(self) -> None:
        for kind in (*self.pool.values(), *self.old):
            kind.free()
        self.old.clear()
        self.pool.clear()

    def values(self, n: int) -> np.ndarray:
        """Whole numbers, whose sums are exact."""
        dtype = np.dtype(self.code)
        if self.own.random() < 0.5:
            return self.own.integers(0, 20, n).astype(dtype)
        return (np.arange(n) // 7 % 20).astype(dtype)

    def counts(self) -> list[int]:
        """Elements of each rank's message."""
        return [int(n) for n in self.rng.choice(SIZES, self.size)]


@dataclass
class RandomArguments:
    """Arguments of a call, as a function of the send buffer and the receive buffer.

    Attributes
    ----------
    args : callable
        ``args(sent, received)``
    n_sent, n_received : int
        Elements of both buffers.
    results : slice
        Part of the receive buffer that MPI defines.
    """

    args: Callable[[np.ndarray, np.ndarray], tuple[Any, ...]]
    n_sent: int
    n_received: int
    results: slice = field(default_factory=lambda: slice(None))


def one(d: Draw, n: int, kind: Kind | None = None) -> tuple[Callable, int]:
    """Block: a function that makes its specification, and the elements of memory that it needs."""
    kind = kind or d.kind(at_once=n)
    count, datatype = kind.count(n), kind.datatype
    return (lambda array: [array, count, datatype]), kind.room(n)


def each(d: Draw, n: int) -> tuple[Callable, int]:
    """Blocks of equal size, one for each rank."""
    kind = d.kind(at_once=n)
    count, datatype = kind.count(n), kind.datatype
    return (lambda array: [array, count, datatype]), d.size * kind.room(n)


def counted(d: Draw, counts: list[int], kind: Kind | None = None) -> tuple[Callable, int]:
    """Blocks with gaps of this rank's choice between them."""
    kind, gap = kind or d.kind(), int(d.own.integers(3))
    entries = [kind.count(n) for n in counts]
    displs, datatype = offsets(entries, gap), kind.datatype
    return (lambda array: [array, entries, displs, datatype]), (sum(entries) + gap * d.size) * kind.extent


def of_types(d: Draw, counts: list[int]) -> tuple[Callable, int]:
    """Blocks with a type each."""
    kinds = [d.kind() for _ in counts]
    entries = [kind.count(n) for kind, n in zip(kinds, counts, strict=True)]
    starts = offsets([kind.room(n) for kind, n in zip(kinds, counts, strict=True)])
    nbytes = BASES[d.code].Get_size()
    displs, types = [nbytes * at for at in starts], [kind.datatype for kind in kinds]
    room = starts[-1] + kinds[-1].room(counts[-1])
    return (lambda array: [array, (entries, displs), types]), room


def bcast(d: Draw) -> RandomArguments:
    spec, n = one(d, d.n)
    return RandomArguments(lambda a, b: (spec(b), d.root), 0, n)


def exchange(d: Draw, send: Callable, recv: Callable) -> RandomArguments:
    """Call with blocks of equal size: all ranks have theirs in place, or none."""
    (ours, n), (theirs, m) = send(d, d.n), recv(d, d.n)
    return RandomArguments(lambda a, b: (IN_PLACE if d.in_place else ours(a), theirs(b)), n, m)


def allgatherv(d: Draw) -> RandomArguments:
    """Allgatherv with one type on all ranks.

    Allgatherv of MPI libraries hangs if types differ: MPICH divides by extents, Open MPI chooses an algorithm
    by entries.
    """
    counts, kind = d.counts(), d.kind(alike=True)
    (ours, n), (theirs, m) = one(d, counts[d.rank], kind), counted(d, counts, kind)
    return RandomArguments(lambda a, b: (IN_PLACE if d.in_place else ours(a), theirs(b)), n, m)


def pairs(d: Draw, blocks: Callable) -> RandomArguments:
    """Alltoallv or Alltoallw, in place if each pair sends as much as it receives."""
    table = np.array([d.counts() for _ in range(d.size)])
    if d.in_place:
        table = np.maximum(np.maximum(table, table.T), 12)  # Open MPI mixes up calls without any message
    sends, recvs = table[d.rank].tolist(), table[:, d.rank].tolist()
    (ours, n), (theirs, m) = (0, 0) if d.in_place else blocks(d, sends), blocks(d, recvs)
    return RandomArguments(lambda a, b: (IN_PLACE if d.in_place else ours(a), theirs(b)), n, m)


def gather(d: Draw) -> RandomArguments:
    (ours, n), (theirs, m) = one(d, d.n), each(d, d.n)
    return _to_root(d, ours, n, theirs, m)


def gatherv(d: Draw) -> RandomArguments:
    counts = d.counts()
    (ours, n), (theirs, m) = one(d, counts[d.rank]), counted(d, counts)
    return _to_root(d, ours, n, theirs, m)


def _to_root(d: Draw, ours, n, theirs, m) -> RandomArguments:
    if d.rank != d.root:
        return RandomArguments(lambda a, b: (ours(a), None, d.root), n, 0)
    return RandomArguments(lambda a, b: (IN_PLACE if d.root_in_place else ours(a), theirs(b), d.root), n, m)


def scatter(d: Draw) -> RandomArguments:
    (ours, n), (theirs, m) = each(d, d.n), one(d, d.n)
    return _from_root(d, ours, n, theirs, m)


def scatterv(d: Draw) -> RandomArguments:
    counts = d.counts()
    (ours, n), (theirs, m) = counted(d, counts), one(d, counts[d.rank])
    return _from_root(d, ours, n, theirs, m)


def _from_root(d: Draw, ours, n, theirs, m) -> RandomArguments:
    if d.rank != d.root:
        return RandomArguments(lambda a, b: (None, theirs(b), d.root), 0, m)
    return RandomArguments(lambda a, b: (ours(a), IN_PLACE if d.root_in_place else theirs(b), d.root), n, m)


def allreduce(d: Draw) -> RandomArguments:
    return RandomArguments(lambda a, b: (IN_PLACE if d.in_place else a, b), d.n, d.n)


def reduce(d: Draw) -> RandomArguments:
    if d.rank != d.root:
        return RandomArguments(lambda a, b: (a, None, MPI.SUM, d.root), d.n, 0)
    return RandomArguments(lambda a, b: (IN_PLACE if d.root_in_place else a, b, MPI.SUM, d.root), d.n, d.n)


def reduce_scatter_block(d: Draw) -> RandomArguments:
    whole = d.n * d.size
    if d.in_place:
        return RandomArguments(lambda a, b: (IN_PLACE, b), 0, whole, slice(d.n))
    return RandomArguments(lambda a, b: (a, b), whole, d.n)


def reduce_scatter(d: Draw) -> RandomArguments:
    counts = d.counts()
    total, own = sum(counts), counts[d.rank]
    if d.in_place:
        return RandomArguments(lambda a, b: (IN_PLACE, b, counts), 0, total, slice(own))
    return RandomArguments(lambda a, b: (a, b, counts), total, own)


CALLS = {
    "Bcast": bcast,
    "Allgather": lambda d: exchange(d, one, each),
    "Allgatherv": allgatherv,
    "Alltoall": lambda d: exchange(d, each, each),
    "Alltoallv": lambda d: pairs(d, counted),
    "Alltoallw": lambda d: pairs(d, of_types),
    "Gather": gather,
    "Gatherv": gatherv,
    "Scatter": scatter,
    "Scatterv": scatterv,
    "Allreduce": allreduce,
    "Reduce": reduce,
    "Reduce_scatter_block": reduce_scatter_block,
    "Reduce_scatter": reduce_scatter,
}
#: Operations in which all ranks decide together.
TOGETHER = [name for name in CALLS if OPERATIONS[name].decides.name == "ALL"]


def policies(rng) -> list[dict[str, Any]]:
    least = int(rng.choice([0, 1, 100, 480, 1000, 4800, 20_000]))
    rules = (Rule(op="Bcast", algorithm="tree"), Rule(dtype="float64", codec="raw"), Rule(chunk_nbytes=4096))
    return [
        {"codec": "lossless", "min_nbytes": least},
        {"policy": Policy("lossless", min_nbytes=least, rules=rules)},
        {"codec": "auto", "min_nbytes": min(least, 4800)},
    ]


@pytest.fixture
def most_calls():
    yield _engine.set_most_calls
    _engine.set_most_calls(1024)


@few_or_many(100, 1100)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["lossless", "rules", "auto"])
def test_random_calls_go_the_same_way(comm, agree, nodes_of_one, monkeypatch, most_calls, which, count):
    prepare_auto(monkeypatch)
    comm.Barrier()
    d, ours, ways, reasons, n_large = Draw(which + 10, comm), None, set(), [], 0
    forms = [0, 0, 0, 1] + [2] * (MPI.Get_version() >= (4, 0))
    for i in range(count):
        if i % (1000 if which == 2 else 50) == 0:
            if ours is not None:
                ours.Free()
            ours = compcoll.Comm(comm, **policies(d.rng)[which])
            if i // 50 % 2:
                whole, ours = ours, ours.Split(0, comm.rank)
                whole.Free()
        if d.own.random() < 0.1:
            most_calls(int(d.own.choice([1, 3, 1024])))
        if d.own.random() < 0.02:
            d.free()
        name, form = str(d.rng.choice(list(CALLS))), int(d.rng.choice(forms))
        d.next_call()
        if which == 2:  # few kinds, so that trials come to an end
            name, form = str(d.rng.choice(["Bcast", "Alltoall", "Gather", "Alltoallv"])), 0
            d.code, d.n = "f8", 6000
        if name in ("Alltoallv", "Alltoallw") and form and IS_OPEN_MPI:
            d.in_place = False
        call = CALLS[name](d)
        sent, got = d.values(call.n_sent), d.values(call.n_received)
        want, kept = got.copy(), sent.copy()
        getattr(comm, name)(*call.args(sent, want))
        complete(ours, OPERATIONS[name].forms[form], call.args(sent, got))
        report = ours.report
        assert agree(bits(got[call.results]) == bits(want[call.results])), (i, name, form, d.n)
        assert agree(bits(sent) == bits(kept)), (i, name)
        assert agree(report.op == name), (i, name, form, report.op)
        if name in TOGETHER:
            ways_of_all = comm.allgather((report.accelerated, report.codec, report.algorithm))
            assert len(set(ways_of_all)) == 1, (i, name, form, d.n, ways_of_all)
            ways.add(ways_of_all[0])
        reasons.append(report.reason)
        n_large += report.accelerated
    assert agree(n_large > 0)
    assert agree({way[0] for way in ways} == {True, False}), ways
    of_trials = ("on trial", "measured") if count > 1000 else ("on trial",)  # their number follows the clock
    assert agree(which != 2 or all(any(word in why for why in reasons) for word in of_trials))
    d.free()
    ours.Free()


@few_or_many(20, 200)
def test_types_that_differ_in_what_mpi_libraries_cannot_take(comm, agree, count):
    """Allgatherv is right and decided alike with any extents and entries on each rank."""
    d, ours = Draw(5, comm), compcoll.Comm(comm, "lossless", min_nbytes=0)
    for i in range(count):
        d.next_call()
        counts = [max(n, 12) for n in d.counts()]
        parts = [(np.arange(n) * (r + 3) % 97).astype(d.code) for r, n in enumerate(counts)]
        mine, theirs, gap = d.kind(at_once=counts[d.rank]), d.kind(), int(d.own.integers(3))
        sent = np.zeros(mine.room(counts[d.rank]), d.code)
        sent[mine.places(0, counts[d.rank])] = parts[d.rank]
        entries = [theirs.count(n) for n in counts]
        displs = offsets(entries, gap)
        got = np.full((sum(entries) + gap * d.size) * theirs.extent, 7, d.code)
        want = got.copy()
        for first, part in zip(displs, parts, strict=True):
            want[theirs.places(first, len(part))] = part
        method = OPERATIONS["Allgatherv"].forms[i % 2]
        send = [sent, mine.count(counts[d.rank]), mine.datatype]
        complete(ours, method, (send, [got, entries, displs, theirs.datatype]))
        assert agree(bits(got) == bits(want)), i
        ways = comm.allgather((ours.report.accelerated, ours.report.codec, ours.report.algorithm))
        assert set(ways) == {(True, "lossless", ways[0][2])}
    d.free()
    ours.Free()

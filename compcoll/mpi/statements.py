"""What a rank says of a call before it takes part: operation, amount, type, root, and what goes to whom.

The calls of all ranks go together where their statements agree. What a statement cannot tell, such as the
amount of a type of several basic ones, is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.buffers import Message, in_place, parse

__all__ = ["COLLECTIVES", "NONBLOCKING", "Statement", "difference", "listed", "odd", "state"]


@dataclass(frozen=True)
class Statement:
    """One rank's view of one call.

    Attributes
    ----------
    op : str
        The method.
    where : str
        Root and reduction, in words.
    amount : str or None
        What all ranks have to give alike, in words.
    dtype : str or None
        The elements' type.
    gives, expects : tuple of int or None
        Elements to and from each rank, None for those that cannot be told.
    policy : str
    refused : str
        What is wrong with the arguments on this rank alone.
    """

    op: str
    where: str = ""
    amount: str | None = None
    dtype: str | None = None
    gives: tuple[int | None, ...] | None = None
    expects: tuple[int | None, ...] | None = None
    policy: str = ""
    refused: str = ""

    def __str__(self) -> str:
        amount = self.amount or self.dtype
        return f"{self.op}{f' of {amount}' if amount else ''}{f' {self.where}' if self.where else ''}"


def state(name: str, rank: int, size: int, policy: str, args: tuple, kwargs: dict[str, Any]) -> Statement:
    """The statement of a call of a method of `COLLECTIVES`."""
    try:
        said = COLLECTIVES[name](_Here(rank, size), *args, **kwargs)
    except (LeftToMPI, TypeError, ValueError, BufferError) as error:
        return Statement(name, policy=policy, refused=str(error) or "mpi4py does not take its arguments")
    return replace(said, op=name, policy=policy)


def difference(said: Sequence[Statement]) -> str | None:
    """What keeps the calls of all ranks from going together; None where nothing does."""
    if any(s.refused for s in said) and not all(s.refused for s in said):
        refused = [
            f"rank {rank} called {s.op} wrongly: {s.refused}" for rank, s in enumerate(said) if s.refused
        ]
        return "; ".join(refused)
    kinds = {(s.op, s.where) for s in said}
    known = [{getattr(s, key) for s in said} - {None} for key in ("amount", "dtype")]
    if len(kinds) > 1 or any(len(values) > 1 for values in known):
        return odd([f"called {s}" for s in said])
    if len({s.policy for s in said}) > 1:
        return odd([f"called {s.op} with {s.policy}" for s in said])
    return _unequal(said)


def _unequal(said: Sequence[Statement]) -> str | None:
    for source, giver in enumerate(said):
        for dest, taker in enumerate(said):
            n = giver.gives[dest] if giver.gives is not None else None
            m = taker.expects[source] if taker.expects is not None else None
            if n is not None and m is not None and n != m:
                unit = giver.dtype or taker.dtype or "elements"
                return f"{giver.op}: rank {source} sends rank {dest} {n} {unit}, which expects {m}"
    return None


def odd(texts: list[str]) -> str:
    """Who said what, the few first."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, text in enumerate(texts):
        groups[text].append(rank)
    *few, most = sorted(groups.items(), key=lambda item: (len(item[1]), -item[1][0]))
    said = [f"{listed(ranks)} {text}" for text, ranks in few]
    alone = len(few) == 1 and len(most[1]) > 1
    return ", ".join([*said, f"{'the others' if alone else listed(most[1])} {most[0]}"])


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class _Here:
    """The rank that makes the statement; its methods look at arguments as the operations' do."""

    rank: int
    size: int

    def looked_at(self, spec: Any, blocks: int | None = None, vector: bool = False) -> Message | None:
        return parse(spec, blocks, vector=vector, device=True, strict=True)

    def only(self, peer: int, n: int | None) -> tuple[int | None, ...]:
        """So much for one rank, and nothing that can be told for others."""
        return tuple(n if r == peer else None for r in range(self.size))


def _type(*messages: Message | None) -> str | None:
    """The elements' type, where there are any."""
    return next((str(m.element) for m in messages if m is not None and any(m.counts)), None)


def _count(message: Message, i: int = 0) -> int:
    """Elements of a block, complex ones counted once."""
    return message.counts[i] * message.dtype.itemsize // message.element.itemsize


def _counts(message: Message) -> list[int]:
    return [_count(message, i) for i in range(len(message.counts))]


def _words(message: Message | None, n: int | str | None = None, more: str = "") -> str | None:
    """An amount in words."""
    return None if message is None else f"{_count(message) if n is None else n} {message.element}{more}"


def _bcast(here: _Here, buf: Any, root: Any = 0, *_: Any, **__: Any) -> Statement:
    message = here.looked_at(buf)
    return Statement("", f"from root {root}", _words(message), _type(message))


def _allgather(here: _Here, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Statement:
    recv = here.looked_at(recvbuf, here.size)
    gives = _sent(here, sendbuf)
    return Statement("", "", _words(recv, more=" from each rank"), _type(recv), gives, _received(recv))


def _allgatherv(here: _Here, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Statement:
    recv = here.looked_at(recvbuf, here.size, vector=True)
    counts = "+".join(map(str, _counts(recv))) if recv is not None else ""
    return Statement("", "", _words(recv, counts), _type(recv), _sent(here, sendbuf), _received(recv))


def _sent(here: _Here, sendbuf: Any) -> tuple[int | None, ...] | None:
    """What goes to every rank alike."""
    send = None if in_place(sendbuf) else here.looked_at(sendbuf)
    return None if send is None else (_count(send),) * here.size


def _received(recv: Message | None) -> tuple[int, ...] | None:
    return None if recv is None else tuple(_counts(recv))


def _alltoall(here: _Here, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Statement:
    recv = here.looked_at(recvbuf, here.size)
    send = recv if in_place(sendbuf) else here.looked_at(sendbuf, here.size)
    amount = _words(recv, more=" for each rank")
    return Statement("", "", amount, _type(recv), _received(send), _received(recv))


def _alltoallv(here: _Here, sendbuf: Any, recvbuf: Any, *_: Any, **__: Any) -> Statement:
    recv = here.looked_at(recvbuf, here.size, vector=True)
    send = recv if in_place(sendbuf) else here.looked_at(sendbuf, here.size, vector=True)
    return Statement("", "", None, _type(recv, send), _received(send), _received(recv))


def _gathers(vector: bool) -> Callable[..., Statement]:
    def gather(here: _Here, sendbuf: Any, recvbuf: Any, root: Any = 0, *_: Any, **__: Any) -> Statement:
        recv = here.looked_at(recvbuf, here.size, vector) if here.rank == root else None
        send = None if in_place(sendbuf) else here.looked_at(sendbuf)
        gives = here.only(root, _count(send)) if send is not None else None
        return Statement("", f"to root {root}", None, _type(send, recv), gives, _received(recv))

    return gather


def _scatters(vector: bool) -> Callable[..., Statement]:
    def scatter(here: _Here, sendbuf: Any, recvbuf: Any, root: Any = 0, *_: Any, **__: Any) -> Statement:
        send = here.looked_at(sendbuf, here.size, vector) if here.rank == root else None
        recv = None if in_place(recvbuf) else here.looked_at(recvbuf)
        expects = here.only(root, _count(recv)) if recv is not None else None
        return Statement("", f"from root {root}", None, _type(recv, send), _received(send), expects)

    return scatter


def _reduction(here: _Here, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *_: Any, **__: Any) -> Statement:
    message = here.looked_at(recvbuf if in_place(sendbuf) else sendbuf)
    return Statement("", f"with {_name(op)}", _words(message), _type(message))


def _allreduce(here: _Here, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *_: Any, **__: Any) -> Statement:
    send, recv = None if in_place(sendbuf) else here.looked_at(sendbuf), here.looked_at(recvbuf)
    if send is not None and recv is not None and _count(send) != _count(recv):
        raise ValueError(f"it sends {_count(send)} elements and has room for {_count(recv)}")
    return _reduction(here, sendbuf, recvbuf, op)


def _reduce(
    here: _Here, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: Any = 0, *_: Any, **__: Any
) -> Statement:
    said = _reduction(here, sendbuf, recvbuf, op)
    return replace(said, where=f"{said.where} to root {root}")


def _reduce_scatter_block(
    here: _Here, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *_: Any, **__: Any
) -> Statement:
    message = here.looked_at(recvbuf if in_place(sendbuf) else sendbuf, here.size)
    return Statement("", f"with {_name(op)}", _words(message, more=" for each rank"), _type(message))


def _reduce_scatter(
    here: _Here, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = MPI.SUM, *_: Any, **__: Any
) -> Statement:
    return _reduction(here, sendbuf, recvbuf, op)


def _named(here: _Here, *_: Any, **__: Any) -> Statement:
    return Statement("")


def _rooted_object(here: _Here, obj: Any, root: Any = 0, *_: Any, **__: Any) -> Statement:
    return Statement("", f"with root {root}")


def _reduced_object(here: _Here, sendobj: Any, op: Any = MPI.SUM, root: Any = None) -> Statement:
    return Statement("", f"with {_name(op)}" + (f" to root {root}" if root is not None else ""))


def _object_to_root(here: _Here, sendobj: Any, op: Any = MPI.SUM, root: Any = 0) -> Statement:
    return _reduced_object(here, sendobj, op, root)


_OPS = [
    "SUM", "PROD", "MAX", "MIN", "MAXLOC", "MINLOC", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "REPLACE",
]  # fmt: skip


def _name(op: Any) -> str:
    """A reduction in words."""
    if isinstance(op, MPI.Op):
        return next((name for name in _OPS if op == getattr(MPI, name)), "a user's operation")
    return getattr(op, "__qualname__", type(op).__name__)


_BUFFERS: dict[str, Callable[..., Statement]] = {
    "Bcast": _bcast, "Allgather": _allgather, "Allgatherv": _allgatherv, "Alltoall": _alltoall,
    "Alltoallv": _alltoallv, "Alltoallw": _named, "Gather": _gathers(False), "Gatherv": _gathers(True),
    "Scatter": _scatters(False), "Scatterv": _scatters(True), "Allreduce": _allreduce, "Reduce": _reduce,
    "Reduce_scatter": _reduce_scatter, "Reduce_scatter_block": _reduce_scatter_block, "Scan": _allreduce,
    "Exscan": _allreduce, "Barrier": _named,
    **dict.fromkeys(
        ["Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv",
         "Neighbor_alltoallw"],
        _named,
    ),
}  # fmt: skip
_OBJECTS: dict[str, Callable[..., Statement]] = {
    **dict.fromkeys(["bcast", "gather", "scatter"], _rooted_object),
    **dict.fromkeys(["allgather", "alltoall", "barrier", "neighbor_allgather", "neighbor_alltoall"], _named),
    **dict.fromkeys(["allreduce", "scan", "exscan"], _reduced_object),
    "reduce": _object_to_root,
}
_COMMUNICATORS = dict.fromkeys(
    ["Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph",
     "Create_dist_graph_adjacent", "Create_dist_graph", "Sub", "Free", "Disconnect"],
    _named,
)  # fmt: skip
#: Those that return before all ranks have called them.
NONBLOCKING = frozenset(f"I{name.lower()}" for name in _BUFFERS)
#: All methods that all ranks have to call together, and how each is described.
COLLECTIVES: dict[str, Callable[..., Statement]] = {
    **_BUFFERS, **{f"I{name.lower()}": how for name, how in _BUFFERS.items()},
    **{f"{name}_init": how for name, how in _BUFFERS.items()}, **_OBJECTS, **_COMMUNICATORS,
}  # fmt: skip

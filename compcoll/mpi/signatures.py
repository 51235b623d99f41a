"""Signatures of calls: the operation, amount, type, root and counts that ranks have to agree on.

The calls of all ranks match where their signatures do. A part that a signature cannot tell, such as the
amount of a datatype of several basic ones, is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from compcoll.engine.agreement import format_ranks
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.blocks import TypedBlocks
from compcoll.mpi.buffers import Message, in_place, parse
from compcoll.mpi.collectives import Arguments, buffers_of
from compcoll.operations import OPERATIONS, Blocks, Decides, Operation

__all__ = [
    "COLLECTIVES",
    "NONBLOCKING",
    "CallSignature",
    "describe_mismatch",
    "group_by_rank",
    "signature_of",
]

#: Elements of a block and their type; None where that cannot be told.
Amount = tuple[int, str] | None


@dataclass(frozen=True)
class CallSignature:
    """One rank's view of one call.

    Attributes
    ----------
    op : str
        The method.
    where : str
        Root and reduction, in words.
    amount : str or None
        Arguments that have to be the same on all ranks, in words.
    dtype : str or None
        The elements' type.
    sendcounts, recvcounts : tuple of (int, str) or None
        Elements to and from each rank, and their type; None for those that cannot be told.
    policy : str
    error : str
        The error of the arguments on this rank alone.
    """

    op: str
    where: str = ""
    amount: str | None = None
    dtype: str | None = None
    sendcounts: tuple[Amount, ...] | None = None
    recvcounts: tuple[Amount, ...] | None = None
    policy: str = ""
    error: str = ""

    @property
    def common(self) -> str:
        """All that is the same on all ranks of matching calls, as a text."""
        return repr((self.op, self.where, self.amount, self.dtype, self.policy, self.error))

    def __str__(self) -> str:
        amount = self.amount or self.dtype
        return f"{self.op}{f' of {amount}' if amount else ''}{f' {self.where}' if self.where else ''}"


def signature_of(
    method: str, rank: int, size: int, policy: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallSignature:
    """The signature of a call of a method of `COLLECTIVES`."""
    operation = COLLECTIVES[method]
    try:
        if operation is None:
            signature = CallSignature(method, _where_of_object(method, *args, **kwargs))
        elif operation.n_buffers and not method.removeprefix("I").lower().startswith("neighbor"):
            given = Arguments.bind(operation, method, args, kwargs)
            signature = _of_buffers(operation, rank, size, given)
        else:
            signature = CallSignature(method)
    except (LeftToMPI, TypeError, ValueError, BufferError) as error:
        return CallSignature(method, policy=policy, error=str(error) or "mpi4py does not take its arguments")
    return replace(signature, op=method, policy=policy)


def describe_mismatch(signatures: Sequence[CallSignature | None]) -> str | None:
    """The reason why the calls of all ranks do not match; None where they do."""
    silent = [rank for rank, said in enumerate(signatures) if said is None]
    if silent:
        return f"the ranks' calls differ, and nothing was heard of that of {format_ranks(silent)}"
    return _mismatch([said for said in signatures if said is not None])


def _mismatch(signatures: Sequence[CallSignature]) -> str | None:
    wrong = [(rank, s) for rank, s in enumerate(signatures) if s.error]
    if wrong and len(wrong) < len(signatures):
        return "; ".join(f"rank {rank} called {s.op} wrongly: {s.error}" for rank, s in wrong)
    kinds = {(s.op, s.where) for s in signatures}
    known = [{getattr(s, key) for s in signatures} - {None} for key in ("amount", "dtype")]
    if len(kinds) > 1 or any(len(values) > 1 for values in known):
        return group_by_rank([f"called {s}" for s in signatures])
    if len({s.policy for s in signatures}) > 1:
        return group_by_rank([f"called {s.op} with {s.policy}" for s in signatures])
    return _unequal_counts(signatures)


def _unequal_counts(signatures: Sequence[CallSignature]) -> str | None:
    for source, sender in enumerate(signatures):
        for dest, receiver in enumerate(signatures):
            sent = sender.sendcounts[dest] if sender.sendcounts is not None else None
            expected = receiver.recvcounts[source] if receiver.recvcounts is not None else None
            if sent is not None and expected is not None and sent != expected and (sent[0] or expected[0]):
                return (
                    f"{sender.op}: rank {source} sends rank {dest} {sent[0]} {sent[1]}, "
                    f"which expects {expected[0]}{f' {expected[1]}' if expected[1] != sent[1] else ''}"
                )
    return None


def group_by_rank(texts: list[str]) -> str:
    """A text for each rank, alike ones together, the rare ones first."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, text in enumerate(texts):
        groups[text].append(rank)
    *few, most = sorted(groups.items(), key=lambda item: (len(item[1]), -item[1][0]))
    said = [f"{format_ranks(ranks)} {text}" for text, ranks in few]
    alone = len(few) == 1 and len(most[1]) > 1
    return ", ".join([*said, f"{'the others' if alone else format_ranks(most[1])} {most[0]}"])


# -- buffers


def _of_buffers(operation: Operation, rank: int, size: int, given: Arguments) -> CallSignature:
    where = [f"with {_reduction_name(given.op)}"] if operation.reduces else []
    if operation.root:
        where.append(f"{'from' if operation.root == 'send' else 'to'} root {given.root}")
    words = " ".join(where)
    if operation.send is Blocks.TYPED:
        sendcounts, recvcounts = _typed_counts(size, given)
        return CallSignature("", words, sendcounts=sendcounts, recvcounts=recvcounts)
    if operation.n_buffers == 1:
        message = parse(given.buffers[0], device=True, strict=True)
        if message is not None and rank != given.root:
            message.check_writable()
        return CallSignature("", words, _amount(message), _type_of(message))
    send, recv = buffers_of(operation, rank, size, given, strict=True)
    if recv is not None and (recv is not send or operation.in_place == 0):
        recv.check_writable()
    if operation.reduces:
        return _of_reduction(operation, words, send, recv)
    if operation.root or operation.decides is Decides.PAIR:
        amount = None
    elif operation.recv is Blocks.COUNTED:
        amount = _amount(recv, "+".join(str(n) for n, _ in _counts(recv) or ()))
    else:
        more = " for each rank" if operation.send.many else " from each rank"
        amount = _amount(recv, more=more)
    sent = None if send is recv and not operation.send.many else _counts(send)
    received = None if send is recv and not operation.recv.many else _counts(recv)
    counts = (
        _by_peer(operation.send, sent, size, given.root if operation.root else None),
        _by_peer(operation.recv, received, size, given.root if operation.root else None),
    )
    first, second = (recv, send) if operation.root != "recv" else (send, recv)
    return CallSignature("", words, amount, _type_of(first, second), *counts)


def _of_reduction(
    operation: Operation, where: str, send: Message | None, recv: Message | None
) -> CallSignature:
    both = send is not None and recv is not None and send is not recv
    if both and operation.recv is operation.send and not operation.root:
        sendcount, recvcount = _counts(send)[0][0], _counts(recv)[0][0]  # type: ignore[index]
        if sendcount != recvcount and not operation.counts:
            raise ValueError(f"{operation.name}: sendcount {sendcount} != recvcount {recvcount}")
    more = " for each rank" if operation.send.many else ""
    return CallSignature("", where, _amount(send, more=more), _type_of(send))


def _typed_counts(size: int, given: Arguments) -> list[tuple[Amount, ...]]:
    sendbuf, recvbuf = given.buffers
    recv = TypedBlocks(recvbuf, size)
    send = recv if in_place(sendbuf) else TypedBlocks(sendbuf, size)
    return [tuple(side.elements(peer) for peer in range(size)) for side in (send, recv)]


def _counts(message: Message | None) -> list[tuple[int, str]] | None:
    """Elements of each block, complex ones counted once, and their type."""
    if message is None:
        return None
    width = message.element.itemsize // message.dtype.itemsize
    return [(n // width, str(message.element)) for n in message.counts]


def _by_peer(
    blocks: Blocks, counts: list[tuple[int, str]] | None, size: int, root: int | None
) -> tuple[Amount, ...] | None:
    """Amounts for each rank; of one block those for the root, or for all alike."""
    if counts is None or blocks.many:
        return None if counts is None else tuple(counts)
    return tuple(counts[0] if root is None or peer == root else None for peer in range(size))


def _type_of(*messages: Message | None) -> str | None:
    """The elements' type, where there are any."""
    return next((str(m.element) for m in messages if m is not None and any(m.counts)), None)


def _amount(message: Message | None, n: str | None = None, more: str = "") -> str | None:
    """An amount in words."""
    counts = _counts(message)
    return None if not counts else f"{counts[0][0] if n is None else n} {counts[0][1]}{more}"


# -- objects, and other methods


def _where_of_object(method: str, *args: Any, **kwargs: Any) -> str:
    names = _OBJECTS.get(method, ())
    given: dict[str, Any] = {"op": MPI.SUM, "root": 0, **dict(zip(names, args[1:], strict=False)), **kwargs}
    where = [f"with {_reduction_name(given['op'])}"] if "op" in names else []
    if "root" in names:
        where.append(f"to root {given['root']}" if where else f"with root {given['root']}")
    return " ".join(where)


_OPS = {name: op for name, op in vars(MPI).items() if isinstance(op, MPI.Op)}


def _reduction_name(op: Any) -> str:
    if isinstance(op, MPI.Op):
        return next((name for name, known in _OPS.items() if op == known), "a user's operation")
    return getattr(op, "__qualname__", type(op).__name__)


#: Methods of objects, and the arguments behind the object on which ranks have to agree.
_OBJECTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["bcast", "gather", "scatter"], ("root",)),
    **dict.fromkeys(["allgather", "alltoall", "barrier", "neighbor_allgather", "neighbor_alltoall"], ()),
    **dict.fromkeys(["allreduce", "scan", "exscan"], ("op",)),
    "reduce": ("op", "root"),
}
_COMMUNICATORS = (
    "Dup",
    "Dup_with_info",
    "Clone",
    "Split",
    "Split_type",
    "Create",
    "Create_cart",
    "Create_graph",
    "Create_dist_graph_adjacent",
    "Create_dist_graph",
    "Sub",
    "Free",
    "Disconnect",
)
#: Methods that return before all ranks have called them.
NONBLOCKING = frozenset(operation.nonblocking for operation in OPERATIONS.values())
#: All methods that all ranks have to call together, and the operations of those that take buffers.
COLLECTIVES: dict[str, Operation | None] = {
    **{form: operation for operation in OPERATIONS.values() for form in operation.forms},
    **dict.fromkeys((*_OBJECTS, *_COMMUNICATORS)),
}

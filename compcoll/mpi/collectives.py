"""The collectives' arguments, turned into what the algorithms want.

`parse_call` parses the arguments of any operation that all ranks decide upon and returns a `Parsed` call, or
None where mpi4py has to deal with them. Whether it does is common knowledge: MPI requires that the ranks'
types and counts agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.engine.call import Call
from compcoll.engine.group import Group
from compcoll.mpi.buffers import Block, Message, apart, in_place
from compcoll.mpi.buffers import parse as parse_host
from compcoll.operations import OPERATIONS, Blocks, Operation

__all__ = ["Arguments", "Parsed", "buffers_of", "parse_call"]

parse = partial(parse_host, device=True)


@dataclass
class Arguments:
    """The arguments of a collective method.

    Attributes
    ----------
    buffers : tuple
        One or two buffer arguments, as `compcoll.operations.Operation.n_buffers` says.
    root : int
    op : MPI.Op
    recvcounts : sequence of int or None
        Of Reduce_scatter.
    info : MPI.Info
        Of persistent calls.
    """

    buffers: tuple[Any, ...]
    root: Any = 0
    op: MPI.Op = field(default_factory=lambda: MPI.SUM)
    recvcounts: Any = None
    info: MPI.Info = field(default_factory=lambda: MPI.INFO_NULL)

    @classmethod
    def bind(
        cls, operation: Operation, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        """The arguments of a call of one of an operation's methods; TypeError where they are not those."""
        names = _NAMES[operation.name]
        if method == operation.persistent:
            names = (*names, "info")
        given = dict(zip(names, args, strict=False)) if len(args) <= len(names) else None
        if given is None or any(name in given or name not in names for name in kwargs):
            raise TypeError(f"{method}() takes the arguments {', '.join(names)}")
        given.update(kwargs)
        n = operation.n_buffers
        if missing := [name for name in names[:n] if name not in given]:
            raise TypeError(f"{method}() misses the argument {missing[0]!r}")
        return cls(tuple(given.pop(name) for name in names[:n]), **given)

    def for_mpi(self, operation: Operation, buffers: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        """In mpi4py's order, with other buffers where they are given."""
        more = tuple(getattr(self, name) for name in _NAMES[operation.name][operation.n_buffers :])
        return (*(self.buffers if buffers is None else buffers), *more)


def _names(operation: Operation) -> tuple[str, ...]:
    buffers = ("buf",) if operation.n_buffers == 1 else ("sendbuf", "recvbuf")
    counts = ("recvcounts",) if operation.counts else ()
    op = ("op",) if operation.reduces else ()
    root = ("root",) if operation.root else ()
    return (*buffers[: operation.n_buffers], *counts, *op, *root)


#: Names of the operations' arguments, in mpi4py's order.
_NAMES = {name: _names(operation) for name, operation in OPERATIONS.items()}


@dataclass
class Parsed(Call):
    """A call with what mpi4py's arguments say besides.

    Attributes
    ----------
    element : numpy.dtype
        The type that the blocks were given in: a complex one for pairs of real numbers.
    messages : list of Message
        Buffers to be finished afterwards.
    read_only_root : bool
        Whether this rank may not write to what it broadcasts.
    places : list of (int, int) or None
        Of each block the argument that it lies in, 0 for what is sent and 1 for what is received, and the
        byte where it begins there; None where not all lie there as they are.
    """

    element: Any = None
    messages: list[Message] = field(default_factory=list)
    read_only_root: bool = False
    places: list[tuple[int, int]] | None = None

    def finish(self) -> None:
        """Write through what could not be written in place."""
        super().finish()
        for message in self.messages:
            message.finish()


def buffers_of(
    operation: Operation, rank: int, size: int, given: Arguments, strict: bool = False
) -> tuple[Message | None, Message | None]:
    """Send and receive blocks of a rank: the same object for a call in place.

    Either is None where this rank's argument is not significant, or mpi4py has to deal with it. ``strict`` is
    that of `compcoll.mpi.buffers.parse`.
    """

    def parsed(spec: Any, blocks: Blocks) -> Message | None:
        n = size if blocks.many else None
        return parse(spec, n, vector=blocks is Blocks.COUNTED, strict=strict)

    sendbuf, recvbuf = given.buffers
    sends, recvs = (operation.root != side or rank == given.root for side in ("send", "recv"))
    if operation.in_place == 1:
        send = parsed(sendbuf, operation.send) if sends else None
        return send, send if in_place(recvbuf) else parsed(recvbuf, operation.recv)
    recv = parsed(recvbuf, operation.recv) if recvs else None
    if not in_place(sendbuf):
        return parsed(sendbuf, operation.send), recv
    if operation.name == "Reduce_scatter_block":  # whose blocks lie in the receive buffer
        return parsed(recvbuf, operation.send), recv
    return recv, recv


def parse_call(
    operation: Operation, rank: int, size: int, given: Arguments, group: Group, min_nbytes: int
) -> Parsed | None:
    """Parse the arguments of an operation that all ranks decide upon.

    Parameters
    ----------
    group : Group
        Where ranks exchange receive counts that were not given, but for calls of fewer bytes than
        ``min_nbytes``.
    """
    if operation.root and not 0 <= given.root < size:
        return None
    if operation.n_buffers == 1:
        return _bcast(operation, rank, given)
    send, recv = buffers_of(operation, rank, size, given)
    looks_at = [operation.root != side or rank == given.root for side in ("send", "recv")]
    if any(looks and message is None for looks, message in zip(looks_at, (send, recv), strict=True)):
        return None
    both = [message for message in (send, recv) if message is not None]
    if operation.reduces and not all(message.summable for message in both):
        return None
    if both[0].dtype != both[-1].dtype:
        if not operation.root:
            return None
        raise TypeError(f"send type {both[0].dtype} differs from the receive type {both[-1].dtype}")
    if operation.name.startswith("Reduce_scatter"):
        return _reduce_scatter(operation, rank, size, both, given, group, min_nbytes)
    if len(both) == 2:
        _check_pair(operation, rank, both[0], both[1])
    return _uniform(operation, rank, size, send, recv, given)


def _bcast(operation: Operation, rank: int, given: Arguments) -> Parsed | None:
    message = parse(given.buffers[0])
    if message is None:
        return None
    sends = rank == given.root
    block = message.source(0) if sends else message.target(0)  # what stays as it is may be read-only
    sample = block if sends else None  # what others have there is about to be overwritten
    return _parsed(
        operation,
        message,
        message.nbytes,
        message,
        recv=[block],
        root=given.root,
        sample=sample,
        read_only_root=sends and message.is_read_only,
        shapes={0: message.shape(0)} if sends else {},
        places=_places((1, message)),
    )


def _uniform(
    operation: Operation, rank: int, size: int, send: Message | None, recv: Message | None, given: Arguments
) -> Parsed:
    """A call whose blocks are as many, and as large, as its buffers say."""
    of: Any = send if operation.root == "recv" else recv
    places = _places((operation.in_place ^ 1, of))
    if send is not recv:
        sends = send.sources() if send is not None else []
        recvs = recv.targets() if recv is not None else []
        places = _places((0, send), (1, recv))
    elif operation.send.many and operation.recv.many:  # Alltoall, whose blocks arrive where others wait
        sends, recvs, places = [block.copy() for block in of.sources()], of.targets(), None
    elif operation.in_place == 0:
        sends, recvs = [], of.targets()
    else:
        sends, recvs = of.sources(), []
    own = recvs[_own(operation.recv, rank)] if recvs and (not operation.root or operation.reduces) else None
    sample = sends[0] if sends else own
    return _parsed(
        operation,
        of,
        of.nbytes // size if operation.reduces else of.nbytes,
        recv,
        empty=not of.nbytes,
        send=sends,
        recv=recvs,
        root=given.root,
        sample=sample,
        places=places,
        shapes=_shapes(operation, rank, send, recv, len(sends)),
    )


def _reduce_scatter(
    operation: Operation,
    rank: int,
    size: int,
    both: Sequence[Message],
    given: Arguments,
    group: Group,
    min_nbytes: int,
) -> Parsed | None:
    send, recv = both[0], both[-1]
    sendbuf_in_place = in_place(given.buffers[0])
    if operation.send.many:
        blocks = send.sources()
    else:
        if not send.nbytes or send.nbytes < min_nbytes:  # before some ranks exchange counts and others do not
            return _parsed(operation, send, send.nbytes, empty=True)
        if given.recvcounts is None and sendbuf_in_place:
            return None
        counts = given.recvcounts
        counts = group.comm.allgather(recv.entries) if counts is None else [index(n) for n in _listed(counts)]
        if len(counts) != size or min(counts) < 0:
            return None
        blocks = _split(send, counts)
    if not sendbuf_in_place:
        apart(send, 0, recv, 0)
        _check_count(operation, blocks[rank].size, recv.counts[0])
    target = recv.target(0)[: blocks[rank].size]
    places = _places((int(sendbuf_in_place), send), (1, recv)) if operation.send.many else None
    sends, recvs = ([], [*blocks, target]) if sendbuf_in_place else (blocks, [target])
    return _parsed(
        operation,
        recv,
        max(b.nbytes for b in blocks),
        recv,
        send=sends,
        recv=recvs,
        sample=blocks[0],
        places=places,
    )


def _parsed(operation: Operation, of: Message, nbytes: int, *written: Message | None, **more: Any) -> Parsed:
    """A call of elements like those of a message."""
    more.setdefault("empty", not nbytes)
    messages = [message for message in written if message is not None]
    return Parsed(operation.name, of.dtype, nbytes, element=of.element, messages=messages, **more)


def _places(*sides: tuple[int, Message | None]) -> list[tuple[int, int]] | None:
    """Where all blocks of some arguments lie, by the numbers of these."""
    found = []
    for argument, message in sides:
        if message is None:
            continue
        for i in range(len(message.counts)):
            begin = message.begin_in_argument(i)
            if begin is None:
                return None
            found.append((argument, begin))
    return found


def _own(blocks: Blocks, rank: int) -> int:
    """Which block is this rank's own."""
    return rank if blocks.many else 0


def _check_pair(operation: Operation, rank: int, send: Message, recv: Message) -> None:
    """Compare the block that a rank sends to itself with the one that it receives."""
    if send is not recv:
        i, j = _own(operation.send, rank), _own(operation.recv, rank)
        _check_count(operation, send.counts[i], recv.counts[j])
        apart(send, i, recv, j)


def _check_count(operation: Operation, sendcount: int, recvcount: int) -> None:
    if sendcount != recvcount:
        raise ValueError(f"{operation.name}: sendcount {sendcount} != recvcount {recvcount}")


def _shapes(
    operation: Operation, rank: int, send: Message | None, recv: Message | None, n_sends: int
) -> dict[int, tuple[int, ...] | None]:
    """The shapes of blocks that this rank sends, and of those where it takes over their values."""
    if operation.reduces or send is None or (operation.root == "recv" and recv is not None):
        return {}
    own = _own(operation.recv, rank)
    if not n_sends:
        return {own: send.shape(own)}
    shapes = {i: send.shape(i) for i in range(n_sends)}
    if not operation.root:
        shapes[n_sends + own] = shapes[_own(operation.send, rank)]
    return shapes


def _listed(counts: Any) -> list[Any]:
    return [counts[i] for i in range(len(counts))]


def _split(send: Message, counts: Sequence[int]) -> list[Block]:
    """The blocks of Reduce_scatter, whose counts are those of the receive buffers in order of rank."""
    whole = send.source(0)
    per_entry = send.counts[0] // max(send.entries, 1)
    ends = np.cumsum([n * per_entry for n in counts]).tolist()
    if ends[-1] != whole.size:
        total = ends[-1] // per_entry
        raise ValueError(f"Reduce_scatter: recvcounts add up to {total} != sendcount {send.entries}")
    return [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]

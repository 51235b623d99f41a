"""The blocks of a buffer argument, one for each message between two ranks that these decide upon alone."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.devices import arrays
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.buffers import Message, in_place, on_gpu
from compcoll.mpi.collectives import Arguments, buffers_of
from compcoll.mpi.datatypes import entry_of
from compcoll.operations import Blocks, Operation

__all__ = ["CountedBlocks", "TypedBlocks", "sides_of", "significant_buffers"]


class CountedBlocks:
    """A buffer argument whose blocks are of one datatype; one block is the message with ``peer``."""

    def __init__(self, message: Message, peer: int | None = None):
        self._message, self._peer = message, peer
        counts = message.counts if peer is None else message.counts[:1]
        each = [n * message.dtype.itemsize for n in counts]
        self.nbytes: dict[int, int] = dict(enumerate(each)) if peer is None else {peer: each[0]}
        self.on_gpu = message.device is not None
        #: Unpacking to finish when the blocks are written.
        self.written = message

    def block(self, peer: int) -> tuple[Message | None, int]:
        """The message with a rank: a parsed argument and the number of its block."""
        return self._message, peer if self._peer is None else 0

    def without(self, peers: Any) -> list[Any]:
        """The argument in mpi4py's form, with counts of 0 for these ranks."""
        if self._peer is not None:
            return [np.empty(0, np.uint8), 0, MPI.BYTE]
        return self._message.masked([peer not in peers for peer in self.nbytes])


class TypedBlocks:
    """A buffer argument with a count, a displacement in bytes and a datatype for each rank.

    Attributes
    ----------
    nbytes : dict of int
        Bytes of each block's values; those of a type that consists of several basic ones count as well.

    Raises
    ------
    LeftToMPI
        Where mpi4py will find something wrong with it.
    """

    on_gpu, written = False, None

    def __init__(self, spec: Any, blocks: int):
        try:
            self._buffer, counts, displs, types = _unpacked(spec)
            self._memory = None if on_gpu(spec) else _memory_of(self._buffer)
            if self._memory is MPI.BOTTOM and (counts is None or displs is None):
                raise LeftToMPI
            self._counts = [1] * blocks if counts is None else [index(n) for n in counts]
            self._displs = [0] * blocks if displs is None else [index(n) for n in displs]
            self._types: list[MPI.Datatype] = list(types)
            if not len(self._counts) == len(self._displs) == len(self._types) == blocks:
                raise LeftToMPI
            pairs = list(zip(self._counts, self._types, strict=True))
            self._entries = [entry_of(datatype) if n > 0 else None for n, datatype in pairs]
            each = zip(self._counts, self._entries, strict=True)
            self.nbytes = dict(enumerate(n * e.piece[1].nbytes if e is not None else 0 for n, e in each))
        except (AttributeError, BufferError, TypeError, ValueError, MPI.Exception):
            raise LeftToMPI from None

    def elements(self, peer: int) -> tuple[int, str] | None:
        """Elements of a block and their type; None where no basic type is that of all its values."""
        entry = self._entries[peer]
        if entry is None:
            return 0, ""
        return None if entry.element is None else (self._counts[peer] * entry.n, str(entry.element))

    def block(self, peer: int) -> tuple[Message | None, int]:
        """As of `CountedBlocks`, for a block that is not empty and not a GPU's."""
        datatype, entry = self._types[peer], self._entries[peer]
        if entry is None or entry.element is None:
            return None, 0
        counts, displs = [self._counts[peer]], [self._displs[peer]]
        return Message(self._memory, datatype, entry, counts, displs, unit=1), 0

    def without(self, peers: Any) -> list[Any]:
        """As of `CountedBlocks`."""
        counts = [0 if peer in peers else n for peer, n in enumerate(self._counts)]
        return [self._buffer, counts, self._displs, self._types]


def sides_of(operation: Operation, rank: int, size: int, given: Arguments) -> tuple[Any, Any]:
    """The blocks that a rank sends and those that it receives, the same object where that is in place.

    Either is None where the rank exchanges nothing with others there, or its type is not accelerated.

    Raises
    ------
    LeftToMPI
        Where mpi4py will find something wrong with an argument.
    """
    if operation.root and not 0 <= given.root < size:
        raise LeftToMPI
    if operation.send is Blocks.TYPED:
        recv: Any = TypedBlocks(given.buffers[1], size)
        return (recv if in_place(given.buffers[0]) else TypedBlocks(given.buffers[0], size)), recv
    messages = buffers_of(operation, rank, size, given, strict=True)
    if messages[0] is messages[1] and not operation.root:
        both = None if messages[0] is None else CountedBlocks(messages[0])
        return both, both
    send, recv = (
        CountedBlocks(message, None if blocks.many else given.root)
        if message is not None and significant
        else None
        for message, blocks, significant in zip(
            messages,
            (operation.send, operation.recv),
            significant_buffers(operation, rank, given),
            strict=True,
        )
    )
    return send, recv


def significant_buffers(operation: Operation, rank: int, given: Arguments) -> tuple[bool, bool]:
    """Whether a rank exchanges blocks of its send and of its receive buffer with other ranks."""
    at_root = rank == given.root
    send, recv = (not operation.root or at_root == (operation.root == side) for side in ("send", "recv"))
    return send, recv


def _memory_of(buffer: Any) -> Any:
    """The bytes behind a buffer, or what stands for none."""
    if buffer is None or buffer is MPI.BOTTOM:
        return MPI.BOTTOM
    if arrays.is_torch(buffer):
        arrays.check_tensor(buffer)
    memory: Any = MPI.buffer(buffer)
    return np.frombuffer(memory, np.uint8) if memory.nbytes else np.empty(0, np.uint8)


def _unpacked(spec: Any) -> tuple[Any, ...]:
    """(buffer, counts, displacements, types); LeftToMPI for what mpi4py does not take either."""
    match len(spec):
        case 2:
            buffer, types = spec
            return buffer, None, None, types
        case 3:
            buffer, (counts, displs), types = spec
            return buffer, counts, displs, types
        case 4:
            return tuple(spec)
    raise LeftToMPI

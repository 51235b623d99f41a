"""Torch's collectives as calls of the engine or MPI: each function begins one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import Call, PreparedCall, Task, prepare, start
from compcoll.operations import OPERATIONS
from compcoll.policy.decision import Decision
from compcoll.torch.buffers import (
    BufferList,
    HostBuffer,
    RemainingBlocks,
    TensorBuffer,
    buffer_of,
    disjoint,
    element_of,
    overlap,
)
from compcoll.torch.core import Core, Prepared, mpi_arguments
from compcoll.torch.reductions import Reduction
from compcoll.torch.work import Operation

__all__ = [
    "Collective",
    "Part",
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "scatter",
]


class Collective(Operation):
    """A collective as torch calls it.

    Parameters
    ----------
    core : Core
    start : callable
        A function of this module.
    calls : sequence of tuple
        Its arguments behind the first, each for one call of MPI's.
    key : tuple or None
        All on which depends how it runs; None where that is not kept.
    """

    def __init__(self, core: Core, start: Callable[..., Part], calls: Sequence[tuple], key: Any, *rest: Any):
        super().__init__(*rest)
        self.start, self.calls, self._core, self._key = start, calls, core, key

    def begin(self) -> list[Task]:
        self._part = self.start(self._core, *self.calls[0])
        if self._key is not None and self.call is not None:
            self._part.keep(self._key, self.call)
        return self._part.tasks

    def go_on(self) -> list[Task]:
        self.events = self._part.finish()
        return []


class Part:
    """A collective of MPI's under way."""

    def __init__(self, tasks: list[Task]):
        self.tasks = tasks

    def finish(self) -> list[Any]:
        """Finish it when the tasks have ended; returns events that a wait for it includes."""
        return []

    def keep(self, key: tuple, call: str) -> None:
        """Have later operations with the same key begin as this one did, if they can."""


class BufferedCall(Part):
    """A collective with one decision of all ranks.

    Parameters
    ----------
    core : Core
    op : str
        MPI's name.
    like : torch.Tensor
        Whose type rules name.
    source, target : TensorBuffer or None
        Buffers that are sent and received; the same one in place.
    send, recv : list of array
        Blocks of these, as `compcoll.engine.call.Call` wants them.
    nbytes : int
        The largest message.
    how : Reduction or None
    root : int
    in_place : bool
        Whether the source is a part of the target already.
    """

    def __init__(
        self,
        core: Core,
        op: str,
        like: torch.Tensor,
        source: TensorBuffer | None,
        target: TensorBuffer | None,
        send: list[Any],
        recv: list[Any],
        nbytes: int,
        how: Reduction | None = None,
        root: int = 0,
        in_place: bool = False,
    ):
        blocks = [*send, *recv]
        self.core, self.how, self.in_place = core, how, in_place or source is target
        self.source, self.target = source, target
        empty = not any(block.size for block in blocks)
        self.call = Call(op, blocks[0].dtype, nbytes, empty, send, recv, root)
        buffers = [buffer for buffer in (source, target) if buffer is not None]
        self.order = core.kernels.order(*buffers)
        self.decision, self.nbytes = core.prepare(self.call, element_of(like.dtype), how)
        self.prepared: PreparedCall | None = None
        if self.decision.codec is None:
            task: Task = _engine.Request(self._by_mpi())
        else:
            self.prepared = prepare(core.group, self.call, self.decision)
            task = start(self.prepared, self.call)
            self.order.attach(task)
        super().__init__([task])

    def _by_mpi(self) -> MPI.Request:
        call = self.call
        sent: Any = None if self.source is None else self.source.host
        got: Any = None if self.target is None else self.target.host
        if self.in_place and (self.source is self.target or isinstance(self.target, HostBuffer)):
            sent = MPI.IN_PLACE  # of the target's own memory alone MPI may not have a part twice
        counts = [b.nbytes for b in call.recv] if self.how is None else [b.size for b in call.send]
        args = mpi_arguments(call.op, sent, got, self.how, call.root, counts)
        return getattr(self.core.comm, OPERATIONS[call.op].nonblocking)(*args)

    def finish(self) -> list[Any]:
        if self.target is not None:
            averages = self.how is not None and self.how.averages
            self.target.finish(self.order, self._average if averages else None)
        events = self.order.record()
        self.core.count(self.tasks[0], self.call.op, self.nbytes, self.decision)
        return events

    def _average(self, flat: torch.Tensor) -> None:
        assert self.how is not None
        self.how.after(flat, self.core.size)

    def keep(self, key: tuple, call: str) -> None:
        buffers = [buffer for buffer in (self.source, self.target) if buffer is not None]
        changes = self.how is not None and self.how.changes_input
        if self.call.empty or changes or not all(getattr(buffer, "is_direct", False) for buffer in buffers):
            return
        if self.prepared is not None:  # its blocks lie one after the other
            self.prepared.place(
                [
                    (side, end - block.nbytes)
                    for side, blocks in enumerate((self.call.send, self.call.recv))
                    for block, end in zip(blocks, accumulate(b.nbytes for b in blocks), strict=True)
                ]
            )
        self.core.keep(key, Prepared(self, call))


def broadcast(core: Core, tensor: torch.Tensor, root: int) -> Part:
    """The root's values arrive everywhere."""
    values = buffer_of(tensor, writes=True, reads=core.rank == root)
    array = values.array
    return BufferedCall(core, "Bcast", tensor, values, values, [], [array], array.nbytes, root=root)


def all_reduce(core: Core, tensor: torch.Tensor, how: Reduction) -> Part:
    """The reduction of all ranks' values takes their place."""
    if tensor.layout != torch.strided:
        return SparseSum(core, tensor, how)
    values = buffer_of(tensor, writes=True, dtype=how.dtype)
    values.apply(how.before)
    array = values.array
    return BufferedCall(
        core, "Allreduce", tensor, values, values, [], [array], array.nbytes // core.size, how
    )


class SparseSum(Part):
    """The sum of all ranks' sparse tensors (COO): they are gathered, and added up."""

    def __init__(self, core: Core, tensor: torch.Tensor, how: Reduction):
        if tensor.layout != torch.sparse_coo or how.name != "SUM":
            raise ValueError(
                f"{how.name} of tensors with the layout {tensor.layout}: there is the sum of sparse_coo"
            )
        own = tensor.detach().coalesce()
        counts = np.full(core.size, own._nnz())
        core.wait_for([_engine.Request(core.comm.Iallgather(MPI.IN_PLACE, counts))])
        dims, dense = own.sparse_dim(), own.shape[own.sparse_dim() :]
        self._tensor, self._shape = tensor, own.shape
        self._indices = [torch.empty((dims, n), dtype=torch.int64) for n in counts.tolist()]
        self._values = [torch.empty((n, *dense), dtype=own.dtype) for n in counts.tolist()]
        self._parts = [
            all_gather(core, self._indices, own.indices()),
            all_gather(core, self._values, own.values()),
        ]
        super().__init__([task for part in self._parts for task in part.tasks])

    def finish(self) -> list[Any]:
        events = [event for part in self._parts for event in part.finish()]
        with torch.inference_mode(False), torch.no_grad():
            parts = torch.cat(self._indices, 1), torch.cat(self._values)
            self._tensor.copy_(torch.sparse_coo_tensor(*parts, self._shape).coalesce())
        return events


def reduce(core: Core, tensor: torch.Tensor, how: Reduction, root: int) -> Part:
    """The reduction of all ranks' values takes the place of the root's."""
    at_root = core.rank == root
    values = buffer_of(tensor, writes=at_root, dtype=how.dtype, copies=how.changes_input and not at_root)
    values.apply(how.before)
    array, target = values.array, values if at_root else None
    send, recv = ([], [array]) if at_root else ([array], [])
    return BufferedCall(core, "Reduce", tensor, values, target, send, recv, array.nbytes, how, root)


def reduce_scatter_single(core: Core, out: torch.Tensor, tensor: torch.Tensor, how: Reduction) -> Part:
    """Block i of the reduction of all ranks' values arrives at rank i."""
    _check_sizes("reduce_scatter", tensor.numel(), out.numel() * core.size)
    copies = how.changes_input or overlap(tensor, [out])
    source, target = buffer_of(tensor, dtype=how.dtype, copies=copies), _target(out, how)
    source.apply(how.before)
    array = target.array
    blocks = _split(source.array, [array.size] * core.size)
    return BufferedCall(core, "Reduce_scatter_block", out, source, target, blocks, [array], array.nbytes, how)


def reduce_scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], how: Reduction) -> Part:
    """Tensor i of the reduction of all ranks' lists arrives at rank i; they may differ in size."""
    _check_list("reduce_scatter", core, tensors, out)
    _check_sizes("reduce_scatter", tensors[core.rank].numel(), out.numel())
    source = BufferList(tensors, how.dtype, copies=how.changes_input or overlap(out, tensors))
    source.apply(how.before)
    target, blocks = _target(out, how), source.blocks
    op = "Reduce_scatter_block" if len({block.size for block in blocks}) == 1 else "Reduce_scatter"
    largest = max(block.nbytes for block in blocks)
    return BufferedCall(core, op, out, source, target, blocks, [target.array], largest, how)


def all_gather_single(core: Core, out: torch.Tensor, tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere, one after the other."""
    _check_sizes("all_gather", out.numel(), tensor.numel() * core.size)
    _check_types(out, [tensor])
    target = buffer_of(out, writes=True, reads=False)
    blocks = _split(target.array, [target.array.size // core.size] * core.size)
    return _all_gather(core, target, blocks, tensor, [out])


def all_gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere as tensor i; they may differ in size."""
    _check_list("all_gather", core, outs, tensor)
    _check_sizes("all_gather", outs[core.rank].numel(), tensor.numel())
    target = BufferList(outs, tensor.dtype, writes=True, reads=False)
    return _all_gather(core, target, target.blocks, tensor, outs)


def _all_gather(
    core: Core, target: TensorBuffer, blocks: list[Any], tensor: torch.Tensor, outs: Sequence[torch.Tensor]
) -> Part:
    source, mine = buffer_of(tensor), blocks[core.rank]
    in_place = mine.size > 0 and _address(source.array) == _address(mine)
    if not in_place and overlap(tensor, outs):
        source = buffer_of(tensor, copies=True)
    op = "Allgather" if len({block.size for block in blocks}) == 1 else "Allgatherv"
    send, largest = [] if in_place else [source.array], max(block.nbytes for block in blocks)
    return BufferedCall(core, op, tensor, source, target, send, blocks, largest, in_place=in_place)


def gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Part:
    """Every rank's values arrive at the root, as tensor i of its list."""
    at_root = core.rank == root
    if at_root:
        _check_list("gather", core, outs, tensor)
        for out in outs:
            _check_sizes("gather", out.numel(), tensor.numel())
    source = buffer_of(tensor, copies=at_root and overlap(tensor, outs))
    target = BufferList(outs, tensor.dtype, writes=True, reads=False) if at_root else None
    recv, array = [] if target is None else target.blocks, source.array
    return BufferedCall(core, "Gather", tensor, source, target, [array], recv, array.nbytes, root=root)


def scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Part:
    """Tensor i of the root's list arrives at rank i."""
    at_root = core.rank == root
    if at_root:
        _check_list("scatter", core, tensors, out)
        for tensor in tensors:
            _check_sizes("scatter", tensor.numel(), out.numel())
    target = buffer_of(out, writes=True, reads=False)
    source = BufferList(tensors, out.dtype, copies=overlap(out, tensors)) if at_root else None
    send, array = [] if source is None else source.blocks, target.array
    return BufferedCall(core, "Scatter", out, source, target, send, [array], array.nbytes, root=root)


def all_to_all(core: Core, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Part:
    """Tensor i goes to rank i, and what it has for this rank arrives as tensor i."""
    _check_list("all_to_all", core, outs, outs[0])
    _check_list("all_to_all", core, tensors, outs[0])
    source = BufferList(tensors, outs[0].dtype, copies=not disjoint([*outs, *tensors]))
    target = BufferList(outs, outs[0].dtype, writes=True, reads=False)
    return UnevenCall(core, source.blocks, target.blocks, source, target, outs[0])


def all_to_all_single(
    core: Core, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Sequence[int], sizes: Sequence[int]
) -> Part:
    """Send slices of the first dimension to each rank, in these numbers or the same number to each."""
    _check_types(out, [tensor])
    theirs, ours = _rows(core, out, out_sizes), _rows(core, tensor, sizes)
    source = buffer_of(tensor, copies=overlap(tensor, [out]))
    target = buffer_of(out, writes=True, reads=False)
    send = _split(source.array, [n * _row(source.array.size, tensor) for n in ours])
    recv = _split(target.array, [n * _row(target.array.size, out) for n in theirs])
    if sizes or out_sizes:
        return UnevenCall(core, send, recv, source, target, out)
    _check_sizes("all_to_all_single", tensor.numel(), out.numel())
    return BufferedCall(core, "Alltoall", out, source, target, send, recv, recv[0].nbytes)


def _rows(core: Core, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """Slices of a tensor for each rank."""
    n = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if n % core.size:
            raise ValueError(f"all_to_all_single: {n} slices cannot be divided by {core.size} ranks")
        return [n // core.size] * core.size
    if len(sizes) != core.size or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(f"all_to_all_single: split sizes {list(sizes)} for {n} slices and {core.size} ranks")
    return list(sizes)


def _row(elements: int, tensor: torch.Tensor) -> int:
    return elements // max(tensor.shape[0] if tensor.dim() else 1, 1)


def barrier(core: Core) -> Part:
    """Wait until all ranks have come."""
    return Part([_engine.Request(core.comm.Ibarrier())])


class UnevenCall(Part):
    """Blocks of any sizes, of which each is decided on by its two ends alone: only they know its size."""

    def __init__(
        self,
        core: Core,
        send: list[Any],
        recv: list[Any],
        source: TensorBuffer,
        target: TensorBuffer,
        like: torch.Tensor,
    ):
        nothing, everyone = recv[0][:0], set(range(core.size))
        decided = _decide_blocks(core, send, recv, element_of(like.dtype))
        tags = core.group.next_tags()
        self._core, self._target, self._order = core, target, core.kernels.order(target, source)
        by_engine = [set().union(*(peers[side] for _, peers in decided)) for side in (0, 1)]
        sent = RemainingBlocks(source, send, everyone - by_engine[0], True)
        self._received = RemainingBlocks(target, recv, everyone - by_engine[1], False)
        super().__init__([_engine.Request(core.comm.Ialltoallv(sent.spec, self._received.spec))])
        largest = max((block.nbytes for block in send), default=0)
        left = Decision(None, "mpi", 0, "below min_nbytes, or as the policy says")
        self._counted = [(largest, left)]
        for decision, (outgoing, incoming) in decided:
            nbytes = max(block.nbytes for block in (*send, *recv))
            call = Call(
                "Alltoallv",
                recv[0].dtype,
                nbytes,
                False,
                [block if peer in outgoing else nothing for peer, block in enumerate(send)],
                [block if peer in incoming else nothing for peer, block in enumerate(recv)],
            )
            task = start(prepare(core.group, call, decision), call, tags)
            self._order.attach(task)
            self.tasks.append(task)
            self._counted.append((nbytes, decision))

    def finish(self) -> list[Any]:
        self._received.finish(self._order)
        self._target.finish(self._order)
        events = self._order.record()
        for task, (nbytes, decision) in zip(self.tasks, self._counted, strict=True):
            self._core.count(task, "Alltoallv", nbytes, decision)
        return events


def _decide_blocks(
    core: Core, send: list[Any], recv: list[Any], element: np.dtype
) -> list[tuple[Decision, tuple[set[int], set[int]]]]:
    """The decisions that compress, with the ranks that blocks go to and come from."""
    found: dict[str, tuple[Decision, tuple[set[int], set[int]]]] = {}
    for side, blocks in enumerate((send, recv)):
        for peer, block in enumerate(blocks):
            if peer != core.rank and block.nbytes:
                decision = core.decide("Alltoallv", block.dtype, block.nbytes, element)
                if decision.codec is not None:
                    found.setdefault(repr(decision), (decision, (set(), set())))[1][side].add(peer)
    decided = [found[key] for key in sorted(found)]
    if decided and send[core.rank].nbytes == recv[core.rank].nbytes:  # a copy inside this rank
        for peers in decided[0][1]:
            peers.add(core.rank)
    return decided


# -- helpers


def _target(out: torch.Tensor, how: Reduction) -> Any:
    return buffer_of(out, writes=True, dtype=how.dtype, reads=False)


def _split(array: Any, counts: Sequence[int]) -> list[Any]:
    """Blocks of an array of the host or a GPU."""
    ends = [0, *accumulate(counts)]
    return [array[first:end] for first, end in pairwise(ends)]


def _address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.address


def _check_list(op: str, core: Core, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    n = len(tensors)
    if n != core.size:
        raise ValueError(f"{op} takes a list of {core.size} tensors, one for each rank, and this one has {n}")
    _check_types(like, tensors)


def _check_sizes(op: str, n: int, expected: int) -> None:
    if n != expected:
        raise ValueError(f"{op}: {n} elements, and the sizes of the other tensors ask for {expected}")


def _check_types(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise ValueError(
                f"tensors of one operation are of one type, and these of {tensor.dtype}, {other.dtype}"
            )

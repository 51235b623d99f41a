"""Torch's collectives as calls of the engine or MPI: each begins one, and returns it with its completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import Call
from compcoll.engine.decision import Decision
from compcoll.torch.buffers import (
    BufferList,
    HostBuffer,
    RemainingBlocks,
    TensorBuffer,
    buffer_of,
    disjoint,
    element_of,
    overlap,
)  # fmt: skip
from compcoll.torch.core import Core, Part
from compcoll.torch.reductions import Reduction

__all__ = [
    "all_gather", "all_gather_single", "all_reduce", "all_reduce_sparse", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_single", "scatter",
]  # fmt: skip


def broadcast(core: Core, tensor: torch.Tensor, root: int) -> Part:
    """The root's values arrive everywhere."""
    sends = core.rank == root
    values = buffer_of(tensor, writes=True, reads=sends)
    call = _call("Bcast", values.array, values.array.nbytes, recv=[values.array], root=root)
    return _begin(core, call, tensor, lambda: core.comm.Ibcast(_bytes(values), root), values)


def all_reduce(core: Core, tensor: torch.Tensor, how: Reduction) -> Part:
    """The reduction of all ranks' values takes their place."""
    values = buffer_of(tensor, writes=True, dtype=how.dtype)
    values.apply(how.before)
    call = _call("Allreduce", values.array, values.array.nbytes // core.size, recv=[values.array])

    def by_mpi() -> MPI.Request:
        return core.comm.Iallreduce(MPI.IN_PLACE, *_reduced(values, how))

    return _begin(core, call, tensor, by_mpi, values, how=how)


def all_reduce_sparse(core: Core, tensor: torch.Tensor, op: Any) -> Part:
    """The sum of all ranks' sparse tensors (COO) takes the place of each: they are gathered, and added up."""
    kind = getattr(op, "op", op)
    if tensor.layout != torch.sparse_coo or kind != dist.ReduceOp.SUM:
        raise ValueError(
            f"{kind.name} of tensors with the layout {tensor.layout}: there is the sum of sparse_coo"
        )
    own = tensor.detach().coalesce()
    counts = np.full(core.size, own._nnz())
    core.wait_for([_engine.Request(core.comm.Iallgather(MPI.IN_PLACE, counts))])
    dims, dense = own.sparse_dim(), own.shape[own.sparse_dim() :]
    indices = [torch.empty((dims, n), dtype=torch.int64) for n in counts.tolist()]
    values = [torch.empty((n, *dense), dtype=own.dtype) for n in counts.tolist()]
    parts = [all_gather(core, indices, own.indices()), all_gather(core, values, own.values())]

    def finish() -> list[Any]:
        events = [event for part in parts for event in part.finish()]
        with torch.inference_mode(False), torch.no_grad():
            total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), own.shape)
            tensor.copy_(total.coalesce())
        return events

    return Part([task for part in parts for task in part.tasks], finish)


def reduce(core: Core, tensor: torch.Tensor, how: Reduction, root: int) -> Part:
    """The reduction of all ranks' values takes the place of the root's."""
    at_root = core.rank == root
    values = buffer_of(tensor, writes=at_root, dtype=how.dtype, copies=how.changes_input and not at_root)
    values.apply(how.before)
    array = values.array
    call = _call(
        "Reduce", array, array.nbytes, send=[] if at_root else [array], recv=[array] if at_root else [],
        root=root,
    )  # fmt: skip

    def by_mpi() -> MPI.Request:
        spec, op = _reduced(values, how)
        return core.comm.Ireduce(MPI.IN_PLACE if at_root else spec, spec if at_root else None, op, root)

    return _begin(core, call, tensor, by_mpi, values, how=how if at_root else None, summed=how)


def reduce_scatter_single(core: Core, out: torch.Tensor, tensor: torch.Tensor, how: Reduction) -> Part:
    """Block i of the reduction of all ranks' values arrives at rank i."""
    _check_sizes("reduce_scatter", tensor.numel(), out.numel() * core.size)
    copies = how.changes_input or overlap(tensor, [out])
    source, target = buffer_of(tensor, dtype=how.dtype, copies=copies), _target(out, how)
    source.apply(how.before)
    blocks = _split(source.array, [target.array.size] * core.size)
    call = _call("Reduce_scatter_block", target.array, target.array.nbytes, send=blocks, recv=[target.array])

    def by_mpi() -> MPI.Request:
        spec, op = _reduced(source, how)
        return core.comm.Ireduce_scatter_block(spec, _reduced(target, how)[0], op)

    return _begin(core, call, out, by_mpi, target, source, how=how)


def reduce_scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], how: Reduction) -> Part:
    """Tensor i of the reduction of all ranks' lists arrives at rank i; they may differ in size."""
    _check_list("reduce_scatter", core, tensors, out)
    _check_sizes("reduce_scatter", tensors[core.rank].numel(), out.numel())
    source = BufferList(tensors, how.dtype, copies=how.changes_input or overlap(out, tensors))
    source.apply(how.before)
    target, blocks = _target(out, how), source.blocks
    even = len({block.size for block in blocks}) == 1
    name = "Reduce_scatter_block" if even else "Reduce_scatter"
    call = _call(name, target.array, max(b.nbytes for b in blocks), send=blocks, recv=[target.array])
    call.empty = not any(block.size for block in blocks)

    def by_mpi() -> MPI.Request:
        (spec, op), into = _reduced(source, how), _reduced(target, how)[0]
        if even:
            return core.comm.Ireduce_scatter_block(spec, into, op)
        return core.comm.Ireduce_scatter(spec, into, [b.size for b in blocks], op)

    return _begin(core, call, out, by_mpi, target, source, how=how)


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
) -> Part:  # fmt: skip
    source, mine = buffer_of(tensor), blocks[core.rank]
    in_place = mine.size > 0 and _address(source.array) == _address(mine)
    if not in_place and overlap(tensor, outs):
        source = buffer_of(tensor, copies=True)
    even = len({block.size for block in blocks}) == 1
    call = _call(
        "Allgather" if even else "Allgatherv", mine, max(b.nbytes for b in blocks),
        send=[] if in_place else [source.array], recv=blocks,
    )  # fmt: skip
    call.empty = not any(block.size for block in blocks)

    def by_mpi() -> MPI.Request:
        # Of the target's own memory alone MPI may not have a part twice.
        sent = MPI.IN_PLACE if in_place and isinstance(target, HostBuffer) else _bytes(source)
        if even:
            return core.comm.Iallgather(sent, _bytes(target))
        return core.comm.Iallgatherv(sent, [target.host.view(np.uint8), [b.nbytes for b in blocks], MPI.BYTE])

    return _begin(core, call, tensor, by_mpi, target, source)


def gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Part:
    """Every rank's values arrive at the root, as tensor i of its list."""
    at_root = core.rank == root
    if at_root:
        _check_list("gather", core, outs, tensor)
        for out in outs:
            _check_sizes("gather", out.numel(), tensor.numel())
    source = buffer_of(tensor, copies=at_root and overlap(tensor, outs))
    target = BufferList(outs, tensor.dtype, writes=True, reads=False) if at_root else None
    call = _call(
        "Gather", source.array, source.array.nbytes, send=[source.array],
        recv=target.blocks if target is not None else [], root=root,
    )  # fmt: skip

    def by_mpi() -> MPI.Request:
        return core.comm.Igather(_bytes(source), _bytes(target) if target is not None else None, root)

    return _begin(core, call, tensor, by_mpi, target, source)


def scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Part:
    """Tensor i of the root's list arrives at rank i."""
    at_root = core.rank == root
    if at_root:
        _check_list("scatter", core, tensors, out)
        for tensor in tensors:
            _check_sizes("scatter", tensor.numel(), out.numel())
    target = buffer_of(out, writes=True, reads=False)
    source = BufferList(tensors, out.dtype, copies=overlap(out, tensors)) if at_root else None
    blocks = source.blocks if source is not None else []
    call = _call("Scatter", target.array, target.array.nbytes, send=blocks, recv=[target.array], root=root)

    def by_mpi() -> MPI.Request:
        return core.comm.Iscatter(_bytes(source) if source is not None else None, _bytes(target), root)

    return _begin(core, call, out, by_mpi, target, *([] if source is None else [source]))


def all_to_all(core: Core, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Part:
    """Tensor i goes to rank i, and what it has for this rank arrives as tensor i."""
    _check_list("all_to_all", core, outs, outs[0])
    _check_list("all_to_all", core, tensors, outs[0])
    source = BufferList(tensors, outs[0].dtype, copies=not disjoint([*outs, *tensors]))
    target = BufferList(outs, outs[0].dtype, writes=True, reads=False)
    return _uneven(core, source.blocks, target.blocks, source, target, outs[0])


def all_to_all_single(
    core: Core, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Sequence[int], sizes: Sequence[int]
) -> Part:  # fmt: skip
    """Send slices of the first dimension to each rank, in these numbers or the same number to each."""
    _check_types(out, [tensor])
    theirs, ours = _rows(core, out, out_sizes), _rows(core, tensor, sizes)
    source = buffer_of(tensor, copies=overlap(tensor, [out]))
    target = buffer_of(out, writes=True, reads=False)
    send = _split(source.array, [n * _row(source.array.size, tensor) for n in ours])
    recv = _split(target.array, [n * _row(target.array.size, out) for n in theirs])
    if sizes or out_sizes:
        return _uneven(core, send, recv, source, target, out)
    _check_sizes("all_to_all_single", tensor.numel(), out.numel())
    call = _call("Alltoall", recv[0], recv[0].nbytes, send=send, recv=recv)
    return _begin(
        core, call, out, lambda: core.comm.Ialltoall(_bytes(source), _bytes(target)), target, source
    )


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
    return Part([_engine.Request(core.comm.Ibarrier())], list)


def _uneven(
    core: Core, send: list[Any], recv: list[Any], source: TensorBuffer, target: TensorBuffer,
    like: torch.Tensor,
) -> Part:  # fmt: skip
    """Blocks of any sizes, of which each is decided on by its two ends alone: only they know its size."""
    nothing, everyone = recv[0][:0], set(range(core.size))
    decided = _decide_blocks(core, send, recv, element_of(like.dtype))
    tags, order = core.group.next_tags(), core.kernels.order(target, source)
    by_engine = [set().union(*(peers[side] for _, peers in decided)) for side in (0, 1)]
    sent = RemainingBlocks(source, send, everyone - by_engine[0], True)
    received = RemainingBlocks(target, recv, everyone - by_engine[1], False)
    request = core.comm.Ialltoallv(sent.spec, received.spec)
    largest = max((block.nbytes for block in send), default=0)
    begun = [core.mpi_task("Alltoallv", request, largest, "below min_nbytes, or as the policy says")]
    for decision, (outgoing, incoming) in decided:
        call = Call(
            "Alltoallv", recv[0].dtype, max(block.nbytes for block in (*send, *recv)), False,
            [block if peer in outgoing else nothing for peer, block in enumerate(send)],
            [block if peer in incoming else nothing for peer, block in enumerate(recv)],
        )  # fmt: skip
        begun.append(core.begin_decided(call, decision, order, call.nbytes, tags))

    def finish() -> list[Any]:
        received.finish(order)
        target.finish(order)
        events = order.record()
        for _, count in begun:
            count()
        return events

    return Part([task for task, _ in begun], finish)


def _decide_blocks(
    core: Core, send: list[Any], recv: list[Any], element: np.dtype
) -> list[tuple[Decision, tuple[set[int], set[int]]]]:  # fmt: skip
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


def _call(op: str, like: Any, nbytes: int, **more: Any) -> Call:
    return Call(op, like.dtype, nbytes, not like.size, **more)


def _begin(
    core: Core, call: Call, tensor: torch.Tensor, by_mpi: Callable[[], MPI.Request],
    target: TensorBuffer | None, *sources: TensorBuffer, how: Reduction | None = None,
    summed: Reduction | None = None,
) -> Part:  # fmt: skip
    """Start a call that writes its result to ``target``."""
    reduced = summed or how
    order = core.kernels.order(*sources, *([] if target is None else [target]))
    task, count = core.begin(
        call, element_of(tensor.dtype), by_mpi, order,
        native=reduced is None or reduced.native is not None, compressible=reduced is None or reduced.sums,
    )  # fmt: skip
    after = partial(how.after, size=core.size) if how is not None and how.averages else None

    def finish() -> list[Any]:
        if target is not None:
            target.finish(order, after)
        events = order.record()
        count()
        return events

    return Part([task], finish)


def _target(out: torch.Tensor, how: Reduction) -> Any:
    return buffer_of(out, writes=True, dtype=how.dtype, reads=False)


def _split(array: Any, counts: Sequence[int]) -> list[Any]:
    """Blocks of an array of the host or a GPU."""
    ends = [0, *accumulate(counts)]
    return [array[first:end] for first, end in pairwise(ends)]


def _address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.address


def _bytes(buffer: TensorBuffer) -> list:
    return [buffer.host.view(np.uint8), MPI.BYTE]


def _reduced(buffer: TensorBuffer, how: Reduction) -> tuple[list, MPI.Op]:
    """Values and an operation as MPI takes them; for types without one, which one rank alone gives to MPI."""
    array = buffer.host
    if how.native is None:
        return [array.view(np.uint8), MPI.BYTE], MPI.BOR
    return [array, MPI._typedict[array.dtype.char]], how.native


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

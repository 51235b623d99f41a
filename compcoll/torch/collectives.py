"""Torch's collectives and messages as calls of MPI: each function makes one, and starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mpi4py import MPI

from compcoll.engine.group import largest_tag
from compcoll.torch.operation import Part
from compcoll.torch.reductions import Reduction, datatype_of
from compcoll.torch.tensors import Blocks, Buffer, disjoint, overlap

__all__ = [
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "scatter",
    "send",
]


def _call(
    op: str,
    nbytes: int,
    start: Callable[[Any], MPI.Request],
    target: Buffer | Blocks | None = None,
    how: Reduction | None = None,
    size: int = 1,
) -> Part:
    """A call that writes a target, whose sums may be divided."""
    divide = None if how is None else how.divide(size)
    if target is None or (target.is_direct and divide is None):
        return Part(op, nbytes, start)
    return Part(op, nbytes, start, lambda status: target.finish(divide))


def broadcast(core: Any, tensor: torch.Tensor, root: int) -> Part:
    """The root's values arrive everywhere."""
    values = Buffer(tensor, writes=True, reads=core.rank == root)
    return _call("Bcast", tensor.nbytes, lambda comm: comm.Ibcast(values.spec(), root), values)


def all_reduce(core: Any, tensor: torch.Tensor, how: Reduction) -> Part:
    """The reduction of all ranks' values takes their place."""
    values = Buffer(tensor, writes=True, dtype=how.dtype)
    if how.changes_input:
        values.change(how.before)
    return _call(
        "Allreduce",
        values.nbytes,
        lambda comm: comm.Iallreduce(MPI.IN_PLACE, values.spec(), how.op),
        values,
        how,
        core.size,
    )


def reduce(core: Any, tensor: torch.Tensor, how: Reduction, root: int) -> Part:
    """The reduction of all ranks' values takes the place of the root's."""
    at_root = core.rank == root
    values = Buffer(tensor, writes=at_root, dtype=how.dtype, copies=how.changes_input and not at_root)
    if how.changes_input:
        values.change(how.before)

    def start(comm: Any) -> MPI.Request:
        sides = (MPI.IN_PLACE, values.spec()) if at_root else (values.spec(), None)
        return comm.Ireduce(*sides, how.op, root)

    return _call("Reduce", values.nbytes, start, values if at_root else None, how, core.size)


def reduce_scatter_single(core: Any, out: torch.Tensor, tensor: torch.Tensor, how: Reduction) -> Part:
    """Block i of the reduction of all ranks' values arrives at rank i."""
    _check_sizes("reduce_scatter", tensor.numel(), out.numel() * core.size)
    source = Buffer(tensor, dtype=how.dtype, copies=how.changes_input or overlap(tensor, [out]))
    target = Buffer(out, writes=True, reads=False, dtype=how.dtype)
    if how.changes_input:
        source.change(how.before)
    return _call(
        "Reduce_scatter_block",
        source.nbytes,
        lambda comm: comm.Ireduce_scatter_block(source.spec(), target.spec(), how.op),
        target,
        how,
        core.size,
    )


def reduce_scatter(core: Any, out: torch.Tensor, tensors: Sequence[torch.Tensor], how: Reduction) -> Part:
    """Tensor i of the reduction of all ranks' lists arrives at rank i; they may differ in size."""
    _check_list("reduce_scatter", core, tensors, out)
    _check_sizes("reduce_scatter", tensors[core.rank].numel(), out.numel())
    source = Blocks(tensors, dtype=how.dtype, joined=True)  # as MPI has no displacements for it
    target = Buffer(out, writes=True, reads=False, dtype=how.dtype)
    if how.changes_input:
        source.change(how.before)
    counts = source.counts

    def start(comm: Any) -> MPI.Request:
        memory, _, datatype = source.spec()
        sent = [memory, datatype]
        if len(set(counts)) == 1:
            return comm.Ireduce_scatter_block(sent, target.spec(), how.op)
        return comm.Ireduce_scatter(sent, target.spec(), counts, how.op)

    op = "Reduce_scatter_block" if len(set(counts)) == 1 else "Reduce_scatter"
    return _call(op, source.nbytes, start, target, how, core.size)


def all_gather_single(core: Any, out: torch.Tensor, tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere, one after the other."""
    _check_sizes("all_gather", out.numel(), tensor.numel() * core.size)
    _check_types(out, [tensor])
    source, target = Buffer(tensor), Buffer(out, writes=True, reads=False)
    own = target.values.data_ptr() + core.rank * tensor.nbytes
    in_place = source.is_direct and tensor.numel() > 0 and source.values.data_ptr() == own
    if not in_place and overlap(tensor, [out]):
        source = Buffer(tensor, copies=True)

    def start(comm: Any) -> MPI.Request:
        return comm.Iallgather(MPI.IN_PLACE if in_place else source.spec(), target.spec())

    return _call("Allgather", tensor.nbytes, start, target)


def all_gather(core: Any, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere as tensor i; they may differ in size."""
    _check_list("all_gather", core, outs, tensor)
    _check_sizes("all_gather", outs[core.rank].numel(), tensor.numel())
    source = Buffer(tensor, copies=overlap(tensor, outs))
    target = Blocks(outs, writes=True, reads=False)
    largest = max(one.nbytes for one in outs)
    return _call("Allgatherv", largest, lambda comm: comm.Iallgatherv(source.spec(), target.spec()), target)


def gather(core: Any, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Part:
    """Every rank's values arrive at the root, as tensor i of its list."""
    if core.rank != root:
        source = Buffer(tensor)
        return _call("Gatherv", tensor.nbytes, lambda comm: comm.Igatherv(source.spec(), None, root))
    _check_list("gather", core, outs, tensor)
    for out in outs:
        _check_sizes("gather", out.numel(), tensor.numel())
    source, target = Buffer(tensor, copies=overlap(tensor, outs)), Blocks(outs, writes=True, reads=False)
    return _call(
        "Gatherv", tensor.nbytes, lambda comm: comm.Igatherv(source.spec(), target.spec(), root), target
    )


def scatter(core: Any, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Part:
    """Tensor i of the root's list arrives at rank i."""
    target = Buffer(out, writes=True, reads=False)
    if core.rank != root:
        return _call("Scatterv", out.nbytes, lambda comm: comm.Iscatterv(None, target.spec(), root), target)
    _check_list("scatter", core, tensors, out)
    for tensor in tensors:
        _check_sizes("scatter", tensor.numel(), out.numel())
    source = Blocks(tensors, copies=overlap(out, tensors))
    return _call(
        "Scatterv", out.nbytes, lambda comm: comm.Iscatterv(source.spec(), target.spec(), root), target
    )


def all_to_all(core: Any, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Part:
    """Tensor i goes to rank i, and what it has for this rank arrives as tensor i."""
    _check_list("all_to_all", core, outs, outs[0])
    _check_list("all_to_all", core, tensors, outs[0])
    _check_sizes("all_to_all", tensors[core.rank].numel(), outs[core.rank].numel())
    source = Blocks(tensors, copies=not disjoint([*outs, *tensors]))
    target = Blocks(outs, writes=True, reads=False)
    largest = max(one.nbytes for one in tensors)
    return _call("Alltoallv", largest, lambda comm: comm.Ialltoallv(source.spec(), target.spec()), target)


def all_to_all_single(
    core: Any, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Sequence[int], sizes: Sequence[int]
) -> Part:
    """Send slices of the first dimension to each rank, in these numbers or the same number to each."""
    _check_types(out, [tensor])
    theirs, ours = _rows(core, out, out_sizes), _rows(core, tensor, sizes)
    source = Buffer(tensor, copies=overlap(tensor, [out]))
    target = Buffer(out, writes=True, reads=False)
    if not (sizes or out_sizes):
        _check_sizes("all_to_all_single", tensor.numel(), out.numel())
        nbytes = tensor.nbytes // core.size
        return _call("Alltoall", nbytes, lambda comm: comm.Ialltoall(source.spec(), target.spec()), target)

    def blocks(buffer: Buffer, rows: Sequence[int], like: torch.Tensor) -> list[Any]:
        memory, datatype = buffer.spec()
        row = like.numel() // max(like.shape[0] if like.dim() else 1, 1) * datatype_of(like.dtype)[1]
        return [memory, [n * row for n in rows], datatype]

    sent, received = blocks(source, ours, tensor), blocks(target, theirs, out)
    if ours[core.rank] * max(tensor.numel(), 1) and sent[1][core.rank] != received[1][core.rank]:
        _check_sizes("all_to_all_single", sent[1][core.rank], received[1][core.rank])
    largest = max(sent[1]) * tensor.element_size()
    return _call("Alltoallv", largest, lambda comm: comm.Ialltoallv(sent, received), target)


def _rows(core: Any, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """Slices of a tensor for each rank."""
    n = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if n % core.size:
            raise ValueError(f"all_to_all_single: {n} slices cannot be divided by {core.size} ranks")
        return [n // core.size] * core.size
    if len(sizes) != core.size or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(f"all_to_all_single: split sizes {list(sizes)} for {n} slices and {core.size} ranks")
    return list(sizes)


def barrier(core: Any) -> Part:
    """Wait until all ranks have come."""
    return _call("Barrier", 0, lambda comm: comm.Ibarrier())


# -- messages


def send(core: Any, tensor: torch.Tensor, peer: int, tag: int) -> Part:
    """Values go to another rank."""
    _check_peer(core, peer, tag)
    source = Buffer(tensor)
    return _call("Send", tensor.nbytes, lambda comm: comm.Isend(source.spec(), peer, tag))


def recv(core: Any, tensor: torch.Tensor, peer: int | None, tag: int, sources: list[int]) -> Part:
    """Values come from another rank, whichever it is where none is named: ``sources`` tells."""
    _check_peer(core, peer or 0, tag)
    target, source = Buffer(tensor, writes=True, reads=False), MPI.ANY_SOURCE if peer is None else peer

    def finish(status: MPI.Status) -> None:
        sources.append(status.source)
        n = status.Get_count(MPI.BYTE)
        if n != target.nbytes:
            raise ValueError(
                f"a message of {n} bytes came from rank {status.source} for a tensor of {target.nbytes}"
            )
        if not target.is_direct:
            target.finish()

    return Part("Recv", tensor.nbytes, lambda comm: comm.Irecv(target.spec(), source, tag), finish)


# -- helpers


def _check_peer(core: Any, peer: int, tag: int) -> None:
    if not 0 <= peer < core.size:
        raise ValueError(f"rank {peer} is not from 0 to {core.size - 1}")
    if not 0 <= tag <= largest_tag():
        raise ValueError(f"tag {tag} is not from 0 to {largest_tag()}, MPI's largest")


def _check_list(op: str, core: Any, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
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

"""Torch's collectives and messages as calls of MPI: each function makes an `MpiCall`, and starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from mpi4py import MPI

from compcoll.engine.group import largest_tag
from compcoll.torch.reductions import Reduction, datatype_of
from compcoll.torch.tensors import Blocks, Buffer, disjoint, overlap

__all__ = [
    "MpiCall",
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


class MpiCall(NamedTuple):
    """A nonblocking call of MPI that an operation makes.

    Attributes
    ----------
    name : str
        MPI's name of the blocking form.
    arguments : tuple
        Arguments of mpi4py's method.
    nbytes : int
        Bytes that reports count.
    buffers : tuple
        Memory of the arguments, kept until the operation ends.
    finish : callable, optional
        ``finish(status)`` is called after completion, in any thread.
    """

    name: str
    arguments: tuple
    nbytes: int
    buffers: tuple = ()
    finish: Callable[[MPI.Status], None] | None = None

    def start(self, comm: MPI.Intracomm) -> MPI.Request:
        """Start the call; its request."""
        return getattr(comm, "I" + self.name.lower())(*self.arguments)


def _write_outputs(
    target: Buffer | Blocks, how: Reduction | None = None, size: int = 1
) -> Callable[[MPI.Status], None] | None:
    """Divide sums and copy them to the tensors, after the call; None if there is nothing to do."""
    divide = None if how is None else how.divide(size)
    if target.is_direct and divide is None:
        return None
    return lambda status: target.finish(divide)


def broadcast(group: Any, tensor: torch.Tensor, root: int) -> MpiCall:
    """Send the root's values to all ranks."""
    values = Buffer(tensor, writes=True, reads=group.rank == root)
    return MpiCall("Bcast", (values.spec(), root), tensor.nbytes, (values,), _write_outputs(values))


def all_reduce(group: Any, tensor: torch.Tensor, how: Reduction) -> MpiCall:
    """Reduce all ranks' values in place."""
    values = Buffer(tensor, writes=True, dtype=how.dtype)
    if how.changes_input:
        values.change(how.before)
    arguments, finish = (MPI.IN_PLACE, values.spec(), how.op), _write_outputs(values, how, group.size)
    return MpiCall("Allreduce", arguments, values.nbytes, (values,), finish)


def reduce(group: Any, tensor: torch.Tensor, how: Reduction, root: int) -> MpiCall:
    """Reduce all ranks' values, in place at the root."""
    at_root = group.rank == root
    values = Buffer(tensor, writes=at_root, dtype=how.dtype, copies=how.changes_input and not at_root)
    if how.changes_input:
        values.change(how.before)
    sides = (MPI.IN_PLACE, values.spec()) if at_root else (values.spec(), None)
    finish = _write_outputs(values, how, group.size) if at_root else None
    return MpiCall("Reduce", (*sides, how.op, root), values.nbytes, (values,), finish)


def reduce_scatter_single(group: Any, out: torch.Tensor, tensor: torch.Tensor, how: Reduction) -> MpiCall:
    """Reduce all ranks' values, and send block i to rank i."""
    _check_sizes("reduce_scatter", tensor.numel(), out.numel() * group.size)
    source = Buffer(tensor, dtype=how.dtype, copies=how.changes_input or overlap(tensor, [out]))
    target = Buffer(out, writes=True, reads=False, dtype=how.dtype)
    if how.changes_input:
        source.change(how.before)
    arguments, finish = (source.spec(), target.spec(), how.op), _write_outputs(target, how, group.size)
    return MpiCall("Reduce_scatter_block", arguments, source.nbytes, (source, target), finish)


def reduce_scatter(group: Any, out: torch.Tensor, tensors: Sequence[torch.Tensor], how: Reduction) -> MpiCall:
    """Reduce all ranks' lists, and send tensor i to rank i; the tensors may differ in size."""
    _check_list("reduce_scatter", group, tensors, out)
    _check_sizes("reduce_scatter", tensors[group.rank].numel(), out.numel())
    source = Blocks(tensors, dtype=how.dtype, joined=True)  # MPI takes no displacements here
    target = Buffer(out, writes=True, reads=False, dtype=how.dtype)
    if how.changes_input:
        source.change(how.before)
    memory, _, datatype = source.spec()
    buffers, finish = (source, target), _write_outputs(target, how, group.size)
    alike = len(set(source.counts)) == 1
    counts = () if alike else (source.counts,)
    arguments = [memory, datatype], target.spec(), *counts, how.op
    name = "Reduce_scatter_block" if alike else "Reduce_scatter"
    return MpiCall(name, arguments, source.nbytes, buffers, finish)


def all_gather_single(group: Any, out: torch.Tensor, tensor: torch.Tensor) -> MpiCall:
    """Gather all ranks' values on every rank, one after the other."""
    _check_sizes("all_gather", out.numel(), tensor.numel() * group.size)
    _check_types(out, [tensor])
    source, target = Buffer(tensor), Buffer(out, writes=True, reads=False)
    own = target.values.data_ptr() + group.rank * tensor.nbytes
    in_place = source.is_direct and tensor.numel() > 0 and source.values.data_ptr() == own
    if not in_place and overlap(tensor, [out]):
        source = Buffer(tensor, copies=True)
    arguments = MPI.IN_PLACE if in_place else source.spec(), target.spec()
    return MpiCall("Allgather", arguments, tensor.nbytes, (source, target), _write_outputs(target))


def all_gather(group: Any, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> MpiCall:
    """Gather rank i's values on every rank as tensor i; the tensors may differ in size."""
    _check_list("all_gather", group, outs, tensor)
    _check_sizes("all_gather", outs[group.rank].numel(), tensor.numel())
    source = Buffer(tensor, copies=overlap(tensor, outs))
    target = Blocks(outs, writes=True, reads=False)
    largest = max(one.nbytes for one in outs)
    arguments = source.spec(), target.spec()
    return MpiCall("Allgatherv", arguments, largest, (source, target), _write_outputs(target))


def gather(group: Any, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> MpiCall:
    """Gather rank i's values at the root as tensor i."""
    if group.rank != root:
        source = Buffer(tensor)
        return MpiCall("Gatherv", (source.spec(), None, root), tensor.nbytes, (source,))
    _check_list("gather", group, outs, tensor)
    for out in outs:
        _check_sizes("gather", out.numel(), tensor.numel())
    source, target = Buffer(tensor, copies=overlap(tensor, outs)), Blocks(outs, writes=True, reads=False)
    arguments = source.spec(), target.spec(), root
    return MpiCall("Gatherv", arguments, tensor.nbytes, (source, target), _write_outputs(target))


def scatter(group: Any, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> MpiCall:
    """Send tensor i of the root's list to rank i."""
    target = Buffer(out, writes=True, reads=False)
    if group.rank != root:
        finish = _write_outputs(target)
        return MpiCall("Scatterv", (None, target.spec(), root), out.nbytes, (target,), finish)
    _check_list("scatter", group, tensors, out)
    for tensor in tensors:
        _check_sizes("scatter", tensor.numel(), out.numel())
    source = Blocks(tensors, copies=overlap(out, tensors))
    arguments = source.spec(), target.spec(), root
    return MpiCall("Scatterv", arguments, out.nbytes, (source, target), _write_outputs(target))


def all_to_all(group: Any, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> MpiCall:
    """Send tensor i to rank i, and receive tensor i from rank i."""
    _check_list("all_to_all", group, outs, outs[0])
    _check_list("all_to_all", group, tensors, outs[0])
    _check_sizes("all_to_all", tensors[group.rank].numel(), outs[group.rank].numel())
    source = Blocks(tensors, copies=not disjoint([*outs, *tensors]))
    target = Blocks(outs, writes=True, reads=False)
    largest = max(one.nbytes for one in tensors)
    arguments = source.spec(), target.spec()
    return MpiCall("Alltoallv", arguments, largest, (source, target), _write_outputs(target))


def all_to_all_single(
    group: Any, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Sequence[int], sizes: Sequence[int]
) -> MpiCall:
    """Send ``sizes[i]`` slices of the first dimension to rank i; without ``sizes`` each gets as many."""
    _check_types(out, [tensor])
    theirs, ours = _rows(group, out, out_sizes), _rows(group, tensor, sizes)
    source = Buffer(tensor, copies=overlap(tensor, [out]))
    target = Buffer(out, writes=True, reads=False)
    if not (sizes or out_sizes):
        _check_sizes("all_to_all_single", tensor.numel(), out.numel())
        arguments, nbytes = (source.spec(), target.spec()), tensor.nbytes // group.size
        return MpiCall("Alltoall", arguments, nbytes, (source, target), _write_outputs(target))

    def blocks(buffer: Buffer, rows: Sequence[int], like: torch.Tensor) -> list[Any]:
        memory, datatype = buffer.spec()
        row = like.numel() // max(like.shape[0] if like.dim() else 1, 1) * datatype_of(like.dtype)[1]
        return [memory, [n * row for n in rows], datatype]

    sent, received = blocks(source, ours, tensor), blocks(target, theirs, out)
    if ours[group.rank] * max(tensor.numel(), 1) and sent[1][group.rank] != received[1][group.rank]:
        _check_sizes("all_to_all_single", sent[1][group.rank], received[1][group.rank])
    largest = max(sent[1]) * tensor.element_size()
    return MpiCall("Alltoallv", (sent, received), largest, (source, target), _write_outputs(target))


def _rows(group: Any, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """Number of a tensor's slices for each rank."""
    n = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if n % group.size:
            raise ValueError(f"all_to_all_single: {n} slices cannot be divided by {group.size} ranks")
        return [n // group.size] * group.size
    if len(sizes) != group.size or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: split sizes {list(sizes)} for {n} slices and {group.size} ranks"
        )
    return list(sizes)


def barrier(group: Any) -> MpiCall:
    """Synchronize all ranks."""
    return MpiCall("Barrier", (), 0)


# -- messages


def send(group: Any, tensor: torch.Tensor, peer: int, tag: int) -> MpiCall:
    """Send values to another rank."""
    _check_peer(group, peer, tag)
    source = Buffer(tensor)
    return MpiCall("Send", (source.spec(), peer, tag), tensor.nbytes, (source,))


def recv(group: Any, tensor: torch.Tensor, peer: int | None, tag: int, sources: list[int]) -> MpiCall:
    """Receive values from a rank, or from any rank if ``peer`` is None; ``sources`` gets the sender."""
    _check_peer(group, peer or 0, tag)
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

    return MpiCall("Recv", (target.spec(), source, tag), tensor.nbytes, (target,), finish)


# -- helpers


def _check_peer(group: Any, peer: int, tag: int) -> None:
    if not 0 <= peer < group.size:
        raise ValueError(f"rank {peer} is not from 0 to {group.size - 1}")
    if not 0 <= tag <= largest_tag():
        raise ValueError(f"tag {tag} is not from 0 to {largest_tag()}, MPI's largest")


def _check_list(op: str, group: Any, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    n = len(tensors)
    if n != group.size:
        raise ValueError(
            f"{op} takes a list of {group.size} tensors, one for each rank, and this one has {n}"
        )
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

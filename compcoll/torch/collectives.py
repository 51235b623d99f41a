"""Torch's collectives as the engine's calls: each begins one, and says how it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import Call
from compcoll.torch.core import Core, Part
from compcoll.torch.reductions import Reduction
from compcoll.torch.tensors import Host, element_of, overlap

__all__ = [
    "all_gather", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_single", "scatter",
]  # fmt: skip


def broadcast(core: Core, tensor: torch.Tensor, root: int) -> Part:
    """The root's values arrive everywhere."""
    sends = core.rank == root
    host = Host(tensor, writes=True, reads=sends)
    call = _call("Bcast", host.array, host.array.nbytes, recv=[host.array], root=root)
    return _begun(core, call, tensor, lambda: core.comm.Ibcast(_bytes(host.array), root), host)


def all_reduce(core: Core, tensor: torch.Tensor, how: Reduction) -> Part:
    """The reduction of all ranks' values takes their place."""
    host = Host(tensor, writes=True, dtype=how.dtype)
    how.before(host.flat)
    array = host.array
    call = _call("Allreduce", array, array.nbytes // core.size, recv=[array])
    part = _begun(
        core, call, tensor, lambda: core.comm.Iallreduce(MPI.IN_PLACE, *_reduced(array, how)), host, how=how
    )
    return part


def reduce(core: Core, tensor: torch.Tensor, how: Reduction, root: int) -> Part:
    """The reduction of all ranks' values takes the place of the root's."""
    at_root = core.rank == root
    host = Host(tensor, writes=at_root, dtype=how.dtype, fresh=how.changes_input and not at_root)
    how.before(host.flat)
    array = host.array
    call = _call(
        "Reduce", array, array.nbytes, send=[] if at_root else [array], recv=[array] if at_root else [],
        root=root,
    )  # fmt: skip

    def plain() -> MPI.Request:
        spec, op = _reduced(array, how)
        return core.comm.Ireduce(MPI.IN_PLACE if at_root else spec, spec if at_root else None, op, root)

    return _begun(core, call, tensor, plain, host, how=how if at_root else None, summed=how)


def reduce_scatter_single(core: Core, out: torch.Tensor, tensor: torch.Tensor, how: Reduction) -> Part:
    """Block i of the reduction of all ranks' values arrives at rank i."""
    _check_sizes("reduce_scatter", tensor.numel(), out.numel() * core.size)
    fresh = how.changes_input or overlap(tensor, [out])
    source, target = Host(tensor, dtype=how.dtype, fresh=fresh), _target(out, how)
    how.before(source.flat)
    blocks = _split(source.array, [target.array.size] * core.size)
    call = _call("Reduce_scatter_block", target.array, target.array.nbytes, send=blocks, recv=[target.array])

    def plain() -> MPI.Request:
        spec, op = _reduced(source.array, how)
        return core.comm.Ireduce_scatter_block(spec, _reduced(target.array, how)[0], op)

    return _begun(core, call, out, plain, target, how=how)


def reduce_scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], how: Reduction) -> Part:
    """Tensor i of the reduction of all ranks' lists arrives at rank i; they may differ in size."""
    _check_list("reduce_scatter", tensors, core.size)
    _check_types(out, tensors)
    _check_sizes("reduce_scatter", tensors[core.rank].numel(), out.numel())
    source, counts = _joined(tensors, how.dtype), [t.numel() for t in tensors]
    how.before(source.flat)
    target = _target(out, how)
    per = source.flat.element_size() // source.array.itemsize
    blocks = _split(source.array, [n * per for n in counts])
    even = len(set(counts)) == 1
    name = "Reduce_scatter_block" if even else "Reduce_scatter"
    call = _call(name, target.array, max(b.nbytes for b in blocks), send=blocks, recv=[target.array])
    call.empty = not source.array.size

    def plain() -> MPI.Request:
        (spec, op), into = _reduced(source.array, how), _reduced(target.array, how)[0]
        if even:
            return core.comm.Ireduce_scatter_block(spec, into, op)
        return core.comm.Ireduce_scatter(spec, into, [b.size for b in blocks], op)

    return _begun(core, call, out, plain, target, how=how)


def all_gather_single(core: Core, out: torch.Tensor, tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere, one after the other."""
    _check_sizes("all_gather", out.numel(), tensor.numel() * core.size)
    _check_types(out, [tensor])
    target = Host(out, writes=True, reads=False)
    blocks = _split(target.array, [target.array.size // core.size] * core.size)
    return _all_gather(core, target, blocks, tensor, out)


def all_gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere as tensor i; they may differ in size."""
    _check_list("all_gather", outs, core.size)
    _check_types(tensor, outs)
    _check_sizes("all_gather", outs[core.rank].numel(), tensor.numel())
    counts = [out.numel() for out in outs]
    flat = torch.empty(sum(counts), dtype=tensor.dtype)
    target = Host(flat)
    per = flat.element_size() // target.array.itemsize
    part = _all_gather(core, target, _split(target.array, [n * per for n in counts]), tensor, tensor)
    return _spread(part, flat, outs)


def _all_gather(
    core: Core, target: Host, blocks: list[np.ndarray], tensor: torch.Tensor, out: torch.Tensor
) -> Part:  # fmt: skip
    source = Host(tensor)
    mine = blocks[core.rank]
    in_place = source.array.ctypes.data == mine.ctypes.data
    if not in_place and overlap(source.flat, [target.flat]):
        source = Host(tensor, fresh=True)
    send = [] if in_place else [source.array]
    even = len({block.size for block in blocks}) == 1
    call = _call(
        "Allgather" if even else "Allgatherv", mine, max(b.nbytes for b in blocks), send=send, recv=blocks
    )
    call.empty = not target.array.size

    def plain() -> MPI.Request:
        given = MPI.IN_PLACE if in_place else _bytes(source.array)
        if even:
            return core.comm.Iallgather(given, _bytes(target.array))
        return core.comm.Iallgatherv(
            given, [target.array.view(np.uint8), [b.nbytes for b in blocks], MPI.BYTE]
        )

    return _begun(core, call, out, plain, target)


def gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Part:
    """Every rank's values arrive at the root, as tensor i of its list."""
    source, at_root = Host(tensor), core.rank == root
    if at_root:
        _check_list("gather", outs, core.size)
        _check_types(tensor, outs)
        for out in outs:
            _check_sizes("gather", out.numel(), tensor.numel())
    flat = torch.empty(tensor.numel() * core.size if at_root else 0, dtype=tensor.dtype)
    target = Host(flat)
    blocks = _split(target.array, [source.array.size] * core.size) if at_root else []
    call = _call("Gather", source.array, source.array.nbytes, send=[source.array], recv=blocks, root=root)

    def plain() -> MPI.Request:
        return core.comm.Igather(_bytes(source.array), _bytes(target.array) if at_root else None, root)

    part = _begun(core, call, tensor, plain, target)
    return _spread(part, flat, outs) if at_root else part


def scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Part:
    """Tensor i of the root's list arrives at rank i."""
    at_root = core.rank == root
    if at_root:
        _check_list("scatter", tensors, core.size)
        _check_types(out, tensors)
        for tensor in tensors:
            _check_sizes("scatter", tensor.numel(), out.numel())
    target = Host(out, writes=True, reads=False)
    source = _joined(tensors, out.dtype) if at_root else None
    blocks = _split(source.array, [target.array.size] * core.size) if source is not None else []
    call = _call("Scatter", target.array, target.array.nbytes, send=blocks, recv=[target.array], root=root)

    def plain() -> MPI.Request:
        return core.comm.Iscatter(
            _bytes(source.array) if source is not None else None, _bytes(target.array), root
        )

    return _begun(core, call, out, plain, target)


def all_to_all(
    core: Core, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], even: bool
) -> Part:  # fmt: skip
    """Tensor i goes to rank i, and what it has for this rank arrives as tensor i.

    ``even`` says whether all blocks of all ranks are known to have one size.
    """
    for one in (outs, tensors):
        _check_list("all_to_all", one, core.size)
    _check_types(outs[0], (*outs, *tensors))
    source = _joined(tensors, outs[0].dtype)
    counts = [out.numel() for out in outs]
    flat = torch.empty(sum(counts), dtype=outs[0].dtype)
    target = Host(flat)
    per = flat.element_size() // target.array.itemsize
    send = _split(source.array, [t.numel() * per for t in tensors])
    recv = _split(target.array, [n * per for n in counts])
    if even:
        call = _call("Alltoall", recv[0], recv[0].nbytes, send=send, recv=recv)

        def plain() -> MPI.Request:
            return core.comm.Ialltoall(_bytes(source.array), _bytes(target.array))

        return _spread(_begun(core, call, flat, plain, target), flat, outs)
    return _spread(_uneven(core, send, recv, source, target, flat), flat, outs)


def all_to_all_single(
    core: Core, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Sequence[int], sizes: Sequence[int]
) -> Part:  # fmt: skip
    """Slices of the first dimension go to each rank, as many as said, or as many to each."""
    _check_types(out, [tensor])
    theirs, ours = _rows(core, out, out_sizes), _rows(core, tensor, sizes)
    source, target = Host(tensor, fresh=overlap(tensor, [out])), Host(out, writes=True, reads=False)
    row, out_row = (_row(host.array.size, t) for host, t in ((source, tensor), (target, out)))
    send, recv = (
        _split(source.array, [n * row for n in ours]),
        _split(target.array, [n * out_row for n in theirs]),
    )
    if not sizes and not out_sizes:
        _check_sizes("all_to_all_single", tensor.numel(), out.numel())
        call = _call("Alltoall", recv[0], recv[0].nbytes, send=send, recv=recv)
        return _begun(
            core, call, out, lambda: core.comm.Ialltoall(_bytes(source.array), _bytes(target.array)), target
        )
    part = _uneven(core, send, recv, source, target, out)

    def finish() -> None:
        part.finish()
        target.finish()

    return Part(part.tasks, finish)


def _rows(core: Core, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
    """Slices of a tensor for each rank."""
    n = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if n % core.size:
            raise ValueError(
                f"all_to_all_single: {n} slices cannot be divided evenly among {core.size} ranks"
            )
        return [n // core.size] * core.size
    if len(sizes) != core.size or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(f"all_to_all_single: split sizes {list(sizes)} for {n} slices and {core.size} ranks")
    return list(sizes)


def _row(elements: int, tensor: torch.Tensor) -> int:
    return elements // max(tensor.shape[0] if tensor.dim() else 1, 1)


def barrier(core: Core) -> Part:
    """Nobody goes on before all have come."""
    return Part([_engine.Request(core.comm.Ibarrier())], lambda: None)


def _uneven(
    core: Core, send: list[np.ndarray], recv: list[np.ndarray], source: Host, target: Host, flat: torch.Tensor
) -> Part:
    """Blocks of any sizes: what becomes of one only its two ends know, so each is decided on its own."""
    element, nothing = element_of(flat.dtype), recv[0][:0]
    found: dict[str, tuple[Any, set[int], set[int]]] = {}
    for blocks, side in ((send, 1), (recv, 2)):
        for peer, block in enumerate(blocks):
            if peer != core.rank and block.nbytes:
                decision = core.decide("Alltoallv", block.dtype, block.nbytes, element)
                if decision.codec is not None:
                    found.setdefault(repr(decision), (decision, set(), set()))[side].add(peer)
    tags = core.group.next_tags()
    out = {peer for _, peers, _ in found.values() for peer in peers}
    into = {peer for _, _, peers in found.values() for peer in peers}
    rest = core.comm.Ialltoallv(_masked(source.array, send, out), _masked(target.array, recv, into))
    tasks, notes = core.plain_tasks("Alltoallv", [rest], max((b.nbytes for b in send), default=0))
    for key in sorted(found):
        decision, outgoing, incoming = found[key]
        call = Call(
            "Alltoallv", recv[0].dtype, max(b.nbytes for b in (*send, *recv)), False,
            [b if peer in outgoing else nothing for peer, b in enumerate(send)],
            [b if peer in incoming else nothing for peer, b in enumerate(recv)],
        )  # fmt: skip
        task, note = core.begin_decided(call, decision, tags)
        tasks.append(task)
        notes.append(note)
    return Part(tasks, lambda: [note() for note in notes])  # type: ignore[arg-type]


def _masked(array: np.ndarray, blocks: list[np.ndarray], without: set[int]) -> list:
    """Blocks as MPI takes them, but for some."""
    sizes = [block.nbytes for block in blocks]
    displs = [0, *accumulate(sizes)][:-1]
    counts = [0 if peer in without else n for peer, n in enumerate(sizes)]
    return [array.view(np.uint8), counts, displs, MPI.BYTE]


# -- helpers


def _call(op: str, like: np.ndarray, nbytes: int, **more: Any) -> Call:
    return Call(op, like.dtype, nbytes, not like.size, **more)


def _begun(
    core: Core, call: Call, tensor: torch.Tensor, plain: Callable[[], MPI.Request], target: Host,
    how: Reduction | None = None, summed: Reduction | None = None,
) -> Part:  # fmt: skip
    """Start a call whose result is written to ``target``."""
    reduced = summed or how
    tasks, note = core.begin(
        call, element_of(tensor.dtype), lambda: [plain()],
        by_mpi=reduced is None or reduced.native is not None, compressible=reduced is None or reduced.sums,
    )  # fmt: skip

    def finish() -> None:
        note()
        if how is not None:
            how.after(target.flat, core.size)
        target.finish()

    return Part(tasks, finish)


def _spread(part: Part, flat: torch.Tensor, outs: Sequence[torch.Tensor]) -> Part:
    """Write the parts of a flat tensor to those of a list at the end."""
    ends, before = [0, *accumulate(out.numel() for out in outs)], part.finish

    def finish() -> None:
        before()
        for out, first, end in zip(outs, ends, ends[1:], strict=False):
            out.detach().copy_(flat[first:end].view(out.shape))

    return Part(part.tasks, finish)


def _joined(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Host:
    """The values of a list of tensors, one after the other."""
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=dtype)
    first = 0
    for tensor in tensors:
        flat[first : first + tensor.numel()].view(tensor.shape).copy_(tensor.detach())
        first += tensor.numel()
    return Host(flat)


def _target(out: torch.Tensor, how: Reduction) -> Host:
    return Host(out, writes=True, dtype=how.dtype, reads=False)


def _split(array: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    ends = [0, *accumulate(counts)]
    return [array[first:end] for first, end in pairwise(ends)]


def _bytes(array: np.ndarray) -> list:
    return [array.view(np.uint8), MPI.BYTE]


def _reduced(array: np.ndarray, how: Reduction) -> tuple[list, MPI.Op]:
    """An array and an operation as MPI takes them; what it does not know is one rank's, and stays."""
    if how.native is None:
        return [array.view(np.uint8), MPI.BYTE], MPI.BOR
    return [array, MPI._typedict[array.dtype.char]], how.native


def _check_list(op: str, tensors: Sequence[torch.Tensor], size: int) -> None:
    if len(tensors) != size:
        raise ValueError(
            f"{op} takes a list of {size} tensors, one for each rank, and this one has {len(tensors)}"
        )


def _check_sizes(op: str, n: int, expected: int) -> None:
    if n != expected:
        raise ValueError(f"{op}: {n} elements, and the sizes of the other tensors ask for {expected}")


def _check_types(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise ValueError(
                f"tensors of one operation are of one type, and these of {tensor.dtype}, {other.dtype}"
            )

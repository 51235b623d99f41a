"""Torch's collectives as the engine's calls: each begins one, and says how it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.call import Call
from compcoll.torch.core import Core, Part
from compcoll.torch.gpu import End
from compcoll.torch.reductions import Reduction
from compcoll.torch.tensor_buffers import OnGpu, Placed, Rest, Several, place
from compcoll.torch.tensors import Host, apart, element_of, overlap

__all__ = [
    "all_gather", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_single", "scatter",
]  # fmt: skip


def broadcast(core: Core, tensor: torch.Tensor, root: int) -> Part:
    """The root's values arrive everywhere."""
    sends = core.rank == root
    values = place(tensor, writes=True, reads=sends)
    call = _call("Bcast", values.array, values.array.nbytes, recv=[values.array], root=root)
    return _begun(core, call, tensor, lambda: core.comm.Ibcast(_bytes(values), root), values)


def all_reduce(core: Core, tensor: torch.Tensor, how: Reduction) -> Part:
    """The reduction of all ranks' values takes their place."""
    values = place(tensor, writes=True, dtype=how.dtype)
    values.do(how.before)
    call = _call("Allreduce", values.array, values.array.nbytes // core.size, recv=[values.array])

    def plain() -> MPI.Request:
        return core.comm.Iallreduce(MPI.IN_PLACE, *_reduced(values, how))

    return _begun(core, call, tensor, plain, values, how=how)


def reduce(core: Core, tensor: torch.Tensor, how: Reduction, root: int) -> Part:
    """The reduction of all ranks' values takes the place of the root's."""
    at_root = core.rank == root
    values = place(tensor, writes=at_root, dtype=how.dtype, fresh=how.changes_input and not at_root)
    values.do(how.before)
    array = values.array
    call = _call(
        "Reduce", array, array.nbytes, send=[] if at_root else [array], recv=[array] if at_root else [],
        root=root,
    )  # fmt: skip

    def plain() -> MPI.Request:
        spec, op = _reduced(values, how)
        return core.comm.Ireduce(MPI.IN_PLACE if at_root else spec, spec if at_root else None, op, root)

    return _begun(core, call, tensor, plain, values, how=how if at_root else None, summed=how)


def reduce_scatter_single(core: Core, out: torch.Tensor, tensor: torch.Tensor, how: Reduction) -> Part:
    """Block i of the reduction of all ranks' values arrives at rank i."""
    _check_sizes("reduce_scatter", tensor.numel(), out.numel() * core.size)
    fresh = how.changes_input or overlap(tensor, [out])
    source, target = place(tensor, dtype=how.dtype, fresh=fresh), _target(out, how)
    source.do(how.before)
    blocks = _split(source.array, [target.array.size] * core.size)
    call = _call("Reduce_scatter_block", target.array, target.array.nbytes, send=blocks, recv=[target.array])

    def plain() -> MPI.Request:
        spec, op = _reduced(source, how)
        return core.comm.Ireduce_scatter_block(spec, _reduced(target, how)[0], op)

    return _begun(core, call, out, plain, target, source, how=how)


def reduce_scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], how: Reduction) -> Part:
    """Tensor i of the reduction of all ranks' lists arrives at rank i; they may differ in size."""
    _check_list("reduce_scatter", tensors, core.size)
    _check_types(out, tensors)
    _check_sizes("reduce_scatter", tensors[core.rank].numel(), out.numel())
    source = Several(tensors, how.dtype, fresh=how.changes_input or overlap(out, tensors))
    source.do(how.before)
    target, blocks = _target(out, how), source.blocks
    even = len({block.size for block in blocks}) == 1
    name = "Reduce_scatter_block" if even else "Reduce_scatter"
    call = _call(name, target.array, max(b.nbytes for b in blocks), send=blocks, recv=[target.array])
    call.empty = not any(block.size for block in blocks)

    def plain() -> MPI.Request:
        (spec, op), into = _reduced(source, how), _reduced(target, how)[0]
        if even:
            return core.comm.Ireduce_scatter_block(spec, into, op)
        return core.comm.Ireduce_scatter(spec, into, [b.size for b in blocks], op)

    return _begun(core, call, out, plain, target, source, how=how)


def all_gather_single(core: Core, out: torch.Tensor, tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere, one after the other."""
    _check_sizes("all_gather", out.numel(), tensor.numel() * core.size)
    _check_types(out, [tensor])
    target = place(out, writes=True, reads=False)
    blocks = _split(target.array, [target.array.size // core.size] * core.size)
    return _all_gather(core, target, blocks, tensor, [out])


def all_gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Part:
    """Every rank's values arrive everywhere as tensor i; they may differ in size."""
    _check_list("all_gather", outs, core.size)
    _check_types(tensor, outs)
    _check_sizes("all_gather", outs[core.rank].numel(), tensor.numel())
    target = Several(outs, tensor.dtype, writes=True, reads=False)
    return _all_gather(core, target, target.blocks, tensor, outs)


def _all_gather(
    core: Core, target: Placed, blocks: list[Any], tensor: torch.Tensor, outs: Sequence[torch.Tensor]
) -> Part:  # fmt: skip
    source, mine = place(tensor), blocks[core.rank]
    in_place = mine.size > 0 and _address(source.array) == _address(mine)
    if not in_place and overlap(tensor, outs):
        source = place(tensor, fresh=True)
    even = len({block.size for block in blocks}) == 1
    call = _call(
        "Allgather" if even else "Allgatherv", mine, max(b.nbytes for b in blocks),
        send=[] if in_place else [source.array], recv=blocks,
    )  # fmt: skip
    call.empty = not any(block.size for block in blocks)

    def plain() -> MPI.Request:
        # Of the target's own memory alone MPI may not have a part twice.
        given = MPI.IN_PLACE if in_place and isinstance(target, Host) else _bytes(source)
        if even:
            return core.comm.Iallgather(given, _bytes(target))
        return core.comm.Iallgatherv(
            given, [target.host.view(np.uint8), [b.nbytes for b in blocks], MPI.BYTE]
        )

    return _begun(core, call, tensor, plain, target, source)


def gather(core: Core, outs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Part:
    """Every rank's values arrive at the root, as tensor i of its list."""
    at_root = core.rank == root
    if at_root:
        _check_list("gather", outs, core.size)
        _check_types(tensor, outs)
        for out in outs:
            _check_sizes("gather", out.numel(), tensor.numel())
    source = place(tensor, fresh=at_root and overlap(tensor, outs))
    target = Several(outs, tensor.dtype, writes=True, reads=False) if at_root else None
    call = _call(
        "Gather", source.array, source.array.nbytes, send=[source.array],
        recv=target.blocks if target is not None else [], root=root,
    )  # fmt: skip

    def plain() -> MPI.Request:
        return core.comm.Igather(_bytes(source), _bytes(target) if target is not None else None, root)

    return _begun(core, call, tensor, plain, target, source)


def scatter(core: Core, out: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Part:
    """Tensor i of the root's list arrives at rank i."""
    at_root = core.rank == root
    if at_root:
        _check_list("scatter", tensors, core.size)
        _check_types(out, tensors)
        for tensor in tensors:
            _check_sizes("scatter", tensor.numel(), out.numel())
    target = place(out, writes=True, reads=False)
    source = Several(tensors, out.dtype, fresh=overlap(out, tensors)) if at_root else None
    blocks = source.blocks if source is not None else []
    call = _call("Scatter", target.array, target.array.nbytes, send=blocks, recv=[target.array], root=root)

    def plain() -> MPI.Request:
        return core.comm.Iscatter(_bytes(source) if source is not None else None, _bytes(target), root)

    return _begun(core, call, out, plain, target, *([] if source is None else [source]))


def all_to_all(core: Core, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Part:
    """Tensor i goes to rank i, and what it has for this rank arrives as tensor i."""
    for one in (outs, tensors):
        _check_list("all_to_all", one, core.size)
    _check_types(outs[0], (*outs, *tensors))
    source = Several(tensors, outs[0].dtype, fresh=not apart([*outs, *tensors]))
    target = Several(outs, outs[0].dtype, writes=True, reads=False)
    return _uneven(core, source.blocks, target.blocks, source, target, outs[0])


def all_to_all_single(
    core: Core, out: torch.Tensor, tensor: torch.Tensor, out_sizes: Sequence[int], sizes: Sequence[int]
) -> Part:  # fmt: skip
    """Slices of the first dimension go to each rank, as many as said, or as many to each."""
    _check_types(out, [tensor])
    theirs, ours = _rows(core, out, out_sizes), _rows(core, tensor, sizes)
    source = place(tensor, fresh=overlap(tensor, [out]))
    target = place(out, writes=True, reads=False)
    row, out_row = (_row(placed.array.size, t) for placed, t in ((source, tensor), (target, out)))
    send, recv = (
        _split(source.array, [n * row for n in ours]),
        _split(target.array, [n * out_row for n in theirs]),
    )
    if sizes or out_sizes:
        return _uneven(core, send, recv, source, target, out)
    _check_sizes("all_to_all_single", tensor.numel(), out.numel())
    call = _call("Alltoall", recv[0], recv[0].nbytes, send=send, recv=recv)
    return _begun(
        core, call, out, lambda: core.comm.Ialltoall(_bytes(source), _bytes(target)), target, source
    )


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
    return Part([_engine.Request(core.comm.Ibarrier())], list)


def _uneven(
    core: Core, send: list[Any], recv: list[Any], source: Placed, target: Placed, like: torch.Tensor
) -> Part:
    """Blocks of any sizes: what becomes of one only its two ends know, so each is decided on its own."""
    element, nothing, everyone = element_of(like.dtype), recv[0][:0], set(range(core.size))
    found: dict[str, tuple[Any, set[int], set[int]]] = {}
    for blocks, side in ((send, 1), (recv, 2)):
        for peer, block in enumerate(blocks):
            if peer != core.rank and block.nbytes:
                decision = core.decide("Alltoallv", block.dtype, block.nbytes, element)
                if decision.codec is not None:
                    found.setdefault(repr(decision), (decision, set(), set()))[side].add(peer)
    tags, order = core.group.next_tags(), core.tails.order(target, source)
    if found and send[core.rank].nbytes == recv[core.rank].nbytes:  # this rank's own stays where it is
        _, outgoing, incoming = found[min(found)]
        outgoing.add(core.rank)
        incoming.add(core.rank)
    out = {peer for _, peers, _ in found.values() for peer in peers}
    into = {peer for _, _, peers in found.values() for peer in peers}
    given, rest = Rest(source, send, everyone - out, True), Rest(target, recv, everyone - into, False)
    request = core.comm.Ialltoallv(given.spec, rest.spec)
    tasks, notes = core.plain_tasks("Alltoallv", [request], max((b.nbytes for b in send), default=0))
    for key in sorted(found):
        decision, outgoing, incoming = found[key]
        call = Call(
            "Alltoallv", recv[0].dtype, max(b.nbytes for b in (*send, *recv)), False,
            [b if peer in outgoing else nothing for peer, b in enumerate(send)],
            [b if peer in incoming else nothing for peer, b in enumerate(recv)],
        )  # fmt: skip
        task, note = core.begin_decided(call, decision, tags, order)
        tasks.append(task)
        notes.append(note)

    def finish() -> list[End]:
        rest.finish(order)
        target.finish(order)
        ends = order.ends()
        for note in notes:
            note()
        return ends

    return Part(tasks, finish)


# -- helpers


def _call(op: str, like: Any, nbytes: int, **more: Any) -> Call:
    return Call(op, like.dtype, nbytes, not like.size, **more)


def _begun(
    core: Core, call: Call, tensor: torch.Tensor, plain: Callable[[], MPI.Request], target: Placed | None,
    *sources: Placed, how: Reduction | None = None, summed: Reduction | None = None,
) -> Part:  # fmt: skip
    """Start a call whose result is written to ``target``."""
    reduced = summed or how
    order = core.tails.order(*sources, *([] if target is None else [target]))
    tasks, note = core.begin(
        call, element_of(tensor.dtype), lambda: [plain()], order,
        by_mpi=reduced is None or reduced.native is not None, compressible=reduced is None or reduced.sums,
    )  # fmt: skip
    after = partial(how.after, size=core.size) if how is not None and how.averages else None

    def finish() -> list[End]:
        if target is not None:
            target.finish(order, after)
        ends = order.ends()
        note()
        return ends

    return Part(tasks, finish)


def _target(out: torch.Tensor, how: Reduction) -> Host | OnGpu:
    return place(out, writes=True, dtype=how.dtype, reads=False)


def _split(array: Any, counts: Sequence[int]) -> list[Any]:
    """Blocks of an array of the host or a GPU."""
    ends = [0, *accumulate(counts)]
    return [array[first:end] for first, end in pairwise(ends)]


def _address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.address


def _bytes(placed: Placed) -> list:
    return [placed.host.view(np.uint8), MPI.BYTE]


def _reduced(placed: Placed, how: Reduction) -> tuple[list, MPI.Op]:
    """Values and an operation as MPI takes them; what it does not know is one rank's, and stays."""
    array = placed.host
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

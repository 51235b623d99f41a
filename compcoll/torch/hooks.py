"""Compression beside NCCL or gloo: a hook of DDP, and the way of a bucket from the hook to its future.

state = compcoll.torch.compress_ddp(ddp, "bfp:bits=6")

`compressed_hook` gives a bucket to `submit`. The threads of a pipeline run the phases of `average` in turn:
the ranks of a node add up their gradients (`node_sum`), the nodes exchange frames of these sums and each rank
adds up one row (`reduce_scatter`), and all ranks gather the frames of all rows (`all_gather`). At one level,
every rank is a node. FSDP2's objects use the same phases.

The size of a ``bfp``, ``fp8``, ``int8``, ``int4`` or ``zfp`` frame follows from its number of values, so
all ranks know it: frames lie in slots of this size, and one all-to-all or all-gather of bytes carries them.
An array that its codec refuses, such as one with an infinity, does not fit its slot. Its rank then leaves all
its slots void. Every peer sees this, and the ranks repeat the exchange with slots for the longest frame.
Frames of other codecs have slots for the longest frame from the start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from compcoll.codecs import Codec, decode
from compcoll.codecs.decoding import decode_add
from compcoll.frame import HEADER_NBYTES
from compcoll.torch.compression import Compression, ErrorFeedback
from compcoll.torch.connection import Pipeline
from compcoll.torch.feedback import encode
from compcoll.torch.integration import not_compiled, profiler_entry
from compcoll.torch.node_group import all_gather_single
from compcoll.torch.reductions import element_of
from compcoll.torch.report import CallStats

__all__ = ["all_gather", "average", "compress_ddp", "compressed_hook", "node_sum", "reduce_scatter", "submit"]

#: Alignment of frames for kernels, in bytes.
_ALIGNMENT = 16
#: Values that share a scale, in codecs with scales.
_BLOCK = 64
#: The errors of one exchange of so many are measured; a prime, so that all buckets have their turn.
_SAMPLING = 61

#: A generator of phases. Code before its first `yield` runs in the calling thread, and each `yield` hands its
#: tensors to the next thread of a pipeline.
Phases = Iterator[Sequence[torch.Tensor]]


def compress_ddp(model: torch.nn.Module, codec: Any, **options: Any) -> ErrorFeedback:
    """Compress the gradients of a model under DDP: register `compressed_hook`.

    Parameters
    ----------
    model : DistributedDataParallel
        Or the result of `torch.compile` for it.
    codec : str, Codec, or mapping of int to these
    **options
        Those of `ErrorFeedback`; ``group`` and ``module`` are those of DDP.

    Returns
    -------
    ErrorFeedback

    Raises
    ------
    ValueError
        If the model is of another kind, and as by `ErrorFeedback`.
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"{type(model).__name__} is not a DistributedDataParallel")
    state = ErrorFeedback(codec, model.process_group, module=model.module, **options)
    model.register_comm_hook(state, compressed_hook)
    return state


@not_compiled
def compressed_hook(state: ErrorFeedback, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients: each rank adds up one row, and all ranks decode the frame of the sum.

    Communication overlaps with the backward pass. All ranks get the same bits.
    """
    with profiler_entry("compressed_hook"):
        size, buffer = state.connect(), bucket.buffer()
        if bucket.index() == 0:
            state.step += 1
        if buffer.is_sparse:
            work: Any = dist.all_reduce(buffer.div_(size), group=state.group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])
        return submit(state.pipelines[0], average(state, state.by_codec(bucket)), buffer)


# -- threads of a pipeline


def submit(pipeline: Pipeline, phases: Phases, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Run phases in the threads of a pipeline; the future has the tensor that they fill, or an error."""
    next(phases)
    devices: Any = [tensor.device] if tensor.is_cuda else []
    future: torch.futures.Future = torch.futures.Future(devices=devices)
    after = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
    # Inference mode is thread-local.
    submission = pipeline, phases, tensor, future, torch.is_inference_mode_enabled()
    pipeline.threads[0].submit(_run, submission, 0, (), after)
    return future.then(_value_or_raise)


def _run(submission: tuple[Any, ...], phase: int, given: Sequence[torch.Tensor], after: Any) -> None:
    """Run a phase on the given tensors in its thread, and submit the next phase to its own thread."""
    pipeline, phases, tensor, future, inference = submission
    try:
        if pipeline.error is not None:
            raise RuntimeError(f"an earlier exchange failed: {pipeline.error}") from pipeline.error
        with torch.inference_mode(inference), torch.no_grad(), pipeline.stream(phase, tensor.device, after):
            following = next(phases, None)
            if tensor.is_cuda:  # the stream that made the given tensors must not reuse their memory yet
                stream = torch.cuda.current_stream(tensor.device)
                for one in given:
                    one.record_stream(stream)
                after = stream.record_event()
            if following is None:
                future.set_result(tensor)
            else:  # with arguments: a closure that submits itself would keep its tensors in a cycle
                pipeline.threads[phase + 1].submit(_run, submission, phase + 1, following, after)
    except BaseException as error:
        pipeline.error = pipeline.error or error
        future.set_result(error)


def _value_or_raise(future: torch.futures.Future) -> Any:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


# -- phases


def average(state: Compression, named: Mapping[Codec, Mapping[str, torch.Tensor]]) -> Phases:
    """Average tensors over all ranks, in place, by codec and name."""
    size = len(state.order)
    widths = {codec: {n: _width(one, size) for n, one in tensors.items()} for codec, tensors in named.items()}
    yield ()
    rows = [node_sum(state, _rows_of(tensors, widths[codec], size)) for codec, tensors in named.items()]
    yield rows
    rows = [
        reduce_scatter(state, sums, codec, widths[codec]) for codec, sums in zip(named, rows, strict=True)
    ]
    yield rows
    for (codec, tensors), row in zip(named.items(), rows, strict=True):
        _write_rows(all_gather(state, row, codec, widths[codec]), tensors, widths[codec])


def node_sum(state: Compression, rows: torch.Tensor) -> torch.Tensor:
    """Sum the rows of a node's ranks, (size, n) in the order of `NodeLayout`: (nodes, n)."""
    node = state.pipelines[0].intra_node
    return rows if node is None else node.reduce_scatter(rows)


def reduce_scatter(
    state: Compression, rows: torch.Tensor, codec: Codec, widths: Mapping[str, int]
) -> torch.Tensor:
    """Sum this rank's row over all nodes: (n,), from the rows of this node, (nodes, n), which may change.

    Rows are added in the order of nodes, in at least 32 bits a value, and this rank's own row uncoded.
    ``widths`` has the number of columns of each name; errors are kept by name.
    """
    pipeline, residue = state.pipelines[0], state.residue(rows, codec, widths, "gradients")
    line, began = state.line(pipeline.name, codec), perf_counter()
    total = torch.zeros_like(rows[0], dtype=torch.promote_types(rows.dtype, torch.float32))
    if not total.numel():
        return total.to(rows.dtype)
    filler = torch.ones(1, dtype=torch.uint8, device=rows.device)
    frames = [
        filler
        if node == pipeline.rank
        else _encode(row, codec, None if residue is None else residue[node], line)
        for node, row in enumerate(rows)
    ]
    if residue is not None:
        residue[pipeline.rank] = 0

    def transfer(slots: torch.Tensor) -> torch.Tensor:
        arrived = torch.empty_like(slots)
        dist.all_to_all_single(arrived, slots, group=pipeline.inter_node)
        line.wire_nbytes += slots.shape[1] * (pipeline.n_nodes - 1)
        return arrived

    slots, is_finite = _exchange(frames, rows, codec, transfer, [pipeline.inter_node])
    for node, frame in enumerate(slots):
        if node == pipeline.rank:
            total += rows[node]
        else:
            decode_add(frame, total)
    _count(line, rows, rows[0].nbytes * (pipeline.n_nodes - 1), began)
    if not is_finite:
        state.drop_errors(widths)
    return total.to(rows.dtype)


def all_gather(
    state: Compression, row: torch.Tensor, codec: Codec, widths: Mapping[str, int]
) -> torch.Tensor:
    """Gather and decode one row of each rank, (n,): (size, n), in the order of `NodeLayout`.

    The ranks of a node send each other the frames that they have received. Feedback changes ``row``.
    """
    pipeline = state.pipelines[-1]
    group, node = pipeline.inter_node, pipeline.intra_node
    residue = state.residue(row, codec, widths, "sum")
    line, began = state.line(pipeline.name, codec), perf_counter()
    if not row.numel():
        return row.new_empty(len(state.order), 0)

    def transfer(slots: torch.Tensor) -> torch.Tensor:
        arrived = slots.new_empty(pipeline.n_nodes, slots.shape[1])
        all_gather_single(arrived.view(-1), slots.view(-1), group=group)
        line.wire_nbytes += slots.nbytes * (pipeline.n_nodes - 1)
        return arrived if node is None else node.all_gather(arrived)

    groups = [group] if node is None else [group, node.group]
    slots, is_finite = _exchange([_encode(row, codec, residue, line)], row, codec, transfer, groups)
    rows = row.new_empty(len(slots), row.numel())
    for frame, out in zip(slots, rows, strict=True):
        decode(frame, out=out)
    _count(line, row, row.nbytes * (pipeline.n_nodes - 1), began)
    if not is_finite:
        state.drop_errors(widths)
    return rows


def _encode(
    values: torch.Tensor, codec: Codec, residue: torch.Tensor | None, line: CallStats
) -> torch.Tensor:
    """Encode values as `encode` does, and measure the errors of the frame in one exchange of `_SAMPLING`."""
    frame = encode(values, codec, residue)
    if line.calls % _SAMPLING == 0 and values.is_floating_point() and not codec.lossless:
        wide = torch.promote_types(values.dtype, torch.float32)
        errors = decode(frame if frame.is_cuda else frame.numpy(), out=torch.empty_like(values)) - values
        norms = [torch.linalg.vector_norm(one, dtype=wide).item() for one in (errors, values)]
        line.add_relative(norms[0] / norms[1] if norms[1] else None)
    return frame


def _count(line: CallStats, values: torch.Tensor, raw_nbytes: int, began: float) -> None:
    """Count an exchange, whose bytes on the wire are counted."""
    line.count(1, values.nbytes, values.nbytes, line.reason)
    line.raw_nbytes += raw_nbytes
    line.stages["total"] += perf_counter() - began


# -- frames in slots


def _exchange(
    frames: Sequence[torch.Tensor],
    values: torch.Tensor,
    codec: Codec,
    transfer: Callable[[torch.Tensor], torch.Tensor],
    groups: Sequence[dist.ProcessGroup],
) -> tuple[Any, bool]:
    """Exchange slots of a known size, or of the size of the longest frame in the groups.

    The second value is False on all ranks of the groups if some rank's values are not finite. Codecs with
    slots of a known size refuse such values, so the ranks look for them only after a void slot.
    """
    nbytes = _slot_nbytes(codec, values.shape[-1], values.dtype)
    slots, is_finite = None if nbytes is None else transfer(_in_slots(frames, nbytes)), True
    if slots is None or bool((slots[:, 0] == 0).any()):
        longest = torch.tensor([max(frame.numel() for frame in frames), 0], device=frames[0].device)
        if values.is_floating_point():  # one sum is less work than a look at each value
            wide = torch.promote_types(values.dtype, torch.float32)
            longest[1] = ~values.sum(dtype=wide).isfinite()
        for group in groups:
            dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
        nbytes, is_not_finite = longest.tolist()
        slots, is_finite = transfer(_in_slots(frames, nbytes)), not is_not_finite
    return slots if slots.is_cuda else slots.numpy(), is_finite


def _slot_nbytes(codec: Codec, n: int, dtype: torch.dtype) -> int | None:
    """Largest frame of ``n`` values, in bytes; None if it depends on the values."""
    element = element_of(dtype)
    known = codec.payload_nbytes(n, element)
    # A codec that would gain nothing, as with few values, gives a frame of `raw`.
    return None if known is None else HEADER_NBYTES + min(known, n * element.itemsize)


def _in_slots(frames: Sequence[torch.Tensor], nbytes: int) -> torch.Tensor:
    """Frames at the beginning of a slot each; if one does not fit, all slots are zeros, which no frame is."""
    nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    slots = torch.zeros(len(frames), nbytes, dtype=torch.uint8, device=frames[0].device)
    if all(frame.numel() <= nbytes for frame in frames):
        for row, frame in zip(slots, frames, strict=True):
            row[: frame.numel()] = frame
    return slots


# -- tensors as rows, one for each rank


def _width(tensor: torch.Tensor, size: int) -> int:
    """Number of columns of a tensor: whole blocks, so that its frames do not depend on its neighbours."""
    return -(-tensor.numel() // (size * _BLOCK)) * _BLOCK


def _rows_of(tensors: Mapping[str, torch.Tensor], widths: Mapping[str, int], size: int) -> torch.Tensor:
    """Divide tensors by the number of ranks: (size, n), the columns of each tensor padded with zeros."""
    rows = next(iter(tensors.values())).new_empty(size, sum(widths.values()))
    for tensor, columns in zip(tensors.values(), rows.split(list(widths.values()), 1), strict=True):
        columns[tensor.numel() // max(columns.shape[1], 1) :] = 0
        for values, cells in _cells(tensor.reshape(-1), columns):
            torch.div(values, size, out=cells)
    return rows


def _write_rows(rows: torch.Tensor, tensors: Mapping[str, torch.Tensor], widths: Mapping[str, int]) -> None:
    """Copy rows back to the tensors of `_rows_of`."""
    for tensor, columns in zip(tensors.values(), rows.split(list(widths.values()), 1), strict=True):
        flat = tensor.reshape(-1)  # a copy if the tensor has gaps
        for values, cells in _cells(flat, columns):
            values.copy_(cells)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))


def _cells(flat: torch.Tensor, columns: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The values that fill whole rows, then the rest, each with the cells that they fill."""
    width = columns.shape[1]
    n_rows, rest = divmod(flat.numel(), width) if width else (0, 0)
    if n_rows:
        yield flat[: n_rows * width].view(n_rows, width), columns[:n_rows]
    if rest:
        yield flat[n_rows * width :], columns[n_rows, :rest]

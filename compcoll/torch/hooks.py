"""Compression beside NCCL or gloo: a hook of DDP with error feedback, and objects for FSDP2.

state = compcoll.torch.ErrorFeedback("bfp:bits=6")
ddp.register_comm_hook(state, compcoll.torch.compressed_hook)

model.set_custom_all_gather(compcoll.torch.CompressedAllGather("lossless"))
model.set_custom_reduce_scatter(compcoll.torch.CompressedReduceScatter("bfp:bits=8"))
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from compcoll.codecs import Codec, decode
from compcoll.codecs import codec as codec_of
from compcoll.torch.reductions import reduction

__all__ = ["CompressedAllGather", "CompressedReduceScatter", "ErrorFeedback", "compressed_hook"]

_LOSSLESS = codec_of("lossless")


def _for(codec: Codec, values: torch.Tensor) -> Codec:
    """A lossy codec for numbers that it may touch; a lossless one else."""
    return codec if codec.lossless or values.dtype.is_floating_point else _LOSSLESS


class ErrorFeedback:
    """State of `compressed_hook`: errors of quantization, which are added to the next gradients.

    After Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019);
    the owners of the sums keep their errors, too, as in Tang et al., "DoubleSqueeze" (2019).

    Parameters
    ----------
    codec : str or Codec
    group : ProcessGroup, optional
        The default group if there is none.
    feeds_back : bool
        Whether errors are kept at all.

    Attributes
    ----------
    raw_nbytes, wire_nbytes : int
        Bytes without compression by the same algorithm, and bytes that this rank has sent.
    """

    def __init__(self, codec: Any, group: dist.ProcessGroup | None = None, *, feeds_back: bool = True):
        self.codec, self.group, self.feeds_back = codec_of(codec), group, feeds_back
        self.raw_nbytes = self.wire_nbytes = 0
        self._errors: dict[tuple[int, str], torch.Tensor] = {}

    def add_to(self, values: torch.Tensor, index: int, kind: str) -> None:
        """Add the error of a bucket's last values."""
        error = self._errors.get((index, kind))
        if error is not None and error.shape == values.shape and error.dtype == values.dtype:
            values += error

    def keep(self, values: torch.Tensor, sent: torch.Tensor, index: int, kind: str) -> None:
        """Keep the error of a bucket's values; nothing where it is not finite."""
        if self.feeds_back and not self.codec.lossless:
            self._errors[index, kind] = torch.nan_to_num(values - sent, nan=0.0, posinf=0.0, neginf=0.0)

    def count(self, raw: int, frames: Sequence[torch.Tensor]) -> None:
        """Count bytes sent."""
        self.raw_nbytes += raw
        self.wire_nbytes += sum(frame.numel() for frame in frames)


def compressed_hook(state: ErrorFeedback, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients: each rank adds up its part, and all decode the frame of its sum."""
    group = state.group if state.group is not None else dist.group.WORLD
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    buffer, index = bucket.buffer(), bucket.index()
    values = buffer / size
    state.add_to(values, index, "gradients")
    codec = _for(state.codec, values)
    step = -(-values.numel() // size)
    blocks = list(values.split(step)) + [values[:0]] * size
    blocks = blocks[:size]
    frames = [_encoded(codec, block) for block in blocks]
    sent = torch.cat([_decoded(frame, torch.empty_like(b)) for frame, b in zip(frames, blocks, strict=True)])
    state.keep(values, sent, index, "gradients")
    total = torch.zeros_like(blocks[rank], dtype=torch.promote_types(values.dtype, torch.float32))
    for frame in _exchange_frames(frames, group):
        total += _decoded(frame, torch.empty_like(blocks[rank]))
    mine = total.to(values.dtype)
    state.add_to(mine, index, "sum")
    frame = _encoded(codec, mine)
    state.keep(mine, _decoded(frame, torch.empty_like(mine)), index, "sum")
    parts = [
        _decoded(theirs, torch.empty_like(block))
        for theirs, block in zip(_gather_frames(frame, group), blocks, strict=True)
    ]
    others = [f for peer, f in enumerate(frames) if peer != rank] + [frame] * (size - 1)
    state.count(sum(b.nbytes for b in blocks) + (size - 2) * mine.nbytes, others)
    buffer.copy_(torch.cat(parts))
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(buffer)
    return future


class _Custom:
    """The allocator that FSDP2 wants of either object."""

    def __init__(self, codec: Any):
        self.codec = codec_of(codec)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a buffer to send or receive."""
        return torch.empty(*size, dtype=dtype, device=device)


class CompressedAllGather(_Custom):
    """For ``FSDPModule.set_custom_all_gather``: each rank's shard is encoded once, and decoded by all."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        frames = _gather_frames(_encoded(_for(self.codec, input_tensor), input_tensor), group)
        for frame, block in zip(frames, output_tensor.chunk(len(frames)), strict=True):
            _decoded(frame, block)


class CompressedReduceScatter(_Custom):
    """For ``FSDPModule.set_custom_reduce_scatter``: each piece is encoded once, and added up by its owner."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        how, size = reduction(op, input_tensor.dtype), dist.get_world_size(group)
        if not how.sums:
            raise ValueError(f"only sums travel compressed, and this is {how.name}")
        given = input_tensor.clone() if how.changes_input else input_tensor
        how.before(given)
        codec = _for(self.codec, given)
        total = torch.zeros_like(output_tensor, dtype=torch.promote_types(given.dtype, torch.float32))
        for frame in _exchange_frames([_encoded(codec, block) for block in given.chunk(size)], group):
            total += _decoded(frame, torch.empty_like(output_tensor))
        how.after(total, size)
        output_tensor.copy_(total)


# -- frames over any process group, as bytes


def _encoded(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    """The frame of a contiguous tensor: bytes on its device."""
    if not values.numel():
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    return torch.as_tensor(codec.encode(values.detach().reshape(-1)), device=values.device)


def _decoded(frame: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """The values of a frame, in a contiguous tensor."""
    if into.numel():
        decode(frame if frame.is_cuda else frame.numpy(), out=into.view(-1))
    return into


def _gather_frames(frame: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """Allgather frames."""
    size = dist.get_world_size(group)
    mine = torch.tensor([frame.numel()], device=frame.device)
    sizes = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(sizes, mine, group=group)
    counts = [int(n) for n in sizes]
    longest = max(counts)
    padded = torch.zeros(longest, dtype=torch.uint8, device=frame.device)
    padded[: frame.numel()] = frame
    rows = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(rows, padded, group=group)
    return [row[:n] for row, n in zip(rows, counts, strict=True)]


def _exchange_frames(frames: Sequence[torch.Tensor], group: Any) -> list[torch.Tensor]:
    """Send frame i to rank i; returns the frames of all ranks for this one."""
    sizes = torch.tensor([frame.numel() for frame in frames], device=frames[0].device)
    theirs = torch.empty_like(sizes)
    dist.all_to_all_single(theirs, sizes, group=group)
    counts = theirs.tolist()
    arrived = torch.empty(sum(counts), dtype=torch.uint8, device=frames[0].device)
    dist.all_to_all_single(arrived, torch.cat(list(frames)), counts, sizes.tolist(), group=group)
    return list(arrived.split(counts))

"""Compressed collectives over any process group, NCCL's and gloo's too: frames travel as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from compcoll.codecs import Codec, decode

__all__ = ["decoded", "encoded", "gather_frames", "swap_frames"]


def encoded(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    """The frame of a contiguous tensor: bytes on its device."""
    if not values.numel():
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    return torch.as_tensor(codec.encode(values.detach().reshape(-1)), device=values.device)


def decoded(frame: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """The values of a frame, in a contiguous tensor."""
    if into.numel():
        decode(frame if frame.is_cuda else frame.numpy(), out=into.view(-1))
    return into


def gather_frames(frame: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """The frames of all ranks."""
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


def swap_frames(frames: Sequence[torch.Tensor], group: Any) -> list[torch.Tensor]:
    """Frame i goes to rank i; what each rank has for this one."""
    sizes = torch.tensor([frame.numel() for frame in frames], device=frames[0].device)
    theirs = torch.empty_like(sizes)
    dist.all_to_all_single(theirs, sizes, group=group)
    counts = theirs.tolist()
    arrived = torch.empty(sum(counts), dtype=torch.uint8, device=frames[0].device)
    dist.all_to_all_single(arrived, torch.cat(list(frames)), counts, sizes.tolist(), group=group)
    return list(arrived.split(counts))

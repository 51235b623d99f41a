"""Sums and gathered blocks as frames, between the ranks of a process group of any backend.

The size of a ``bfp``, ``fp8``, ``int8``, ``int4`` or ``zfp`` frame follows from its number of values. All
ranks know it: frames lie in slots of this size, and one all-to-all or all-gather of bytes carries them. An
array that its codec refuses, one with an infinity for instance, fits no slot. Its rank leaves all its slots
void, which every peer sees, and the group sends the values as they are instead. Frames of other codecs follow
their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from compcoll.codecs import Codec, decode
from compcoll.codecs import codec as codec_of
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode_add
from compcoll.devices.arrays import host_view
from compcoll.frame import HEADER_NBYTES, inspect
from compcoll.torch.reductions import element_of

__all__ = ["Frames", "all_gather_single", "slot_nbytes"]

_KNOWN = frozenset(("bfp", "fp8", "int8", "int4", "raw", "zfp"))
_LOSSLESS = codec_of("lossless")
#: Kernels want frames at multiples of so many bytes.
_ALIGNMENT = 16
#: Its name from torch 2.13 on, and before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@lru_cache(maxsize=1024)
def slot_nbytes(codec: Codec, n: int, dtype: torch.dtype) -> int | None:
    """Bytes that a frame of ``n`` values takes at most; None where this depends on the values."""
    if codec.name not in _KNOWN or (not codec.lossless and not dtype.is_floating_point):
        return None
    frame = codec.encode(np.zeros(n, element_of(dtype)))
    # Another codec takes so few values that nothing is gained, and `raw` needs the most.
    known = inspect(frame).codec == codec.name
    nbytes = frame.size if known else HEADER_NBYTES + n * dtype.itemsize
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Frames:
    """Frames of one codec among the ranks of a group; all methods are collective.

    Parameters
    ----------
    codec : Codec
        A lossy one is for floating-point values; others go ``lossless``.
    group : ProcessGroup
    inside : Inside, optional
        Ranks that hand on to each other what each has gathered in its ``group``.

    Attributes
    ----------
    raw_nbytes, wire_nbytes : int
        Bytes without compression by the same algorithm, and bytes that this rank has sent.
    """

    def __init__(self, codec: Codec, group: dist.ProcessGroup, inside: Any = None):
        self.codec, self.group, self.inside = codec, group, inside
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.raw_nbytes = self.wire_nbytes = 0

    def reduce_scatter(self, values: torch.Tensor, residue: torch.Tensor | None = None) -> torch.Tensor:
        """Sum the ranks' rows of this rank.

        Parameters
        ----------
        values : torch.Tensor
            (size, n), contiguous; row r goes to rank r.
        residue : torch.Tensor, optional
            Like ``values``; takes the errors of what this rank sends.

        Returns
        -------
        torch.Tensor
            (n,), of at least 32 bits a value, added in the order of ranks.
        """
        total = torch.zeros_like(values[0], dtype=torch.promote_types(values.dtype, torch.float32))
        if not total.numel():
            return total
        errors = [None] * self.size if residue is None else list(residue)
        frames = [
            None if peer == self.rank else self._encoded(row, error)
            for peer, (row, error) in enumerate(zip(values, errors, strict=True))
        ]
        if residue is not None:
            residue[self.rank].zero_()
        slot = slot_nbytes(self.codec, total.numel(), values.dtype)
        rows: Sequence[torch.Tensor] | None
        if slot is None:
            rows = self._exchange(frames, values.device)
        else:
            given = _in_slots(frames, self.rank, slot, values.device)
            arrived = torch.empty_like(given)
            dist.all_to_all_single(arrived, given, group=self.group)
            self._count(slot * (self.size - 1))
            rows = None if _any_void(arrived) else list(arrived)
        self.raw_nbytes += values[0].nbytes * (self.size - 1)
        if rows is None:
            theirs = torch.empty_like(values)
            dist.all_to_all_single(theirs, values, group=self.group)
            self._count(values[0].nbytes * (self.size - 1))
            if residue is not None:
                residue.zero_()
            return torch.sum(theirs, 0, dtype=total.dtype)
        for peer, frame in enumerate(rows):
            if peer == self.rank:
                total += values[peer]
            else:
                decode_add(_bytes(frame), total)
        return total

    def start_all_gather(
        self, values: torch.Tensor, residue: torch.Tensor | None = None
    ) -> Callable[[], torch.Tensor]:
        """Begin to gather the ranks' values.

        Parameters
        ----------
        values : torch.Tensor
            (n,), contiguous.
        residue : torch.Tensor, optional
            Like ``values``; takes the error of what this rank sends.

        Returns
        -------
        callable
            Ends it, and returns the decoded values of all ranks, this one included, (size, n);
            with ``inside`` those that all its ranks have gathered, one after the other.
        """
        rows = values.new_empty(self.size, values.numel())
        if not values.numel():
            return lambda: self._gather_inside(rows)
        frame = self._encoded(values, residue)
        slot = slot_nbytes(self.codec, values.numel(), values.dtype)
        self.raw_nbytes += values.nbytes * (self.size - 1)
        if slot is None:
            _decode_all(self._gather(frame), rows)
            return lambda: self._gather_inside(rows)
        given = _in_slots([frame], None, slot, values.device)
        arrived = given.new_empty(self.size, slot)
        work: Any = all_gather_single(arrived.view(-1), given.view(-1), group=self.group, async_op=True)
        self._count(slot * (self.size - 1))

        def finish() -> torch.Tensor:
            work.wait()
            if _any_void(arrived):
                all_gather_single(rows.view(-1), values, group=self.group)
                self._count(values.nbytes * (self.size - 1))
                if residue is not None:
                    residue.zero_()
            slots = self._gather_inside(arrived)  # as frames, which are smaller, and show which are void
            if not _any_void(slots):
                whole = rows.new_empty(len(slots), values.numel())
                _decode_all(list(slots), whole)
                return whole
            if not _any_void(arrived):
                _decode_all(list(arrived), rows)
            return self._gather_inside(rows)

        return finish

    def _gather_inside(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks of ``inside``, one rank's after the other's."""
        return rows if self.inside is None else self.inside.all_gather(rows)

    def _count(self, nbytes: int) -> None:
        self.wire_nbytes += nbytes

    def _encoded(self, values: torch.Tensor, residue: torch.Tensor | None) -> torch.Tensor:
        """The frame of some values; ``residue`` takes its errors."""
        codec = self.codec if self.codec.lossless or values.is_floating_point() else _LOSSLESS
        values = values.detach()
        if values.is_cuda:
            torch.cuda.current_stream(values.device).synchronize()
            frame = torch.as_tensor(codec.encode(values), device=values.device)
            if residue is not None:
                decode(frame, out=residue)
        else:
            src = host_view(values)
            room = np.empty(HEADER_NBYTES + src.nbytes + SLACK, np.uint8)
            decoded = None if residue is None else host_view(residue)
            encoded, known = codec.reconstruct_into(src, room, decoded)
            if residue is not None and not known:
                decode(encoded, out=residue)
            frame = torch.from_numpy(encoded)
        if residue is not None:
            torch.sub(values, residue, out=residue)
            residue.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return frame

    # -- frames whose sizes depend on values

    def _exchange(self, frames: Sequence[torch.Tensor | None], device: torch.device) -> list[torch.Tensor]:
        """Send frame i to rank i; returns the frames of all ranks for this one."""
        empty = torch.empty(0, dtype=torch.uint8, device=device)
        given = [empty if frame is None else frame for frame in frames]
        sizes = torch.tensor([frame.numel() for frame in given], device=device)
        theirs = torch.empty_like(sizes)
        dist.all_to_all_single(theirs, sizes, group=self.group)
        counts = theirs.tolist()
        arrived = torch.empty(sum(counts), dtype=torch.uint8, device=device)
        dist.all_to_all_single(arrived, torch.cat(given), counts, sizes.tolist(), group=self.group)
        self._count(sum(frame.numel() for frame in given))
        return list(arrived.split(counts))

    def _gather(self, frame: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' frames, padded to the longest one on the way."""
        sizes = torch.empty(self.size, dtype=torch.int64, device=frame.device)
        all_gather_single(sizes, torch.tensor([frame.numel()], device=frame.device), group=self.group)
        counts = sizes.tolist()
        given = torch.zeros(max(counts), dtype=torch.uint8, device=frame.device)
        given[: frame.numel()] = frame
        rows = torch.empty(self.size, given.numel(), dtype=torch.uint8, device=frame.device)
        all_gather_single(rows.view(-1), given, group=self.group)
        self._count(given.numel() * (self.size - 1))
        return [row[:n] for row, n in zip(rows, counts, strict=True)]


def _in_slots(
    frames: Sequence[torch.Tensor | None], own: int | None, slot: int, device: torch.device
) -> torch.Tensor:
    """Frames at the beginning of a slot each, none for rank ``own``; void where one of them does not fit."""
    slots = torch.zeros(len(frames), slot, dtype=torch.uint8, device=device)
    if any(frame is not None and frame.numel() > slot for frame in frames):
        return slots
    for row, frame in zip(slots, frames, strict=True):
        if frame is not None:
            row[: frame.numel()] = frame
    if own is not None:
        slots[own, 0] = 1
    return slots


def _any_void(slots: torch.Tensor) -> bool:
    return bool((slots[:, 0] == 0).any())


def _bytes(frame: torch.Tensor) -> Any:
    return frame if frame.is_cuda else frame.numpy()


def _decode_all(frames: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    for frame, row in zip(frames, out, strict=True):
        decode(_bytes(frame), out=row)

"""Sums and copies in two stages, inside a node and among nodes, in groups of any backend.

At one level every rank is a node. Among nodes values travel as frames. The size of a ``bfp``, ``fp8``,
``int8``, ``int4`` or ``zfp`` frame follows from its number of values. All ranks know it: frames lie in slots
of this size, and one all-to-all or all-gather of bytes carries them. An array that its codec refuses, one
with an infinity for instance, fits no slot. Its rank leaves all its slots void, which every peer sees, and
the ranks repeat the exchange with slots for the longest frame. Other codecs' frames have such slots at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from compcoll.codecs import Codec, decode
from compcoll.codecs import codec as codec_of
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode_add
from compcoll.devices.arrays import host_view
from compcoll.frame import HEADER_NBYTES
from compcoll.torch.feedback import add_errors, restore
from compcoll.torch.lanes import Lane, Stages, all_gather_single, connected
from compcoll.torch.reductions import element_of

__all__ = ["Compression"]

_LOSSLESS = codec_of("lossless")
#: Kernels want frames at multiples of so many bytes.
_ALIGNMENT = 16
#: Values that share a scale, in the codecs that have one.
_BLOCK = 64


class Compression:
    """Codec, levels and errors of quantization, which all objects here have: see `ErrorFeedback`."""

    #: Lanes of the group that it uses, the first and the last way.
    _lanes: tuple[str, ...] = ("gradients", "averages")
    levels: int | None = None
    reason = ""

    def __init__(
        self,
        codec: Any,
        group: dist.ProcessGroup | None = None,
        *,
        feeds_back: bool = False,
        levels: int | None = None,
        nodes: Any = None,
    ):
        schedule = codec if isinstance(codec, Mapping) else {0: codec}
        if 0 not in schedule or not all(isinstance(step, int) and step >= 0 for step in schedule):
            raise ValueError(f"the steps {list(schedule)} of a schedule are not whole numbers from 0 on")
        self.schedule = {step: codec_of(schedule[step]) for step in sorted(schedule)}
        for one in self.schedule.values():
            if one.has_base:
                raise ValueError(f"{one.spec} codes differences between transfers, which hooks do not keep")
        self.group, self.feeds_back, self.step = group, feeds_back, 0
        self._wanted, self._nodes = levels, nodes
        self._errors: dict[str, torch.Tensor] = {}
        #: The group's ranks by their places, node by node in each place.
        self._order: list[int] = []
        self._frames: list[_Frames] = []

    @property
    def codec(self) -> Codec:
        """The codec of the present step."""
        return self.schedule[max(first for first in self.schedule if first <= max(self.step - 1, 0))]

    @property
    def raw_nbytes(self) -> int:
        return sum(frames.raw_nbytes for frames in self._frames)

    @property
    def wire_nbytes(self) -> int:
        return sum(frames.wire_nbytes for frames in self._frames)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and this rank's errors, which differ from rank to rank."""
        errors = {name: error.clone() for name, error in self._errors.items()}
        return {"step": self.step, "rank": dist.get_rank(), "errors": errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; errors of another rank, or of another size, are left out."""
        self.step = int(state["step"])
        errors = state["errors"] if state.get("rank", dist.get_rank()) == dist.get_rank() else {}
        self._errors = {name: error.clone() for name, error in errors.items()}

    def forget(self) -> None:
        """Drop this rank's errors, as of a step that was not taken, between two steps; not collective."""
        self._errors.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Settings, step and errors; a copy finds groups and threads in its first call."""
        if self.group is not None and self.group is not dist.group.WORLD:
            raise ValueError(f"{type(self).__name__} of another group than the default one cannot be copied")
        return {**vars(self), "group": None, "_frames": []}

    def _settings(self) -> tuple:
        """Settings that have to be equal on all ranks."""
        specs = {step: codec.spec for step, codec in self.schedule.items()}
        return type(self).__name__, str(specs), self.feeds_back, self.step

    def _connect(self, group: dist.ProcessGroup | None = None) -> int:
        """The number of ranks; the first call, which is collective, finds their places and the lanes."""
        group = group or self.group or dist.group.WORLD
        assert group is not None
        if not self._frames:
            placement, lanes = connected(group, self._nodes, self._wanted, self._settings(), self._lanes)
            self.group, self._frames = group, [_Frames(lane) for lane in lanes]
            self.levels, self.reason, self._order = placement.levels, placement.reason, placement.order
        elif group is not self.group:
            raise ValueError(f"{type(self).__name__} was called with two groups: each needs an object")
        return len(self._order)

    def _sum_inside(self, rows: torch.Tensor) -> torch.Tensor:
        """The node's sums, (nodes, n), of its ranks' rows, (size, n), which are in the order of places."""
        inside = self._frames[0].lane.inside
        return rows if inside is None else inside.reduce_scatter(rows)

    def _reduce(self, sums: torch.Tensor, codec: Codec, widths: Mapping[str, int]) -> torch.Tensor:
        """The sum over all ranks of this rank's row, from what `_sum_inside` has given, which changes."""
        residue = self._residue(sums, codec, widths, "gradients")
        total, is_finite = self._frames[0].reduce_scatter(sums, codec, residue)
        self._forget_unless(is_finite, widths)
        return total.to(sums.dtype)

    def _gather(self, mine: torch.Tensor, codec: Codec, widths: Mapping[str, int]) -> torch.Tensor:
        """All ranks' rows in the order of places; with feedback this rank's own changes."""
        rows, is_finite = self._frames[-1].all_gather(mine, codec, self._residue(mine, codec, widths, "sum"))
        self._forget_unless(is_finite, widths)
        return rows

    def _forget_unless(self, is_finite: bool, names: Iterable[str]) -> None:
        """Drop the errors of these names where their values on some rank were not finite."""
        if not is_finite:
            for name in names:
                for kind in ("gradients", "sum"):
                    self._errors.pop(f"{name}/{kind}", None)

    def _residue(
        self, values: torch.Tensor, codec: Codec, widths: Mapping[str, int], kind: str
    ) -> torch.Tensor | None:
        """The last errors of values, which have so many columns of a name, where the next ones are kept.

        Each name has its own: buckets of DDP hold other parameters after the first step.
        """
        names = [f"{name}/{kind}" for name in widths]
        if not self.feeds_back or codec.lossless:
            for name in names:
                self._errors.pop(name, None)
            return None
        pieces = [self._errors.get(name) for name in names]
        residue = _in_one(pieces, values, list(widths.values()))
        if residue is not None:
            return residue
        residue = torch.zeros_like(values)
        for name, last, errors in zip(names, pieces, residue.split(list(widths.values()), -1), strict=True):
            if last is not None and last.shape == errors.shape and last.dtype == errors.dtype:
                errors.copy_(last)
            self._errors[name] = errors
        return residue

    def _average(self, named: Mapping[Codec, Mapping[str, torch.Tensor]], whole: Any = None) -> Stages:
        """Stages that average tensors in place, by codec and name; the last one gives ``whole``."""
        size = self._connect()
        parts = [
            (codec, list(tensors.values()), {name: _width(one, size) for name, one in tensors.items()})
            for codec, tensors in named.items()
        ]

        def add(_: None) -> list[torch.Tensor]:
            return [self._sum_inside(_rows_of(tensors, widths, size)) for _, tensors, widths in parts]

        def reduce(sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            given = zip(parts, sums, strict=True)
            return [self._reduce(rows, codec, widths) for (codec, _, widths), rows in given]

        def gather(totals: Sequence[torch.Tensor]) -> Any:
            for (codec, tensors, widths), mine in zip(parts, totals, strict=True):
                _write_rows(self._gather(mine, codec, widths), tensors, widths)
            return whole

        return add, reduce, gather


# -- tensors as rows, one for each rank


def _in_one(
    pieces: Sequence[torch.Tensor | None], like: torch.Tensor, widths: Sequence[int]
) -> torch.Tensor | None:
    """The tensor whose columns are these, like another one in its shape, type and device; None if none is."""
    first, at = pieces[0], 0
    if first is None or first.untyped_storage().nbytes() != like.nbytes:
        return None
    place = first.untyped_storage().data_ptr()
    for piece, width in zip(pieces, widths, strict=True):
        if (
            piece is None
            or piece.untyped_storage().data_ptr() != place
            or (piece.storage_offset(), piece.shape) != (at, (*like.shape[:-1], width))
            or (piece.dtype, piece.device) != (like.dtype, like.device)
        ):
            return None
        at += width
    return first.as_strided(like.shape, like.stride())


def _width(tensor: torch.Tensor, size: int) -> int:
    """A tensor's columns in rows: whole blocks, so that its frames do not depend on the tensors beside it."""
    return -(-tensor.numel() // (size * _BLOCK)) * _BLOCK


def _rows_of(tensors: Sequence[torch.Tensor], widths: Mapping[str, int], size: int) -> torch.Tensor:
    """Tensors divided by the number of ranks, (size, n): each fills its columns, with zeros at the end."""
    rows = tensors[0].new_empty(size, sum(widths.values()))
    for tensor, columns in zip(tensors, rows.split(list(widths.values()), 1), strict=True):
        columns[tensor.numel() // max(columns.shape[1], 1) :] = 0
        for values, place in _places(tensor.reshape(-1), columns):
            torch.div(values, size, out=place)
    return rows


def _write_rows(rows: torch.Tensor, tensors: Sequence[torch.Tensor], widths: Mapping[str, int]) -> None:
    """Copy rows to the tensors that `_rows_of` took."""
    for tensor, columns in zip(tensors, rows.split(list(widths.values()), 1), strict=True):
        flat = tensor.reshape(-1)  # a copy where the tensor has gaps
        for values, place in _places(flat, columns):
            values.copy_(place)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))


def _places(flat: torch.Tensor, columns: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Values that fill rows of their columns, and the rest, each with its place."""
    width = columns.shape[1]
    n_rows, rest = divmod(flat.numel(), width) if width else (0, 0)
    if n_rows:
        yield flat[: n_rows * width].view(n_rows, width), columns[:n_rows]
    if rest:
        yield flat[n_rows * width :], columns[n_rows, :rest]


# -- frames among nodes


def _slot_nbytes(codec: Codec, n: int, dtype: torch.dtype) -> int | None:
    """Bytes that a frame of ``n`` values takes at most; None where this depends on the values."""
    element = element_of(dtype)
    known = codec.payload_nbytes(n, element)
    # Another codec takes so few values that nothing is gained, and `raw` needs the most.
    return None if known is None else HEADER_NBYTES + min(known, n * element.itemsize)


class _Frames:
    """A lane of an object's frames among nodes, and its bytes; all methods are collective.

    Lossy codecs are for floating-point values; others go ``lossless``.
    """

    def __init__(self, lane: Lane):
        self.lane, self.group = lane, lane.between
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.raw_nbytes = self.wire_nbytes = 0

    def reduce_scatter(
        self, values: torch.Tensor, codec: Codec, residue: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, bool]:
        """Sum the nodes' rows of this one, (nodes, n), contiguous: (n,), of at least 32 bits a value.

        Sums are in the order of nodes, and take this rank's own row as it is. ``residue``, like ``values``,
        has the last errors of the others, which are added, and takes theirs. False where some node's rows
        were not finite.
        """
        total = torch.zeros_like(values[0], dtype=torch.promote_types(values.dtype, torch.float32))
        if not total.numel():
            return total, True
        own = torch.ones(1, dtype=torch.uint8, device=values.device)  # it only fills its slot
        frames = [
            own if node == self.rank else _encoded(row, codec, None if residue is None else residue[node])
            for node, row in enumerate(values)
        ]
        if residue is not None:
            residue[self.rank] = 0

        def exchange(given: torch.Tensor) -> torch.Tensor:
            arrived = torch.empty_like(given)
            dist.all_to_all_single(arrived, given, group=self.group)
            self.wire_nbytes += given.shape[1] * (self.size - 1)
            return arrived

        slot = _slot_nbytes(codec, total.numel(), values.dtype)
        slots, is_finite = _exchanged(frames, slot, exchange, [self.group], values)
        for node, frame in enumerate(slots):
            if node == self.rank:
                total += values[node]
            else:
                decode_add(frame, total)
        self.raw_nbytes += values[0].nbytes * (self.size - 1)
        return total, is_finite

    def all_gather(
        self, values: torch.Tensor, codec: Codec, residue: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, bool]:
        """Gather all ranks' values, (n,), contiguous: (size, n), decoded, in the order of places.

        Ranks of a node hand on to each other the frames that they have got. ``residue``, like ``values``,
        has this rank's last errors, which are added, and takes its errors. False where some rank's values
        were not finite.
        """
        inside = self.lane.inside
        if not values.numel():
            return values.new_empty(self.size * (inside.size if inside else 1), 0), True

        def exchange(given: torch.Tensor) -> torch.Tensor:
            arrived = given.new_empty(self.size, given.shape[1])
            all_gather_single(arrived.view(-1), given.view(-1), group=self.group)
            self.wire_nbytes += given.nbytes * (self.size - 1)
            return arrived if inside is None else inside.all_gather(arrived)

        frame, slot = _encoded(values, codec, residue), _slot_nbytes(codec, values.numel(), values.dtype)
        groups = [self.group] if inside is None else [self.group, inside.group]
        slots, is_finite = _exchanged([frame], slot, exchange, groups, values)
        self.raw_nbytes += values.nbytes * (self.size - 1)
        rows = values.new_empty(len(slots), values.numel())
        for frame, row in zip(slots, rows, strict=True):
            decode(frame, out=row)
        return rows, is_finite


def _encoded(values: torch.Tensor, codec: Codec, residue: torch.Tensor | None) -> torch.Tensor:
    """The frame of some values, to which the errors in ``residue`` are added; it takes the next ones."""
    codec = codec if codec.lossless or values.is_floating_point() else _LOSSLESS
    values = values.detach()
    waiting = [] if residue is None else add_errors(values, residue, codec)
    if values.is_cuda:
        torch.cuda.current_stream(values.device).synchronize()
        frame = torch.as_tensor(codec.encode(values), device=values.device)
        if residue is not None:
            decode(frame, out=residue)
    else:
        src = host_view(values)
        room = np.empty(HEADER_NBYTES + src.nbytes + SLACK, np.uint8)
        if residue is None:
            encoded = codec.encode(src, room)
        else:
            encoded, known = codec.coding(src.dtype).reconstruct(src, room, host_view(residue))
            if not known:
                decode(encoded, out=residue)
        frame = torch.from_numpy(encoded)
    if residue is not None:
        torch.sub(values, residue, out=residue)
        residue.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        restore(waiting)
    return frame


def _exchanged(
    frames: Sequence[torch.Tensor],
    slot: int | None,
    exchange: Callable[[torch.Tensor], torch.Tensor],
    groups: Sequence[dist.ProcessGroup],
    values: torch.Tensor,
) -> tuple[Any, bool]:
    """Exchange slots of a known size, or of that of the longest frame in the groups.

    False where some rank's values are not finite, on all ranks of the groups. Codecs with slots of a known
    size refuse such values, so that ranks ask each other only where there may be some.
    """
    slots, is_finite = None if slot is None else exchange(_in_slots(frames, slot)), True
    if slots is None or bool((slots[:, 0] == 0).any()):
        longest = torch.tensor([max(frame.numel() for frame in frames), 0], device=frames[0].device)
        if values.is_floating_point():  # a sum is less work than a look at each value
            wide = torch.promote_types(values.dtype, torch.float32)
            longest[1] = ~values.sum(dtype=wide).isfinite()
        for group in groups:
            dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
        nbytes, is_not = longest.tolist()
        slots, is_finite = exchange(_in_slots(frames, nbytes)), not is_not
    return slots if slots.is_cuda else slots.numpy(), is_finite


def _in_slots(frames: Sequence[torch.Tensor], nbytes: int) -> torch.Tensor:
    """Frames at the beginning of a slot each; all void, which no frame is, where one of them does not fit."""
    nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    slots = torch.zeros(len(frames), nbytes, dtype=torch.uint8, device=frames[0].device)
    if all(frame.numel() <= nbytes for frame in frames):
        for row, frame in zip(slots, frames, strict=True):
            row[: frame.numel()] = frame
    return slots

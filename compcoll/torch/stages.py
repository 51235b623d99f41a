"""Sums and copies in two stages, inside a node and among nodes, in groups of any backend.

At one level every rank is a node. Among nodes values travel as frames. The size of a ``bfp``, ``fp8``,
``int8``, ``int4`` or ``zfp`` frame follows from its number of values. All ranks know it: frames lie in slots
of this size, and one all-to-all or all-gather of bytes carries them. An array that its codec refuses, one
with an infinity for instance, fits no slot. Its rank leaves all its slots void, which every peer sees, and
the ranks repeat the exchange with slots for the longest frame. Other codecs' frames have such slots at once.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from compcoll.codecs import Codec, decode
from compcoll.codecs import codec as codec_of
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import decode_add
from compcoll.core import environment
from compcoll.devices.arrays import host_view
from compcoll.frame import HEADER_NBYTES, inspect
from compcoll.torch.reductions import element_of

__all__ = ["Compression", "Inside", "Lane", "Stages"]

_KNOWN = frozenset(("bfp", "fp8", "int8", "int4", "raw", "zfp"))
_LOSSLESS = codec_of("lossless")
#: Kernels want frames at multiples of so many bytes.
_ALIGNMENT = 16
#: Values that share a scale, in the codecs that have one.
_BLOCK = 64
#: Where ranks of a node share memory.
_FOLDER = "/dev/shm"
#: Their names from torch 2.13 on, and before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_process_group_name = c10d._process_group_name

Stages = Sequence[Callable[[Any], Any]]


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
            placement, lanes = _connected(group, self._nodes, self._wanted, self._settings(), self._lanes)
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
        return self._frames[0].reduce_scatter(sums, codec, residue).to(sums.dtype)

    def _gather(self, mine: torch.Tensor, codec: Codec, widths: Mapping[str, int]) -> torch.Tensor:
        """All ranks' rows in the order of places; with feedback this rank's own changes."""
        return self._frames[-1].all_gather(mine, codec, self._residue(mine, codec, widths, "sum"))

    def _residue(
        self, values: torch.Tensor, codec: Codec, widths: Mapping[str, int], kind: str
    ) -> torch.Tensor | None:
        """Add the last errors to values, which have so many columns of a name; returns where theirs are kept.

        Each name has its own: buckets of DDP hold other parameters after the first step.
        """
        if not self.feeds_back or codec.lossless:
            return None
        residue, sizes = torch.empty_like(values), list(widths.values())
        for name, some, errors in zip(widths, values.split(sizes, -1), residue.split(sizes, -1), strict=True):
            last = self._errors.get(f"{name}/{kind}")
            if last is not None and last.shape == some.shape and last.dtype == some.dtype:
                some += last.to(some.device)
            self._errors[f"{name}/{kind}"] = errors
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


@lru_cache(maxsize=1024)
def _slot_nbytes(codec: Codec, n: int, dtype: torch.dtype) -> int | None:
    """Bytes that a frame of ``n`` values takes at most; None where this depends on the values."""
    if codec.name not in _KNOWN or (not codec.lossless and not dtype.is_floating_point):
        return None
    frame = codec.encode(np.zeros(n, element_of(dtype)))
    # Another codec takes so few values that nothing is gained, and `raw` needs the most.
    known = inspect(frame).codec == codec.name
    return frame.size if known else HEADER_NBYTES + n * dtype.itemsize


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
    ) -> torch.Tensor:
        """Sum the nodes' rows of this one, (nodes, n), contiguous: (n,), of at least 32 bits a value.

        Sums are in the order of nodes, and take this rank's own row as it is. ``residue``, like ``values``,
        takes the errors of the others.
        """
        total = torch.zeros_like(values[0], dtype=torch.promote_types(values.dtype, torch.float32))
        if not total.numel():
            return total
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
        for node, frame in enumerate(_exchanged(frames, slot, exchange, [self.group])):
            if node == self.rank:
                total += values[node]
            else:
                decode_add(frame, total)
        self.raw_nbytes += values[0].nbytes * (self.size - 1)
        return total

    def all_gather(
        self, values: torch.Tensor, codec: Codec, residue: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Gather all ranks' values, (n,), contiguous: (size, n), decoded, in the order of places.

        Ranks of a node hand on to each other the frames that they have got. ``residue``, like ``values``,
        takes this rank's errors.
        """
        inside = self.lane.inside
        if not values.numel():
            return values.new_empty(self.size * (inside.size if inside else 1), 0)

        def exchange(given: torch.Tensor) -> torch.Tensor:
            arrived = given.new_empty(self.size, given.shape[1])
            all_gather_single(arrived.view(-1), given.view(-1), group=self.group)
            self.wire_nbytes += given.nbytes * (self.size - 1)
            return arrived if inside is None else inside.all_gather(arrived)

        frame, slot = _encoded(values, codec, residue), _slot_nbytes(codec, values.numel(), values.dtype)
        groups = [self.group] if inside is None else [self.group, inside.group]
        slots = _exchanged([frame], slot, exchange, groups)
        self.raw_nbytes += values.nbytes * (self.size - 1)
        rows = values.new_empty(len(slots), values.numel())
        for frame, row in zip(slots, rows, strict=True):
            decode(frame, out=row)
        return rows


def _encoded(values: torch.Tensor, codec: Codec, residue: torch.Tensor | None) -> torch.Tensor:
    """The frame of some values; ``residue`` takes its errors."""
    codec = codec if codec.lossless or values.is_floating_point() else _LOSSLESS
    values = values.detach()
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
    return frame


def _exchanged(
    frames: Sequence[torch.Tensor],
    slot: int | None,
    exchange: Callable[[torch.Tensor], torch.Tensor],
    groups: Sequence[dist.ProcessGroup],
) -> Any:
    """Exchange slots of a known size, or of that of the longest frame in the groups."""
    slots = None if slot is None else exchange(_in_slots(frames, slot))
    if slots is None or bool((slots[:, 0] == 0).any()):
        longest = torch.tensor([max(frame.numel() for frame in frames)], device=frames[0].device)
        for group in groups:
            dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
        slots = exchange(_in_slots(frames, int(longest)))
    return slots if slots.is_cuda else slots.numpy()


def _in_slots(frames: Sequence[torch.Tensor], nbytes: int) -> torch.Tensor:
    """Frames at the beginning of a slot each; all void, which no frame is, where one of them does not fit."""
    nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    slots = torch.zeros(len(frames), nbytes, dtype=torch.uint8, device=frames[0].device)
    if all(frame.numel() <= nbytes for frame in frames):
        for row, frame in zip(slots, frames, strict=True):
            row[: frame.numel()] = frame
    return slots


# -- sums and copies inside a node


class Inside:
    """The ranks of one node; all methods are collective, and called in one order by one thread of each rank.

    Tensors on the host go through memory that the ranks share, where they can share it: each rank writes its
    block once, and peers read it there. CUDA tensors, and ranks in containers of their own, use the group.
    """

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._blocks: list[torch.Tensor] | None = []
        self._turn = 0

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' rows of this one, (size * m, n), contiguous: (m, n), added in the order of ranks."""
        n_rows = len(rows) // self.size
        if rows.is_cuda:
            sums = torch.empty_like(rows[:n_rows])
            _reduce_scatter_single(sums.view(-1), rows.view(-1), group=self.group)
            return sums
        mine = slice(self.rank * n_rows, (self.rank + 1) * n_rows)
        blocks = self._shared(rows, mine)
        if blocks is None:
            theirs = torch.empty_like(rows)  # gloo's own reduce-scatter is an allreduce
            dist.all_to_all_single(theirs.view(-1), rows.view(-1), group=self.group)
            blocks = list(theirs.split(n_rows))
        else:
            blocks = [rows[mine] if rank == self.rank else block[mine] for rank, block in enumerate(blocks)]
        first, second, *others = blocks  # there are two ranks at least
        total = first.to(torch.promote_types(rows.dtype, torch.float32)) + second
        for block in others:
            total += block
        return total.to(rows.dtype)

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the ranks' rows, (m, n) of each: (size * m, n)."""
        blocks = None if rows.is_cuda else self._shared(rows)
        if blocks is not None:
            return torch.cat(list(blocks))
        whole = rows.new_empty(self.size * len(rows), rows.shape[1])
        all_gather_single(whole.view(-1), rows.view(-1), group=self.group)
        return whole

    def _shared(self, rows: torch.Tensor, but: slice | None = None) -> Sequence[torch.Tensor] | None:
        """All ranks' rows in shared memory, without the rows ``but`` of this one's; None where it has none.

        There are two halves, taken in turns: peers may still read one while the other is written.
        """
        if self._blocks is None or not rows.numel():
            return None
        if not self._blocks or self._blocks[0].shape[1] < rows.nbytes:
            self._blocks = self._map(rows.nbytes)
            if self._blocks is None:
                return None
        self._turn = 1 - self._turn
        blocks = [block[self._turn, : rows.nbytes].view(rows.dtype).view_as(rows) for block in self._blocks]
        for part in [slice(None)] if but is None else [slice(but.start), slice(but.stop, None)]:
            blocks[self.rank][part] = rows[part]
        dist.all_reduce(torch.zeros(1), group=self.group)  # a barrier, for any backend of the host
        return blocks

    def _map(self, nbytes: int) -> list[torch.Tensor] | None:
        """Two halves of so many bytes for each rank, of files that have no names any more."""
        nbytes = -(-nbytes // 4096) * 4096
        path, blocks = "", []
        with ExitStack() as files:
            with suppress(OSError):
                file = files.enter_context(tempfile.NamedTemporaryFile(prefix="compcoll-", dir=_FOLDER))
                os.posix_fallocate(file.fileno(), 0, 2 * nbytes)
                path = file.name
            paths: list[str] = [""] * self.size
            dist.all_gather_object(paths, path, group=self.group)
            with suppress(OSError, RuntimeError):
                blocks = [_mapped(one, 2 * nbytes).view(2, nbytes) for one in paths]
            all_have = torch.tensor([float(bool(blocks))])
            dist.all_reduce(all_have, dist.ReduceOp.MIN, group=self.group)
        return blocks if all_have.item() else None


def _mapped(path: str, nbytes: int) -> torch.Tensor:
    """A file in memory; torch would make one where there is none, as in another rank's container."""
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    return torch.from_file(path, True, nbytes, dtype=torch.uint8)


# -- places of ranks, groups of these, and threads


class Placement(NamedTuple):
    """The ranks of a group at one or two levels."""

    levels: int
    #: Why there is one level; empty where there are two.
    reason: str
    #: The group's ranks by their places, node by node in each place.
    order: list[int]
    #: The global ranks of this node, and those of this rank's place on every node.
    inside: list[int]
    between: list[int]


class Lane:
    """Groups of one direction, and threads, which take tensors in their order; made collectively.

    One thread adds up inside nodes, one among them, and one gathers: waiting for collectives in threads keeps
    the order of calls the same on all ranks. The first error of a stage ends all that is on its way, and what
    comes later.
    """

    def __init__(self, group: dist.ProcessGroup, placement: Placement, name: str):
        self.between = _new_group(placement.between, group, f"{name}-between")
        inside = placement.levels == 2 and _new_group(placement.inside, group, f"{name}-inside")
        self.inside = Inside(inside) if inside else None
        self.error: BaseException | None = None
        self._threads = [ThreadPoolExecutor(1, f"compcoll-{name}") for name in ("add", "reduce", "gather")]
        self._streams: dict[tuple[int, torch.device], Any] = {}

    def submit(self, stages: Stages, device: torch.device) -> torch.futures.Future[Any]:
        """The future of the last stage's value, or of an error; each stage is given the value before."""
        cuda = device.type == "cuda"
        inference = torch.is_inference_mode_enabled()  # a thread has a mode of its own
        result: torch.futures.Future = torch.futures.Future(devices=[device] if cuda else [])

        def run(stage: int, value: Any, after: Any) -> None:
            try:
                if self.error is not None:
                    raise RuntimeError(f"an earlier exchange failed: {self.error}") from self.error
                with torch.inference_mode(inference), torch.no_grad(), self._stream(stage, device, after):
                    given, value = value, stages[stage](value)
                    if cuda:  # of another stream, which must not write to its memory meanwhile
                        for tensor in given or ():
                            tensor.record_stream(torch.cuda.current_stream(device))
                    event = torch.cuda.current_stream(device).record_event() if cuda else None
                    if stage + 1 == len(stages):
                        result.set_result(value)
                    else:
                        self._threads[stage + 1].submit(run, stage + 1, value, event)
            except BaseException as error:
                self.error = self.error or error
                result.set_result(error)

        before = torch.cuda.current_stream(device).record_event() if cuda else None
        self._threads[0].submit(run, 0, None, before)
        return result.then(_value_or_raise)

    def _stream(self, stage: int, device: torch.device, after: Any) -> Any:
        """A context in whose stream of its own work comes after an event."""
        if device.type != "cuda":
            return nullcontext()
        stream = self._streams.setdefault((stage, device), torch.cuda.Stream(device))
        stream.wait_event(after)
        return torch.cuda.stream(stream)


def _value_or_raise(future: torch.futures.Future) -> Any:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


@dataclass
class _Shared:
    """Lanes that all objects of a group share, and after it one of the same ranks, backends and time-out."""

    owner: str
    kind: tuple
    #: The levels, and the order of ranks.
    places: tuple
    lanes: dict[str, Lane]

    def serves(self, group: dist.ProcessGroup) -> bool:
        """Whether they are a group's own, or a destroyed one's; where one failed they are of no use."""
        names = c10d._world.pg_names
        is_free = self.owner == names[group] or self.owner not in names.values()
        return is_free and self.kind == _kind(group) and not any(lane.error for lane in self.lanes.values())


#: What the groups beside a default group share, by a key that all ranks of a group know.
_shared_of: WeakKeyDictionary[Any, dict[str, _Shared]] = WeakKeyDictionary()


def _connected(
    group: dist.ProcessGroup, nodes: Any, levels: int | None, settings: Any, lanes: Sequence[str]
) -> tuple[Placement, list[Lane]]:
    """The places of a group's ranks, and its lanes of these names, made where it has none; collective.

    ValueError on all ranks, where they differ in ``settings``, or one was given bad ``nodes`` or ``levels``.
    """
    node, problem = None, ""
    try:
        node = _own_node(group, nodes)
    except ValueError as error:
        problem = str(error)
    if levels not in (None, 1, 2):
        problem = f"levels = {levels!r} is not 1, 2 or None"
    known = _shared_of.setdefault(dist.group.WORLD, {})
    usable = {key: set(one.lanes) for key, one in known.items() if one.serves(group)}
    found: list[Any] = [None] * dist.get_world_size(group)
    mine = node, problem, (levels, settings), secrets.token_hex(8), usable
    dist.all_gather_object(found, mine, group=group)
    all_nodes, problems, all_settings, names, all_usable = zip(*found, strict=True)
    for rank, text in enumerate(problems):
        if text:
            raise ValueError(f"rank {rank}: {text}")
    for rank, theirs in enumerate(all_settings):
        if theirs != all_settings[0]:
            raise ValueError(f"ranks differ in settings: rank 0 has {all_settings[0]}, rank {rank} {theirs}")
    placement = _placed(group, all_nodes, levels)
    return placement, _shared_lanes(group, placement, lanes, names[0], all_usable)


def _shared_lanes(
    group: dist.ProcessGroup,
    placement: Placement,
    wanted: Sequence[str],
    name: str,
    all_usable: Sequence[Mapping[str, set[str]]],
) -> list[Lane]:
    """Lanes of a placement: of those that all ranks can use the group's own first, and new ones by a name."""
    known, owner = _shared_of[dist.group.WORLD], c10d._world.pg_names[group]
    places = placement.levels, *placement.order
    common = [key for key in set.intersection(*map(set, all_usable)) if known[key].places == places]
    key = min(common, key=lambda key: (known[key].owner != owner, key), default=name)
    there = set.intersection(*(usable.get(key, set()) for usable in all_usable))
    made = {lane: known[key].lanes[lane] for lane in there}
    made |= {lane: Lane(group, placement, f"{name}-{lane}") for lane in wanted if lane not in there}
    for other in [one for one in known if (known[one].owner, known[one].places) == (owner, places)]:
        del known[other]
    known[key] = _Shared(owner, _kind(group), places, made)
    return [made[lane] for lane in wanted]


def _placed(group: dist.ProcessGroup, nodes: Sequence[Any], levels: int | None) -> Placement:
    ranks, own, reason = dist.get_process_group_ranks(group), dist.get_rank(group), ""
    by_node: dict[Any, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    rows = list(by_node.values())
    least, most = min(map(len, rows)), max(map(len, rows))
    if levels == 1:
        reason = "levels=1"
    elif len(rows) == 1:
        reason = "all ranks are on one node"
    elif most == 1:
        reason = "every node has one rank"
    elif least != most:
        reason = f"nodes have {least} to {most} ranks, and two levels need as many on each"
    if reason:
        rows = [[rank] for rank in range(len(ranks))]
    if reason and levels == 2 and own == 0:
        warnings.warn(f"levels=2, but there is one level: {reason}", stacklevel=2)
    order = [rank for place in zip(*rows, strict=True) for rank in place]
    inside = next(row for row in rows if own in row)
    between = [ranks[row[inside.index(own)]] for row in rows]
    return Placement(1 if reason else 2, reason, order, [ranks[rank] for rank in inside], between)


def _own_node(group: dist.ProcessGroup, nodes: Any) -> Any:
    size = dist.get_world_size(group)
    if isinstance(nodes, DeviceMesh):
        place = nodes.get_coordinate()
        if nodes.ndim != 2 or nodes.size() != size or place is None:
            raise ValueError(
                f"nodes: a mesh of shape {tuple(nodes.shape)} is not one of (node, rank) for {size} ranks"
            )
        return place[0]
    if nodes is not None:
        if len(nodes) != size:
            raise ValueError(f"nodes has {len(nodes)} entries for {size} ranks")
        return nodes[dist.get_rank(group)]
    declared = environment.nodes(dist.get_world_size())
    return socket.gethostname() if declared is None else declared[dist.get_rank()]


def _kind(group: dist.ProcessGroup) -> tuple:
    """What two groups need to have in common to share lanes one after the other."""
    return tuple(dist.get_process_group_ranks(group)), dist.get_backend_config(group), _timeout(group)


def _timeout(group: Any) -> timedelta | None:
    timeout = None
    for device in group._device_types:
        with suppress(AttributeError, RuntimeError):
            backend = group._get_backend(device)
            core = getattr(backend, "core", None)  # of our own, whose time-out may have been changed
            timeout = backend.options._timeout if core is None else timedelta(seconds=core.timeout)
    return timeout


def _new_group(ranks: Sequence[int], like: dist.ProcessGroup, name: str) -> dist.ProcessGroup:
    """A group of a group's backends and time-out, of its ranks or some of them.

    torch would name it by the number of groups that a rank has: ranks may differ in it, and it comes again
    where groups are destroyed.
    """

    def give_name(ranks: Any, use_hashed_name: Any) -> Any:
        c10d._process_group_name = _process_group_name
        return f"{name}-{ranks[0]}"

    c10d._process_group_name = give_name
    try:
        made: Any = dist.new_group(  # whose type has a number for ranks that are not in it
            list(ranks),
            _timeout(like),
            dist.get_backend_config(like),
            use_local_synchronization=True,
            group_desc="compcoll",
        )
    finally:
        c10d._process_group_name = _process_group_name
    return made

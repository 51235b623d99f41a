"""Where sums and copies beside a process group run: nodes and their memory, groups, threads and streams."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from compcoll.core import environment

__all__ = ["Inside", "Lane", "Placement", "Stages", "all_gather_single", "connected"]

#: Where ranks of a node share memory.
_FOLDER = "/dev/shm"
#: Their names from torch 2.13 on, and before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_process_group_name = c10d._process_group_name

Stages = Sequence[Callable[[Any], Any]]


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


class _Call(NamedTuple):
    """Stages submitted to a `Lane`; a closure that submits itself would keep its tensors in a cycle."""

    stages: Stages
    device: torch.device
    inference: bool
    result: torch.futures.Future


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
        result: torch.futures.Future = torch.futures.Future(devices=[device] if cuda else [])
        # A thread has an inference mode of its own.
        call = _Call(stages, device, torch.is_inference_mode_enabled(), result)
        before = torch.cuda.current_stream(device).record_event() if cuda else None
        self._threads[0].submit(self._run, call, 0, None, before)
        return result.then(_value_or_raise)

    def _run(self, call: _Call, stage: int, value: Any, after: Any) -> None:
        """Run a stage in its thread, and have the next one run in its own."""
        stages, device, inference, result = call
        cuda = device.type == "cuda"
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
                    self._threads[stage + 1].submit(self._run, call, stage + 1, value, event)
        except BaseException as error:
            self.error = self.error or error
            result.set_result(error)

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


def connected(
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

"""Pipelines beside a process group: groups of the same backend and ranks, by node, threads and streams.

The first call of a `Compression` connects its ranks. Objects of one group share their pipelines.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from compcoll.core import environment
from compcoll.launch.bootstrap import node_name
from compcoll.torch.node_group import NodeGroup

__all__ = ["NodeLayout", "Pipeline", "connect"]

_process_group_name = c10d._process_group_name


class NodeLayout(NamedTuple):
    """The ranks of a group at one or two levels."""

    levels: int
    #: Why there is one level; empty with two.
    reason: str
    #: The group's ranks: first the first rank of every node, then the second ones, and so on.
    order: list[int]
    #: Global ranks of this node, and those that have this rank's index on every node.
    intra_node: list[int]
    inter_node: list[int]


class Pipeline:
    """Groups of one direction, and a thread for each phase; made collectively.

    One thread adds up inside nodes, one between nodes, and one gathers. Each thread keeps the order of calls,
    so that the order of collectives is the same on all ranks. After the first error of a phase, all further
    phases of the pipeline fail.
    """

    def __init__(self, group: dist.ProcessGroup, layout: NodeLayout, name: str, unique: str):
        self.name = name
        self.inter_node = _new_group(layout.inter_node, group, f"{unique}-{name}-between")
        self.rank, self.n_nodes = dist.get_rank(self.inter_node), dist.get_world_size(self.inter_node)
        self.intra_node: NodeGroup | None = None
        if layout.levels == 2:
            self.intra_node = NodeGroup(_new_group(layout.intra_node, group, f"{unique}-{name}-inside"))
        self.threads = [ThreadPoolExecutor(1, f"compcoll-{phase}") for phase in ("add", "reduce", "gather")]
        self.error: BaseException | None = None
        self._streams: dict[tuple[int, torch.device], Any] = {}

    def stream(self, phase: int, device: torch.device, after: Any) -> Any:
        """A context in which work on a GPU is in the phase's own stream, after an event."""
        if device.type != "cuda":
            return nullcontext()
        stream = self._streams.setdefault((phase, device), torch.cuda.Stream(device))
        stream.wait_event(after)
        return torch.cuda.stream(stream)


@dataclass
class _SharedPipelines:
    """Pipelines that the objects of a group share, and later the objects of another group of its `_kind`."""

    owner: str
    kind: tuple
    #: The levels, and the order of ranks.
    layout: tuple
    pipelines: dict[str, Pipeline]

    def serves(self, group: dist.ProcessGroup) -> bool:
        """True if no pipeline has failed, and their owner is this group, or a destroyed one of its kind."""
        names = c10d._world.pg_names
        is_free = self.owner == names[group] or self.owner not in names.values()
        return is_free and self.kind == _kind(group) and not any(p.error for p in self.pipelines.values())


#: Shared pipelines by default group, then by a key that is the same on all ranks.
_shared_of: WeakKeyDictionary[Any, dict[str, _SharedPipelines]] = WeakKeyDictionary()


def connect(
    group: dist.ProcessGroup, nodes: Any, levels: int | None, settings: Any, names: Sequence[str]
) -> tuple[NodeLayout, list[Pipeline]]:
    """Find the nodes of a group's ranks, and find or make its pipelines of these names; collective.

    Raises ValueError on all ranks if their ``settings`` differ, or one has bad ``nodes`` or ``levels``.
    """
    node, problem = None, ""
    try:
        node = _own_node(group, nodes)
    except ValueError as error:
        problem = str(error)
    if levels not in (None, 1, 2):
        problem = f"levels = {levels!r} is not 1, 2 or None"
    known = _shared_of.setdefault(dist.group.WORLD, {})
    usable = {key: set(shared.pipelines) for key, shared in known.items() if shared.serves(group)}
    found: list[Any] = [None] * dist.get_world_size(group)
    mine = node, problem, (levels, settings), secrets.token_hex(8), usable
    dist.all_gather_object(found, mine, group=group)
    all_nodes, problems, all_settings, keys, all_usable = zip(*found, strict=True)
    for rank, text in enumerate(problems):
        if text:
            raise ValueError(f"rank {rank}: {text}")
    for rank, theirs in enumerate(all_settings):
        if theirs != all_settings[0]:
            raise ValueError(f"ranks differ in settings: rank 0 has {all_settings[0]}, rank {rank} {theirs}")
    layout = _layout(group, all_nodes, levels)
    return layout, _shared_pipelines(group, layout, names, keys[0], all_usable)


def _shared_pipelines(
    group: dist.ProcessGroup,
    layout: NodeLayout,
    names: Sequence[str],
    new_key: str,
    all_usable: Sequence[Mapping[str, set[str]]],
) -> list[Pipeline]:
    """Find pipelines of a layout that all ranks can use, preferably the group's own; make missing ones."""
    known, owner = _shared_of[dist.group.WORLD], c10d._world.pg_names[group]
    ranks = layout.levels, *layout.order
    common = [key for key in set.intersection(*map(set, all_usable)) if known[key].layout == ranks]
    key = min(common, key=lambda key: (known[key].owner != owner, key), default=new_key)
    there = set.intersection(*(usable.get(key, set()) for usable in all_usable))
    pipelines = {name: known[key].pipelines[name] for name in there}
    pipelines |= {name: Pipeline(group, layout, name, new_key) for name in names if name not in there}
    for other in [one for one in known if (known[one].owner, known[one].layout) == (owner, ranks)]:
        del known[other]
    known[key] = _SharedPipelines(owner, _kind(group), ranks, pipelines)
    return [pipelines[name] for name in names]


def _layout(group: dist.ProcessGroup, nodes: Sequence[Any], levels: int | None) -> NodeLayout:
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
    order = [rank for column in zip(*rows, strict=True) for rank in column]
    intra_node = next(row for row in rows if own in row)
    inter_node = [ranks[row[intra_node.index(own)]] for row in rows]
    return NodeLayout(1 if reason else 2, reason, order, [ranks[rank] for rank in intra_node], inter_node)


def _own_node(group: dist.ProcessGroup, nodes: Any) -> Any:
    size = dist.get_world_size(group)
    if isinstance(nodes, DeviceMesh):
        coordinate = nodes.get_coordinate()
        if nodes.ndim != 2 or nodes.size() != size or coordinate is None:
            raise ValueError(
                f"nodes: a mesh of shape {tuple(nodes.shape)} is not one of (node, rank) for {size} ranks"
            )
        return coordinate[0]
    if nodes is not None:
        if len(nodes) != size:
            raise ValueError(f"nodes has {len(nodes)} entries for {size} ranks")
        return nodes[dist.get_rank(group)]
    declared = environment.nodes(dist.get_world_size())
    return node_name() if declared is None else declared[dist.get_rank()]


def _kind(group: dist.ProcessGroup) -> tuple:
    """Properties of a group that must be equal in a later group if it is to use the same pipelines."""
    return tuple(dist.get_process_group_ranks(group)), dist.get_backend_config(group), _timeout(group)


def _timeout(group: Any) -> timedelta | None:
    timeout = None
    for device in group._device_types:
        with suppress(AttributeError, RuntimeError):
            backend = group._get_backend(device)
            state = getattr(
                backend, "state", None
            )  # a group of compcoll, whose time-out may have been changed
            timeout = backend.options._timeout if state is None else timedelta(seconds=state.timeout)
    return timeout


def _new_group(ranks: Sequence[int], like: dist.ProcessGroup, name: str) -> dist.ProcessGroup:
    """A group of some or all of a group's ranks, with its backends and its time-out.

    By default, torch names a group by the number of a rank's groups. This number may differ between ranks,
    and repeats when groups are destroyed.
    """

    def give_name(ranks: Any, use_hashed_name: Any) -> Any:
        c10d._process_group_name = _process_group_name
        return f"{name}-{ranks[0]}"

    c10d._process_group_name = give_name
    try:
        made: Any = dist.new_group(  # the declared type includes a number, for ranks outside the group
            list(ranks),
            _timeout(like),
            dist.get_backend_config(like),
            use_local_synchronization=True,
            group_desc="compcoll",
        )
    finally:
        c10d._process_group_name = _process_group_name
    return made

"""The groups through which values travel: all ranks alike, or inside nodes and between them."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from compcoll.core import environment
from compcoll.torch.inside import Inside

__all__ = ["Levels", "placed"]

#: Groups of `Levels.shared_groups`, by the group that they were made of.
_shared: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[str, tuple[int, ...]], Any]] = WeakKeyDictionary()


class Levels:
    """The places of a group's ranks at one or two levels, and groups of these.

    At two levels ``inside`` are the ranks of this node, and ``between`` those of its place on every node.

    Parameters
    ----------
    group : ProcessGroup
    nodes : sequence of int
        The node of each rank of the group.
    levels : int or None
        1, 2, or None for two where there are several nodes of several ranks each.

    Attributes
    ----------
    levels : int
    reason : str
        Why there is one level; empty where there are two.
    order : list of int
        The group's ranks by their places, node by node in each place.
    """

    def __init__(self, group: dist.ProcessGroup, nodes: Sequence[Any], levels: int | None):
        ranks = dist.get_process_group_ranks(group)
        by_node: dict[Any, list[int]] = {}
        for rank, node in enumerate(nodes):
            by_node.setdefault(node, []).append(rank)
        sizes = [len(members) for members in by_node.values()]
        self.reason = _why_one_level(sizes, levels)
        self.levels = 1 if self.reason else 2
        self.rank, self.size = dist.get_rank(group), len(ranks)
        self.nodes, self.local = (self.size, 1) if self.reason else (len(sizes), sizes[0])
        rows = [[rank] for rank in range(self.size)] if self.reason else list(by_node.values())
        self.order = [row[place] for place in range(self.local) for row in rows]
        node = next(row for row in rows if self.rank in row)
        self.inside = [ranks[rank] for rank in node]
        place = node.index(self.rank)
        self.between = [ranks[row[place]] for row in rows]
        self._group = group

    def new_groups(self) -> tuple[dist.ProcessGroup, Inside | None]:
        """Groups of this rank's equals on all nodes, and of its node's ranks; collective.

        At one level the first one has all ranks, and there is no other.
        """
        between = _new_group(self.between, self._group)
        return between, None if self.levels == 1 else Inside(_new_group(self.inside, self._group))

    def shared_groups(self, lane: str) -> tuple[dist.ProcessGroup, Inside | None]:
        """The same groups for all whose calls are in one order, which a lane is the name of; collective."""
        known = _shared.setdefault(self._group, {})
        key = lane, tuple(self.order)
        if key not in known:
            known[key] = self.new_groups()
        return known[key]


def _why_one_level(sizes: Sequence[int], levels: int | None) -> str:
    if levels == 1:
        return "levels=1"
    if len(sizes) == 1:
        return "all ranks are on one node"
    if max(sizes) == 1:
        return "every node has one rank"
    if min(sizes) != max(sizes):
        return f"nodes have {min(sizes)} to {max(sizes)} ranks, and two levels need as many on each"
    return ""


def placed(group: dist.ProcessGroup, nodes: Any, levels: int | None, settings: Any) -> Levels:
    """Find the node of each rank of a group, and the levels; collective.

    Parameters
    ----------
    group : ProcessGroup
    nodes : sequence of int, DeviceMesh or None
        The node of each rank of the group; a mesh of the dimensions (node, rank in it); or None for
        ``COMPCOLL_NODES``, else the names of hosts.
    levels : int or None
        As of `Levels`.
    settings : object
        What has to be equal on all ranks.

    Raises
    ------
    ValueError
        On all ranks, where they differ in ``settings``, or one has been given bad ``nodes`` or ``levels``.
    """
    mine: tuple[Any, ...]
    try:
        mine = (_own_node(group, nodes), None)
    except ValueError as error:
        mine = (None, str(error))
    if levels not in (None, 1, 2):
        mine = (None, f"levels = {levels!r} is not 1, 2 or None")
    # By the number of groups torch names a group that only its own ranks make.
    made = len(getattr(dist.distributed_c10d._world, "pg_names", ()))
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, (*mine, (levels, settings), made), group=group)
    for what, index in (("settings", 2), ("numbers of groups that they have made", 3)):
        odd = next((rank for rank, one in enumerate(found) if one[index] != found[0][index]), None)
        if problem := next((f"rank {rank}: {one[1]}" for rank, one in enumerate(found) if one[1]), None):
            raise ValueError(problem)
        if odd is not None:
            raise ValueError(
                f"ranks differ in {what}: rank 0 has {found[0][index]}, rank {odd} {found[odd][index]}"
            )
    placement = Levels(group, [one[0] for one in found], levels)
    if levels == 2 and placement.reason and placement.rank == 0:
        warnings.warn(f"levels=2, but there is one level: {placement.reason}", stacklevel=2)
    return placement


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


def _new_group(ranks: Sequence[int], like: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of a group's backends and time-out, of its ranks or some of them."""
    try:
        device = torch.device("cuda" if "cuda" in str(like._device_types) else "cpu")  # type: ignore[attr-defined]
        timeout = like._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        timeout = None
    made: Any = dist.new_group(  # whose type has a number for ranks that are not in it
        list(ranks),
        timeout,
        dist.get_backend_config(like),
        use_local_synchronization=True,
        group_desc="compcoll",
    )
    return made

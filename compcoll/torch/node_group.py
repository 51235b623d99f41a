"""Sums and gathers among the ranks of one node, through memory that they share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import torch
import torch.distributed as dist

__all__ = ["NodeGroup", "all_gather_single"]

#: Folder of the memory that ranks of a node share.
_FOLDER = "/dev/shm"
#: Torch 2.13 renamed these two functions.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class NodeGroup:
    """The ranks of one node; all methods are collective, and one thread of each rank calls them in one order.

    Tensors on the host go through shared memory if the ranks can share it: each rank writes its block once,
    and its peers read it in place. CUDA tensors, and ranks in separate containers, use the group.
    """

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._blocks: list[torch.Tensor] | None = []
        self._half = 0

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum this rank's rows over all ranks, in their order: (m, n), from contiguous rows (size * m, n)."""
        n_rows = len(rows) // self.size
        if rows.is_cuda:
            sums = torch.empty_like(rows[:n_rows])
            _reduce_scatter_single(sums.view(-1), rows.view(-1), group=self.group)
            return sums
        mine = slice(self.rank * n_rows, (self.rank + 1) * n_rows)
        blocks = self._share(rows, mine)
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
        """Gather each rank's rows, (m, n): (size * m, n)."""
        blocks = None if rows.is_cuda else self._share(rows)
        if blocks is not None:
            return torch.cat(list(blocks))
        whole = rows.new_empty(self.size * len(rows), rows.shape[1])
        all_gather_single(whole.view(-1), rows.view(-1), group=self.group)
        return whole

    def _share(self, rows: torch.Tensor, but: slice | None = None) -> Sequence[torch.Tensor] | None:
        """Write rows, but not the rows ``but``, to shared memory; return all ranks' rows, or None without it.

        Calls use two halves in turn: peers may still read one half while this rank writes the other.
        """
        if self._blocks is None or not rows.numel():
            return None
        if not self._blocks or self._blocks[0].shape[1] < rows.nbytes:
            self._blocks = self._map(rows.nbytes)
            if self._blocks is None:
                return None
        self._half = 1 - self._half
        blocks = [block[self._half, : rows.nbytes].view(rows.dtype).view_as(rows) for block in self._blocks]
        for part in [slice(None)] if but is None else [slice(but.start), slice(but.stop, None)]:
            blocks[self.rank][part] = rows[part]
        dist.all_reduce(torch.zeros(1), group=self.group)  # a barrier, for any backend of the host
        return blocks

    def _map(self, nbytes: int) -> list[torch.Tensor] | None:
        """Map two halves of at least ``nbytes`` for each rank, in files that are unlinked at once."""
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
    """A file in memory; torch would create a missing one, such as that of a rank in another container."""
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    return torch.from_file(path, True, nbytes, dtype=torch.uint8)

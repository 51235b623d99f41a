"""Sums and gathered blocks among the ranks of one node: through memory of the host, or by their group."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist

from compcoll.torch.frames import all_gather_single

__all__ = ["Inside"]

_FOLDER = "/dev/shm"


class Inside:
    """The ranks of one node; all methods are collective, and called in one order by one thread of each rank.

    Tensors on the host go through memory that the ranks share, where they can share it: each rank writes its
    block once, and peers read it there. CUDA tensors, and ranks in containers of their own, use the group.

    Parameters
    ----------
    group : ProcessGroup
    """

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._blocks: list[torch.Tensor] | None = []
        self._turn = 0

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' blocks of this rank.

        Parameters
        ----------
        rows : torch.Tensor
            (size * m, n), contiguous; m rows go to each rank.

        Returns
        -------
        torch.Tensor
            (m, n), added in the order of ranks.
        """
        n_rows = len(rows) // self.size
        if rows.is_cuda:
            sums = torch.empty_like(rows[:n_rows])
            (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(
                sums.view(-1), rows.view(-1), group=self.group
            )
            return sums
        mine = slice(self.rank * n_rows, (self.rank + 1) * n_rows)
        blocks = self._exchanged(rows, mine)
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
        if not rows.numel():
            return rows.new_empty(self.size * len(rows), rows.shape[1])
        blocks = None if rows.is_cuda else self._exchanged(rows)
        if blocks is not None:
            return torch.cat(list(blocks))
        whole = rows.new_empty(self.size * len(rows), rows.shape[1])
        all_gather_single(whole.view(-1), rows.view(-1), group=self.group)
        return whole

    def _exchanged(self, rows: torch.Tensor, but: slice | None = None) -> Sequence[torch.Tensor] | None:
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
        own = blocks[self.rank]
        if but is None:
            own.copy_(rows)
        else:
            own[: but.start].copy_(rows[: but.start])
            own[but.stop :].copy_(rows[but.stop :])
        dist.all_reduce(torch.zeros(1), group=self.group)  # a barrier, for any backend of the host
        return blocks

    def _map(self, nbytes: int) -> list[torch.Tensor] | None:
        """Two halves of so many bytes for each rank, of files that have no names any more."""
        nbytes = -(-nbytes // 4096) * 4096
        path, problem = "", False
        try:
            descriptor, path = tempfile.mkstemp(prefix="compcoll-", dir=_FOLDER)
            with os.fdopen(descriptor, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 2 * nbytes)
        except OSError:
            problem = True
        paths: list[str] = [""] * self.size
        dist.all_gather_object(paths, path, group=self.group)
        blocks = []
        try:
            blocks = [_mapped(one, 2 * nbytes) for one in paths]
        except (OSError, RuntimeError):
            problem = True
        flag = torch.tensor([float(problem)])
        dist.all_reduce(flag, group=self.group)
        if path:
            with suppress(OSError):
                os.unlink(path)
        return None if flag.item() else [block.view(2, nbytes) for block in blocks]


def _mapped(path: str, nbytes: int) -> torch.Tensor:
    """A file in memory; torch would make one where there is none, as in another rank's container."""
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    return torch.from_file(path, True, nbytes, dtype=torch.uint8)

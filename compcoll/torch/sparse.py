"""The sum of sparse tensors: what every rank has is gathered, and added up by each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.torch.core import Core, Part
from compcoll.torch.gpu import End

__all__ = ["all_reduce"]


def all_reduce(core: Core, tensor: torch.Tensor, op: Any) -> Part:
    """The sum of all ranks' sparse tensors (COO) takes the place of each."""
    from compcoll.torch.collectives import all_gather

    kind = getattr(op, "op", op)
    if tensor.layout != torch.sparse_coo or kind != dist.ReduceOp.SUM:
        raise ValueError(
            f"{kind.name} of tensors with the layout {tensor.layout}: there is the sum of sparse_coo"
        )
    own = tensor.detach().coalesce()
    counts = np.full(core.size, own._nnz())
    core.settle([_engine.Request(core.comm.Iallgather(MPI.IN_PLACE, counts))])
    dims, dense = own.sparse_dim(), own.shape[own.sparse_dim() :]
    indices = [torch.empty((dims, n), dtype=torch.int64) for n in counts.tolist()]
    values = [torch.empty((n, *dense), dtype=own.dtype) for n in counts.tolist()]
    parts = [all_gather(core, indices, own.indices()), all_gather(core, values, own.values())]

    def finish() -> list[End]:
        ends = [end for part in parts for end in part.finish()]
        with torch.inference_mode(False), torch.no_grad():
            total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), own.shape)
            tensor.copy_(total.coalesce())
        return ends

    return Part([task for part in parts for task in part.tasks], finish)

"""Ways to train a model on several ranks, each with torch's own classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from .model import GPT, MLP, Shape, cross_entropy

__all__ = ["WAYS", "Way", "make"]

#: Microbatches that a pipeline splits a batch into.
MICROBATCHES = 4


class Way(Protocol):
    """A model in training. ``shard``: index of this rank's part of the data, and the number of parts."""

    shard: tuple[int, int]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Run forward, backward and an update on this rank's part of the batch; collective."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Loss on bytes that are equal on all ranks; every rank gets it; collective."""


def _adam(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)


class _Whole:
    """Base of ways whose model is called as a whole on each rank."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    @torch.no_grad()
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return float(cross_entropy(self.model(x), y))


class Data(_Whole):
    """DDP, with the optimizer's state sharded over the ranks."""

    def __init__(self, shape: Shape, rate: float):
        self.shard = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(GPT(shape))
        self.optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(), torch.optim.AdamW, lr=rate, betas=(0.9, 0.95), weight_decay=0.1
        )


class Sharded(_Whole):
    """FSDP2: parameters are gathered for each block, gradients are reduced and scattered."""

    def __init__(self, shape: Shape, rate: float):
        self.shard = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        model = GPT(shape)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optimizer = _adam(self.model.parameters(), rate)


class Experts(nn.Module):
    """An expert on each rank; the gate sends each byte to one expert (Switch, Fedus et al., 2022)."""

    def __init__(self, width: int):
        super().__init__()
        self.gate = nn.Linear(width, dist.get_world_size(), bias=False)
        experts = [MLP(width) for _ in range(dist.get_world_size())]  # random numbers stay equal on all ranks
        self.mine = experts[dist.get_rank()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        out = torch.bincount(chosen, minlength=dist.get_world_size())
        into = torch.empty_like(out)
        dist.all_to_all_single(into, out)
        counts, theirs = out.tolist(), into.tolist()
        world = dist.group.WORLD
        there = all_to_all_single_autograd(flat[order], theirs, counts, world)
        back = all_to_all_single_autograd(self.mine(there), counts, theirs, world)
        return (torch.zeros_like(flat).index_copy(0, order, back) * weight[:, None]).view_as(x)


class Mixture(_Whole):
    """Expert parallelism: one expert on each rank; all other layers are data-parallel."""

    def __init__(self, shape: Shape, rate: float):
        self.shard = dist.get_rank(), dist.get_world_size()
        self.model = GPT(shape, Experts)
        mine = {id(p) for m in self.model.modules() if isinstance(m, Experts) for p in m.mine.parameters()}
        self.shared = [p for p in self.model.parameters() if id(p) not in mine]
        self.optimizer = _adam(self.model.parameters(), rate)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        (cross_entropy(self.model(x), y) / self.shard[1]).backward()
        _add_up(self.shared, dist.group.WORLD)
        self.optimizer.step()


class Hybrid:
    """Data x tensor x pipeline parallelism on a mesh with these dimensions."""

    def __init__(self, shape: Shape, rate: float, dims: tuple[int, int, int]):
        mesh: DeviceMesh = init_device_mesh("cpu", dims, mesh_dim_names=("dp", "tp", "pp"))
        dp, tp, pp = dims
        self.shard = mesh.get_local_rank("dp"), dp
        self.data, self.pipeline = mesh.get_group("dp"), mesh.get_group("pp")
        self.stage, self.stages = mesh.get_local_rank("pp"), pp
        self.model = GPT(shape).keep(self.stage, pp)
        plan: dict[str, Any] = {"down": RowwiseParallel(), "up": ColwiseParallel()}
        for block in self.model.blocks if tp > 1 else ():
            projections = {name: ColwiseParallel() for name in "qkv"}
            parallelize_module(block.attention, mesh["tp"], {**projections, "out": RowwiseParallel()})
            parallelize_module(block.mlp, mesh["tp"], plan)
        self.optimizer = _adam(self.model.parameters(), rate)
        self.schedule = None
        if pp > 1:
            stage = PipelineStage(self.model, self.stage, pp, torch.device("cpu"), group=self.pipeline)
            self.schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=cross_entropy)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self._run(x, y, "step")
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad /= self.shard[1]
        if self.shard[1] > 1:
            _add_up(self.model.parameters(), self.data)
        self.optimizer.step()

    def _run(self, x: torch.Tensor, y: torch.Tensor, name: str) -> float:
        """Run the pipeline; return the loss on the last stage, 0 on the others."""
        if self.schedule is None:
            loss = cross_entropy(self.model(x), y)
            if name == "step":
                loss.backward()
            return float(loss.detach())
        losses: list[torch.Tensor] = []
        run = getattr(self.schedule, name)
        first, last = self.stage == 0, self.stage == self.stages - 1
        inputs = (x,) if first else ()
        run(*inputs, target=y, losses=losses) if last else run(*inputs)
        return float(torch.stack(losses).mean()) if last else 0.0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> float:
        with torch.no_grad():
            found = torch.tensor([self._run(x, y, "eval")], dtype=torch.float64)
        if self.stages > 1:
            dist.all_reduce(found, group=self.pipeline)  # the other stages have 0
        return float(found)


def _add_up(parameters: Iterable[nn.Parameter], group: Any) -> None:
    """Add the gradients over all ranks of a group, in one message."""
    own = [p.grad for p in parameters if p.grad is not None]
    grads = [g.to_local() if isinstance(g, DTensor) else g for g in own]
    bucket = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(bucket, group=group)
    for grad, part in zip(grads, bucket.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


WAYS: dict[str, Callable[..., Way]] = {"ddp": Data, "fsdp": Sharded, "moe": Mixture, "hybrid": Hybrid}


def make(name: str, shape: Shape, rate: float, dims: tuple[int, int, int]) -> Way:
    """Make a way by name; only ``hybrid`` uses ``dims``."""
    return WAYS[name](shape, rate, dims) if name == "hybrid" else WAYS[name](shape, rate)

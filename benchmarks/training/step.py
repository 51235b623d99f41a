"""Time of a training step over gloo and over this backend with several codecs, side by side in one run.

``python -m benchmarks.netlab --hosts 2 --gbit 1 -- python -m benchmarks.training.step --way fsdp``. Each case
has its own model and process group; the cases take turns, in a new random order each round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter, process_time

import click
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import compcoll.torch

from ..osu.output import as_json, describe
from .corpus import corpus
from .model import GPT, Shape, cross_entropy

__all__ = ["run"]

TYPES = {"f4": torch.float32, "bf16": torch.bfloat16}


def fsdp(model: GPT, group: dist.ProcessGroup, dtype: torch.dtype) -> torch.nn.Module:
    """Shard a model by FSDP2; parameters and gradients are sent in ``dtype``."""
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("fsdp",))
    precision = MixedPrecisionPolicy() if dtype == torch.float32 else MixedPrecisionPolicy(dtype, dtype)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    return fully_shard(model, mesh=mesh, mp_policy=precision)


def ddp(model: GPT, group: dist.ProcessGroup, dtype: torch.dtype) -> torch.nn.Module:
    """Wrap a model in DDP; the model and its gradients have ``dtype``."""
    return DistributedDataParallel(model.to(dtype), process_group=group, gradient_as_bucket_view=True)


WAYS = {"fsdp": fsdp, "ddp": ddp}


@click.command(context_settings={"show_default": True})
@click.option("--way", default="fsdp", type=click.Choice(list(WAYS)))
@click.option(
    "--codec", "codecs", default="lossless,bfp:bits=6,bfp:bits=8", help="Codecs, separated by commas."
)
@click.option("--dtype", default="f4", type=click.Choice(list(TYPES)), help="What travels.")
@click.option("--layers", default=11, type=click.IntRange(1))
@click.option("--width", default=384, type=click.IntRange(16))
@click.option("--batch", default=1, type=click.IntRange(1), help="Pieces a step on each rank.")
@click.option("--length", default=64, type=click.IntRange(8), help="Bytes of a piece.")
@click.option("--rounds", default=8, type=click.IntRange(2), help="Steps of each, the first one not counted.")
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
def run(way, codecs, dtype, layers, width, batch, length, rounds, json_path) -> None:
    """Time training steps over several backends and codecs."""
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    dist.init_process_group("compcoll")
    shape = Shape(layers, width, 6 if width % 6 == 0 else 4, length)
    x, y = corpus().batch(np.random.default_rng(world.rank), batch, length)
    steps: dict[str, Callable[[], None]] = {
        "gloo": _step(way, dist.new_group(backend="gloo"), shape, dtype, x, y)
    }
    for spec in codecs.split(","):
        options = compcoll.torch.Options(codec=spec)
        group = dist.new_group(backend="compcoll", pg_options=options)
        steps[spec] = _step(way, group, shape, dtype, x, y)
    order, times = np.random.default_rng(0), {name: [] for name in steps}
    for i in range(rounds):
        for j in order.permutation(len(steps)):
            name = list(steps)[j]
            world.Barrier()
            begin, busy = perf_counter(), process_time()
            steps[name]()
            own = perf_counter() - begin, process_time() - busy
            if i:
                times[name].append([world.allreduce(value, MPI.MAX) for value in own])
    alone = _compute(shape, dtype, x, y)
    about = describe(world, f"training step, {way}", "the standard library's sources", "f4")
    report = compcoll.torch.report(together=True)
    if world.rank == 0:
        rows = []
        click.echo(
            f"{way}, {shape.parameters / 1e6:.1f} M parameters, {dtype}; computing alone {1e3 * alone:.0f} ms"
        )
        for name, series in times.items():
            seconds, busy = np.median(series, axis=0).tolist()
            speedup = float(np.median(np.array(times["gloo"])[:, 0])) / seconds
            rows.append({"name": name, "seconds": seconds, "processor_seconds": busy, "speedup": speedup})
            click.echo(
                f"  {name:14} {1e3 * seconds:8.0f} ms {1e3 * busy:8.0f} ms of a processor {speedup:6.2f}x"
            )
        click.echo(str(report))
        if json_path:
            command = " ".join(["python -m benchmarks.training.step", *sys.argv[1:]])
            about |= {"command": command, "way": way, "parameters": shape.parameters, "travels": dtype}
            with open(json_path, "w") as file:
                file.write(as_json({**about, "compute_seconds": alone, "rows": rows}))
    dist.destroy_process_group()


def _step(way: str, group, shape: Shape, dtype: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    model = WAYS[way](GPT(shape), group, TYPES[dtype])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x).float(), y).backward()
        optimizer.step()

    return step


def _compute(shape: Shape, dtype: str, x: torch.Tensor, y: torch.Tensor) -> float:
    """Seconds of a forward and backward pass without messages."""
    model, times = GPT(shape).to(TYPES[dtype]), []
    for _ in range(3):
        begin = perf_counter()
        cross_entropy(model(x).float(), y).backward()
        times.append(perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    run()

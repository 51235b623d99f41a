"""Steps of DDP over gloo, with and without the compressing hook: seconds, and bytes through the ports.

``python -m benchmarks.netlab --hosts 2 --ranks-per-host 2 -- python -m benchmarks.training.hooks``, as root.
Steps of all variants are taken one variant after the other, each with a model of its own.
"""

from __future__ import annotations

import gc
from datetime import timedelta
from time import perf_counter

import click
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import compcoll.torch

from ..netlab import port_bytes
from .corpus import corpus
from .model import GPT, Shape, cross_entropy

__all__ = ["run"]

VARIANTS = "gloo,bfp:bits=8@1,bfp:bits=8@2,bfp:bits=4@1,bfp:bits=4@2"


@click.command(context_settings={"show_default": True})
@click.option("--variants", default=VARIANTS, help="gloo, or CODEC@LEVELS, separated by commas.")
@click.option("--layers", default=11, type=click.IntRange(1))
@click.option("--width", default=384, type=click.IntRange(16))
@click.option("--batch", default=1, type=click.IntRange(1), help="Pieces a step on each rank.")
@click.option("--length", default=64, type=click.IntRange(8), help="Bytes of a piece.")
@click.option("--steps", default=5, type=click.IntRange(1), help="Steps that count, after two that do not.")
def run(variants, layers, width, batch, length, steps) -> None:
    """Time steps of DDP, and count bytes through the ports."""
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    shape = Shape(layers, width, 6 if width % 6 == 0 else 4, length)
    x, y = corpus().batch(np.random.default_rng(world.rank), batch, length)
    if world.rank == 0:
        click.echo(f"{shape.parameters / 1e6:.1f} M parameters, {world.size} ranks")
        click.echo(f"{'':16} {'s a step':>9} {'MB sent by a port':>18} {'raw, MB':>8} {'frames, MB':>11}")
    for name in variants.split(","):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(GPT(shape), gradient_as_bucket_view=True)
        state = None
        if name != "gloo":
            codec, _, levels = name.partition("@")
            options = {"levels": int(levels)} if levels else {}
            state = compcoll.torch.ErrorFeedback(codec, **options)
            ddp.register_comm_hook(state, compcoll.torch.compressed_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        seconds, sent, counted = [], 0, np.zeros(2)
        for step in range(steps + 2):
            dist.barrier()
            before, begin = port_bytes()[0], perf_counter()
            had = np.array([state.raw_nbytes, state.wire_nbytes] if state else [0, 0])
            optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()
            taken = perf_counter() - begin
            dist.barrier()
            if step >= 2:  # DDP cuts its buckets anew after the first
                seconds.append(world.allreduce(taken, MPI.MAX))
                sent += port_bytes()[0] - before
                counted += np.array([state.raw_nbytes, state.wire_nbytes] if state else [0, 0]) - had
        most = world.allreduce(sent, MPI.MAX) / steps / 1e6
        raw, wire = world.allreduce(counted) / steps / 1e6
        if world.rank == 0:
            click.echo(f"{name:16} {np.median(seconds):9.2f} {most:18.1f} {raw:8.1f} {wire:11.1f}")
        del ddp, optimizer, state
        gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()

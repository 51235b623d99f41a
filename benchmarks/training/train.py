"""One run: ``mpiexec -n 4 python -m benchmarks.training.train --way fsdp --policy bfp:bits=6``."""

from __future__ import annotations

import json
import sys
from math import cos, pi
from time import perf_counter
from typing import Any

import click
import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress
from torch.optim.lr_scheduler import LambdaLR

import compcoll.torch

from ..osu.output import as_json, environment
from .corpus import corpus
from .model import Shape
from .strategies import WAYS, make

__all__ = ["run"]


def policy(text: str) -> Any:
    """An argument of `compcoll.torch.set_policy`: a preset, JSON, or one codec for all groups."""
    if text in compcoll.torch.policies.PRESETS:
        return text
    return json.loads(text) if text.startswith("{") else {"*": text}


def _share(i: int, rise: int, steps: int) -> float:
    """Factor on the learning rate at step ``i``."""
    risen = min(1.0, (i + 1) / max(rise, 1))
    return risen * (0.55 + 0.45 * cos(pi * i / steps))


@click.command(context_settings={"show_default": True})
@click.option("--way", default="fsdp", type=click.Choice(list(WAYS)), help="How the ranks share the work.")
@click.option("--dims", default="2,2,1", help="Of the hybrid: data, tensor and pipeline parallel.")
@click.option("--policy", "text", default="lossless", help="gloo, a codec, a preset, or a mapping as JSON.")
@click.option("--min-nbytes", default=1024, help="Smallest message that is compressed.")
@click.option("--layers", default=5, type=click.IntRange(1))
@click.option("--width", default=128, type=click.IntRange(16))
@click.option("--length", default=64, type=click.IntRange(8), help="Bytes of context.")
@click.option("--batch", default=16, type=click.IntRange(1), help="Pieces a step, of all ranks together.")
@click.option("--steps", default=250, type=click.IntRange(1))
@click.option(
    "--every", default=25, type=click.IntRange(1), help="Steps between two looks at the validation loss."
)
@click.option(
    "--rate", default=3e-3, help="Of the optimizer, falling to a tenth along a cosine after its rise."
)
@click.option(
    "--rise", default=40, type=click.IntRange(0), help="Steps until the optimizer has its full rate."
)
@click.option("--seed", default=0)
@click.option("--json", "json_path", type=click.Path(), help="Write the result to a file.")
def run(
    way, dims, text, min_nbytes, layers, width, length, batch, steps, every, rate, rise, seed, json_path
) -> None:
    """Train a GPT over the bytes of the standard library's sources."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo" if text == "gloo" else "compcoll")
    if text != "gloo":
        compcoll.torch.set_policy(policy(text), min_nbytes=min_nbytes)
    torch.manual_seed(seed)
    data, shape = corpus(), Shape(layers, width, 4, length)
    one = make(way, shape, rate, tuple(map(int, dims.split(","))))  # type: ignore[arg-type]
    schedule = LambdaLR(one.optimizer, lambda i: _share(i, rise, steps))  # type: ignore[attr-defined]
    part, parts = one.shard
    held_out = data.held_out(64, length)
    curve, begun = [], perf_counter()
    rank = dist.get_rank()
    with Progress(
        console=Console(stderr=True), transient=True, disable=rank != 0 or not sys.stderr.isatty()
    ) as progress:
        for i in progress.track(range(steps), description=f"{way}, {text}, seed {seed}"):
            x, y = data.batch(np.random.default_rng((seed, i)), batch, length)
            one.step(x[part::parts], y[part::parts])
            schedule.step()
            if (i + 1) % every == 0 or i + 1 == steps:
                curve.append((i + 1, one.loss(*held_out)))
    seconds = perf_counter() - begun
    found = compcoll.torch.report(together=True) if text != "gloo" else None
    if rank == 0:
        click.echo(
            f"{way}, {text}, seed {seed}: validation loss {curve[-1][1]:.4f} "
            f"after {steps} steps, {seconds:.0f} s"
        )
        if found is not None:
            click.echo(str(found))
        if json_path:
            result = {
                "way": way,
                "dims": dims,
                "policy": text,
                "seed": seed,
                "ranks": dist.get_world_size(),
                "parameters": shape.parameters,
                "steps": steps,
                "batch": batch,
                "length": length,
                "rate": rate,
                "rise": rise,
                "files": data.files,
                "curve": curve,
                "seconds": seconds,
                "raw_nbytes": found.raw_nbytes if found else None,
                "wire_nbytes": found.wire_nbytes if found else None,
            }
            with open(json_path, "w") as file:
                file.write(as_json({**result, **environment()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    run()

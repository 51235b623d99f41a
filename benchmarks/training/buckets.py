"""When DDP's buckets travel: the beginning and end of each one's allreduce beside the backward pass.

``python -m benchmarks.netlab --hosts 2 --gbit 1 -- python -m benchmarks.training.buckets``, or under mpiexec.
A communication hook, the same for gloo and for this backend, notes when a bucket is full, which begins its
allreduce, and when that has ended; hooks of the parameters note the last gradient, which ends the backward
pass. Each backend has a model of its own; steps are taken in turns, in another order each round.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from time import perf_counter

import click
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import compcoll.torch

from ..osu.output import as_json, describe
from .corpus import corpus
from .model import GPT, Shape, cross_entropy

__all__ = ["Pass", "run", "share_inside"]


@dataclass
class Pass:
    """One backward pass.

    Attributes
    ----------
    start, gradients, end : float
        When it began, when the last gradient was there, and when all buckets had come back.
    buckets : list
        Of each bucket its bytes, and when its allreduce began and ended.
    """

    start: float = 0.0
    gradients: float = 0.0
    end: float = 0.0
    buckets: list[list[float]] = field(default_factory=list)

    def relative(self) -> Pass:
        """The same in seconds from its beginning."""
        buckets = [[nbytes, begin - self.start, end - self.start] for nbytes, begin, end in self.buckets]
        return Pass(0.0, self.gradients - self.start, self.end - self.start, buckets)


def share_inside(one: Pass) -> float:
    """Which share of the time with an allreduce under way was before the last gradient."""
    whole = inside = 0.0
    until = one.start
    for _, begin, end in sorted(one.buckets, key=lambda bucket: bucket[1]):
        begin = max(begin, until)
        if end > begin:
            whole += end - begin
            inside += max(0.0, min(end, one.gradients) - begin)
            until = end
    return inside / whole if whole else 0.0


class Trainer:
    """A model under DDP that notes its backward passes."""

    def __init__(self, group, shape: Shape, bucket: float, x: torch.Tensor, y: torch.Tensor):
        torch.manual_seed(0)
        self.group, self.x, self.y, self.now = group, x, y, Pass()
        self.ddp = DistributedDataParallel(
            GPT(shape), process_group=group, bucket_cap_mb=bucket, gradient_as_bucket_view=True
        )
        for parameter in self.ddp.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient)
        self.ddp.register_comm_hook(self, Trainer._allreduce)

    def step(self) -> Pass:
        """A forward and a backward pass."""
        self.ddp.zero_grad()
        loss = cross_entropy(self.ddp(self.x), self.y)
        self.now = Pass(perf_counter())
        loss.backward()
        self.now.end = perf_counter()
        return self.now.relative()

    def alone(self) -> float:
        """Seconds of a backward pass without any messages."""
        with self.ddp.no_sync():
            loss = cross_entropy(self.ddp(self.x), self.y)
            begin = perf_counter()
            loss.backward()
            return perf_counter() - begin

    def messages(self) -> float:
        """Seconds of the same allreduces, begun together while nothing computes."""
        tensors = [torch.randn(int(nbytes) // 4) for nbytes, _, _ in self.now.buckets]
        dist.barrier(self.group)
        begin = perf_counter()
        for work in [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]:
            work.wait()
        return perf_counter() - begin

    def _gradient(self, _: torch.Tensor) -> None:
        self.now.gradients = perf_counter()

    def _allreduce(self, bucket):  # torch looks at annotations, and takes no strings
        tensor = bucket.buffer()
        noted = [float(tensor.nbytes), perf_counter(), 0.0]
        self.now.buckets.append(noted)

        def ended(future) -> torch.Tensor:
            noted[2] = perf_counter()
            return future.value()[0].div_(self.group.size())

        return dist.all_reduce(tensor, group=self.group, async_op=True).get_future().then(ended)


@click.command(context_settings={"show_default": True})
@click.option("--codec", "codecs", default="lossless,bfp:bits=6", help="Codecs, separated by commas.")
@click.option("--layers", default=11, type=click.IntRange(1))
@click.option("--width", default=384, type=click.IntRange(16))
@click.option("--batch", default=8, type=click.IntRange(1), help="Pieces a step on each rank.")
@click.option("--length", default=64, type=click.IntRange(8), help="Bytes of a piece.")
@click.option("--bucket", default=25.0, help="MiB of a bucket, as DDP counts them.")
@click.option(
    "--rounds", default=9, type=click.IntRange(3), help="Passes of each; the first two do not count."
)
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
@click.option("--plot", type=click.Path(), help="Draw the median pass of each to a file.")
def run(codecs, layers, width, batch, length, bucket, rounds, json_path, plot) -> None:
    """Note when DDP's buckets travel, over gloo and over this backend."""
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    dist.init_process_group("compcoll")
    shape = Shape(layers, width, 6 if width % 6 == 0 else 4, length)
    x, y = corpus().batch(np.random.default_rng(world.rank), batch, length)
    groups = {"gloo": dist.new_group(backend="gloo")}
    for spec in codecs.split(","):
        groups[spec] = dist.new_group(backend="compcoll", pg_options=compcoll.torch.Options(codec=spec))
    trainers = {name: Trainer(group, shape, bucket, x, y) for name, group in groups.items()}
    order, passes = np.random.default_rng(0), {name: [] for name in trainers}
    others: dict[str, list[list[float]]] = {name: [] for name in trainers}
    for i in range(rounds):
        for j in order.permutation(len(trainers)):
            name = list(trainers)[j]
            world.Barrier()
            one = trainers[name].step()
            world.Barrier()
            alone = trainers[name].alone(), trainers[name].messages()
            if i >= 2:  # DDP cuts its buckets anew after the first pass
                passes[name].append(one)
                others[name].append([world.allreduce(value, MPI.MAX) for value in alone])
    rows = [_row(world, name, passes[name], others[name]) for name in trainers]
    about = describe(world, "DDP's buckets", "the standard library's sources", "f4")
    if world.rank == 0:
        about |= {"command": " ".join(["python -m benchmarks.training.buckets", *sys.argv[1:]])}
        about |= {"parameters": shape.parameters, "bucket_mib": bucket, "rows": rows}
        click.echo("\n".join(lines(rows)))
        if json_path:
            with open(json_path, "w") as file:
                file.write(as_json(about))
        if plot:
            draw(rows, plot)
    dist.destroy_process_group()


def _row(world: MPI.Comm, name: str, passes: list[Pass], others: list[list[float]]) -> dict:
    """Medians over rounds of the slowest rank, or the least share, and rank 0's median pass; collective."""
    ends = [world.allreduce(one.end, MPI.MAX) for one in passes]
    gradients = [world.allreduce(one.gradients, MPI.MAX) for one in passes]
    shares = [world.allreduce(share_inside(one), MPI.MIN) for one in passes]
    middle = passes[int(np.argsort(ends)[len(ends) // 2])]
    alone, messages = np.median(others, axis=0).tolist()
    return {
        "name": name,
        "share_inside": float(np.median(shares)),
        "seconds": float(np.median(ends)),
        "gradients_seconds": float(np.median(gradients)),
        "backward_alone_seconds": alone,
        "messages_alone_seconds": messages,
        "median_pass": {"gradients": middle.gradients, "end": middle.end, "buckets": middle.buckets},
    }


def lines(rows: list[dict]) -> list[str]:
    """A table of the rows."""
    found = ["               inside  backward  last gradient    alone: backward  messages"]
    for row in rows:
        times = (row[f"{key}seconds"] for key in ("", "gradients_", "backward_alone_", "messages_alone_"))
        whole, gradients, alone, messages = (f"{1e3 * seconds:.0f} ms" for seconds in times)
        share = f"{row['share_inside']:.0%}"
        found.append(f"  {row['name']:12} {share:>6} {whole:>9} {gradients:>14} {alone:>18} {messages:>9}")
    return found


def draw(rows: list[dict], path: str) -> None:
    """A bar for the backward pass of each backend, and below it one for each bucket."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(rows), 1, figsize=(8, 1.5 * len(rows) + 0.6), layout="constrained", sharex=True, squeeze=False
    )
    for panel, row in zip(panels[:, 0], rows, strict=True):
        one = row["median_pass"]
        panel.barh(0, 1e3 * one["gradients"], color="0.6")
        panel.axvline(1e3 * one["gradients"], color="black", linewidth=0.8, linestyle="--")
        for i, (nbytes, begin, end) in enumerate(one["buckets"]):
            panel.barh(i + 1, 1e3 * (end - begin), left=1e3 * begin, color=f"C{i % 10}")
            panel.text(1e3 * begin, i + 1, f" {nbytes / 2**20:.0f} MiB", va="center", fontsize=6)
        names = ["backward", *(f"bucket {i}" for i in range(len(one["buckets"])))]
        panel.set_yticks(range(len(names)), names, fontsize=7)
        panel.set_title(f"{row['name']}: {row['share_inside']:.0%} inside the backward pass", fontsize=9)
        panel.invert_yaxis()
    panels[-1, 0].set_xlabel("ms since the backward pass began")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    run()

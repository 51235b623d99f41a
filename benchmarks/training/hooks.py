"""Training over gloo with and without compression: seconds of a step, bytes through ports, overlap, loss.

A variant is one of: gloo; CODEC for gradients, or CODEC+PARAMETERS with a second codec for FSDP2's parameters
(otherwise gloo gathers these), each with @1 or @2 for the number of levels; backend:CODEC for the backend
compcoll. HSDP shards inside hosts by gloo and compresses between hosts.

``python -m benchmarks.netlab --hosts 2 --ranks-per-host 2 -- python -m benchmarks.training.hooks``, as root.
The variants run one after the other, each with its own model. With ``--json`` the file is written after
each, and variants that it already has are not run again. ``--seeds 3`` trains as well, and shows the loss on
held-out bytes: ``mpiexec -n 2 python -m benchmarks.training.hooks --steps 0 --seeds 3 --json losses.json``
continues where it was stopped, seed by seed. ``--plot`` draws when DDP's buckets are in flight; DDP's
backward pass and its messages are also timed alone.
"""

from __future__ import annotations

import gc
import json
import sys
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import compcoll.torch
from compcoll.launch.bootstrap import node_name
from compcoll.torch import hooks
from compcoll.torch.connection import Pipeline

from ..netlab import port_bytes
from ..osu.output import describe
from .corpus import corpus
from .model import GPT, Shape, cross_entropy
from .passes import Pass, draw, share_inside

__all__ = ["run"]

VARIANTS = "gloo,bfp:bits=8@1,bfp:bits=8@2,bfp:bits=4@1,bfp:bits=4@2,backend:bfp:bits=8"
VARIANT_HELP = "gloo, CODEC[+PARAMETERS][@LEVELS], or backend:CODEC, separated by commas."


class Noted:
    """An all-gather for FSDP2 that records how long it is in flight, and how long it is waited for."""

    def __init__(self, inner: Any, noted: list[list[float]]):
        self.inner, self.noted, self.allocate = inner, noted, inner.allocate

    def __call__(self, **options: Any) -> dist.Work:
        one = [perf_counter(), 0.0, 0.0]
        self.noted.append(one)
        return Waiting(self.inner(**options), one)


class Waiting(dist.Work):
    """The Work of `Noted`."""

    def __init__(self, inner: dist.Work, noted: list[float]):
        super().__init__()
        self.inner, self.noted = inner, noted

        def ended(future: torch.futures.Future) -> None:
            noted[1] = perf_counter()

        self.future = inner.get_future().then(ended)

    def wait(self, timeout: Any = None) -> bool:
        begin = perf_counter()
        self.future.wait()
        self.noted[2] = perf_counter() - begin
        return self.inner.wait()


class Trainer:
    """A model under DDP or FSDP2 that records when its gradients are in flight.

    Parameters
    ----------
    way : str
        ddp, fsdp2 or hsdp.
    variant : str
        A variant as described above.
    """

    def __init__(self, way: str, variant: str, shape: Shape, seed: int = 0):
        torch.manual_seed(seed)
        model = GPT(shape)
        codecs, _, levels = variant.partition("@")
        codec, _, parameters = codecs.partition("+")
        options: dict[str, Any] = {"levels": int(levels)} if levels else {}
        self.now, self.states, self.group = Pass(), [], dist.group.WORLD
        #: For each all-gather of parameters: start, completion, and seconds that it was waited for.
        self.gathers: list[list[float]] = []
        ours = variant.startswith("backend:")
        if ours:
            chosen = compcoll.torch.Options(codec=variant.removeprefix("backend:"))
            self.group = dist.new_group(backend="compcoll", pg_options=chosen)
        if way == "ddp":
            self.model: torch.nn.Module = DistributedDataParallel(
                model, process_group=self.group, gradient_as_bucket_view=True
            )
            if ours or codec == "gloo":
                self.model.register_comm_hook(self, Trainer._allreduce)
            else:
                self.states = [compcoll.torch.compress_ddp(self.model, codec, **options)]
        else:
            mesh = self._mesh(way, compressed=not ours and codec != "gloo")
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            self.model = fully_shard(model, mesh=mesh)
            if way == "hsdp":
                options = {"all_reduce": codec, "replicas": self.replicas}
            else:
                options |= {"reduce_scatter": codec, "all_gather": parameters or None, "feeds_back": True}
            if not ours and codec != "gloo":
                found = compcoll.torch.compress_fsdp(self.model, **options)
                self.states = [state for states in found.values() for state in states]
            for state in self.states:
                if isinstance(state, compcoll.torch.CompressedAllGather):
                    state.module.set_custom_all_gather(Noted(state, self.gathers))
        #: An optimizer of little work, for timing steps; training replaces it.
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def _mesh(self, way: str, compressed: bool) -> DeviceMesh:
        """Mesh of FSDP2, or of HSDP with hosts as replicas; only its shards if compcoll averages replicas."""
        if way == "fsdp2":
            return DeviceMesh.from_group(self.group, "cpu", mesh_dim_names=("fsdp",))
        hosts = max(len(set(MPI.COMM_WORLD.allgather(node_name()))), 2)
        names = "replicate", "shard"
        mesh = init_device_mesh("cpu", (hosts, dist.get_world_size() // hosts), mesh_dim_names=names)
        self.replicas = mesh.get_group("replicate")
        return mesh["shard"] if compressed else mesh

    def step(self, x: torch.Tensor, y: torch.Tensor) -> Pass:
        """Run a training step; return its backward pass, with times relative to its beginning."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x), y)
        loss.register_hook(self._at_the_end)
        self.now = Pass(perf_counter())
        loss.backward()
        self.now.end = perf_counter()
        self.optimizer.step()
        return self.now.relative()

    def alone(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """Seconds of DDP's backward pass without messages, and of its messages alone, started together."""
        with self.model.no_sync():  # type: ignore[operator]
            loss = cross_entropy(self.model(x), y)
            begin = perf_counter()
            loss.backward()
            computing = perf_counter() - begin
        tensors = [torch.randn(int(nbytes) // 4) for nbytes, _, _ in self.now.buckets]
        dist.barrier()
        begin = perf_counter()
        for work in [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]:
            work.wait()
        return computing, perf_counter() - begin

    def counted(self) -> np.ndarray:
        """Bytes that this rank has sent, before compression and as frames."""
        return np.array([[one.raw_nbytes, one.wire_nbytes] for one in self.states] or [[0, 0]]).sum(0)

    def note(self, nbytes: int, future: torch.futures.Future) -> torch.futures.Future:
        """Record when an exchange starts and completes."""
        noted = [float(nbytes), perf_counter(), 0.0]
        self.now.buckets.append(noted)

        def ended(future: torch.futures.Future) -> torch.Tensor:
            noted[2] = perf_counter()
            return future.value()

        return future.then(ended)

    def _at_the_end(self, gradient: torch.Tensor) -> None:
        """Record when all gradients are computed: this callback is the first one of the backward pass."""

        def note() -> None:
            self.now.gradients = perf_counter()

        Variable._execution_engine.queue_callback(note)

    def _allreduce(self, bucket):  # torch checks annotations, and rejects strings
        tensor = bucket.buffer().div_(dist.get_world_size())
        future = dist.all_reduce(tensor, group=self.group, async_op=True).get_future()
        return self.note(tensor.nbytes, future.then(lambda future: future.value()[0]))


def share_hidden(gathers: list[list[float]]) -> float:
    """Share of the all-gathers' time in flight during which nothing waited for them."""
    whole = until = 0.0
    for begin, end, _ in gathers:
        whole += max(end - max(begin, until), 0.0)
        until = max(end, until)
    return max(1 - sum(waited for _, _, waited in gathers) / whole, 0.0) if whole else 0.0


def measured(trainer: Trainer, x: torch.Tensor, y: torch.Tensor, steps: int) -> tuple[dict[str, float], Pass]:
    """Median times and mean bytes of steps over all ranks, and rank 0's median pass; collective."""
    world, submit, seconds, shares, sent = MPI.COMM_WORLD, hooks.submit, [], [], 0
    hidden: list[float] = []
    passes: list[tuple[float, int, Pass]] = []
    counted = np.zeros(2)

    def noting(pipeline: Pipeline, phases: hooks.Phases, tensor: torch.Tensor) -> torch.futures.Future:
        future = submit(pipeline, phases, tensor)
        return future if pipeline.name == "parameters" else trainer.note(0, future)

    hooks.submit = noting
    try:
        for step in range(steps + 2):
            dist.barrier()
            trainer.gathers.clear()
            before, begin, had = port_bytes()[0], perf_counter(), trainer.counted()
            one = trainer.step(x, y)
            taken = perf_counter() - begin
            dist.barrier()
            if step >= 2:  # DDP rebuilds its buckets after the first step
                seconds.append(world.allreduce(taken, MPI.MAX))
                passes.append((one.end, step, one))
                shares.append(world.allreduce(share_inside(one), MPI.MIN))
                hidden.append(world.allreduce(share_hidden(trainer.gathers), MPI.MIN))
                sent += port_bytes()[0] - before
                counted += trainer.counted() - had
    finally:
        hooks.submit = submit
    raw, frames = world.allreduce(counted) / steps / 1e6
    row = {
        "seconds": float(np.median(seconds)),
        "share_inside": float(np.median(shares)),
        "share_hidden": float(np.median(hidden)),
        "port_mb": world.allreduce(sent, MPI.MAX) / steps / 1e6,
        "raw_mb": raw,
        "frames_mb": frames,
    }
    return row, sorted(passes)[len(passes) // 2][2]


def final_loss(trainer: Trainer, shape: Shape, batch: int, steps: int, seed: int) -> float:
    """Train for `steps` steps and return the loss on held-out bytes; collective."""
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    rng = np.random.default_rng([seed, dist.get_rank()])
    for _ in range(steps):
        trainer.step(*corpus().batch(rng, batch, shape.length))
    with torch.no_grad():
        x, y = corpus().held_out(64, shape.length)
        return float(cross_entropy(trainer.model(x), y))


def lines(rows: dict[str, Any]) -> list[str]:
    """Lines of a table of the measurements."""
    found = [
        f"{'':36} {'s a step':>9} {'MB by a port':>13} {'raw, MB':>8} {'frames, MB':>11} {'inside':>7} "
        f"{'hidden':>7}  loss"
    ]
    for name, row in rows.items():
        text = f"{name:36}"
        if "seconds" in row:
            text += (
                f" {row['seconds']:9.2f} {row['port_mb']:13.1f} {row['raw_mb']:8.1f} {row['frames_mb']:11.1f}"
            )
            text += f" {row['share_inside']:7.0%} {row.get('share_hidden', 0.0):7.0%}"
        losses = list(row.get("losses", {}).values())
        if losses:
            text += f"  {np.mean(losses):.3f} ± {np.std(losses, ddof=min(1, len(losses) - 1)):.3f}"
        if "backward" in row:
            text += "  backward pass {:.2f} s, alone {:.2f}, messages alone {:.2f}".format(*row["backward"])
        found.append(text)
    return found


@click.command(context_settings={"show_default": True})
@click.option("--ways", default="ddp,fsdp2", help="Separated by commas.")
@click.option("--variants", default=VARIANTS, help=VARIANT_HELP)
@click.option("--layers", default=11, type=click.IntRange(1))
@click.option("--width", default=384, type=click.IntRange(16))
@click.option("--batch", default=1, type=click.IntRange(1), help="Pieces a step on each rank.")
@click.option("--length", default=64, type=click.IntRange(8), help="Bytes of a piece.")
@click.option("--steps", default=5, help="Steps that count, after two that do not; 0: no times.")
@click.option("--seeds", default=0, help="Seeds to train with.")
@click.option("--train-steps", default=200, type=click.IntRange(1))
@click.option("--json", "json_path", type=click.Path(), help="Figures, also those of an earlier run.")
@click.option("--plot", type=click.Path(), help="Draw DDP's median passes, and time their parts alone.")
def run(ways, variants, layers, width, batch, length, steps, seeds, train_steps, json_path, plot) -> None:
    """Time steps, count bytes through ports, and train, beside gloo."""
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    shape = Shape(layers, width, 6 if width % 6 == 0 else 4, length)
    x, y = corpus().batch(np.random.default_rng(world.rank), batch, length)
    path = Path(json_path) if json_path else None
    settings = {"parameters": shape.parameters, "batch": batch, "length": length, "ranks": world.size}
    settings["train_steps"] = train_steps
    rows: dict[str, Any] = {}
    if world.rank == 0 and path and path.exists():
        known = json.loads(path.read_text())
        if known["settings"] != settings:
            raise click.UsageError(f"{path} is of {known['settings']}, and this run of {settings}")
        rows = known["rows"]
    rows = world.bcast(rows)
    about = describe(world, "training beside gloo", "the standard library's sources", "f4")

    def keep() -> None:
        if world.rank == 0 and path:
            command = " ".join(["python -m benchmarks.training.hooks", *sys.argv[1:]])
            content = {**about, "command": command, "settings": settings, "rows": rows}
            path.write_text(json.dumps(content, indent=1, default=str))

    passes: dict[str, Pass] = {}
    for way in ways.split(","):
        for variant in variants.split(","):
            row = rows.setdefault(f"{way} {variant}", {})
            if steps and "seconds" not in row:
                trainer = Trainer(way, variant, shape)
                found, one = measured(trainer, x, y, steps)
                row |= found
                if plot and way == "ddp":
                    passes[variant] = one
                    alone = np.median([trainer.alone(x, y) for _ in range(steps)], axis=0)
                    row["backward"] = [one.end, *alone.tolist()]
                del trainer
                gc.collect()
                keep()
            losses = row.setdefault("losses", {})
            for seed in range(seeds):
                if str(seed) not in losses:
                    begin, trainer = perf_counter(), Trainer(way, variant, shape, seed)
                    losses[str(seed)] = loss = final_loss(trainer, shape, batch, train_steps, seed)
                    del trainer
                    gc.collect()
                    keep()
                    if world.rank == 0:
                        seconds = perf_counter() - begin
                        click.echo(f"{way} {variant}, seed {seed}: {loss:.3f} in {seconds:.0f} s", err=True)
    if world.rank == 0:
        click.echo(
            f"{shape.parameters / 1e6:.1f} M parameters, {world.size} ranks, {train_steps} steps of training"
        )
        click.echo("\n".join(lines(rows)))
        if passes:
            draw(passes, plot)
    dist.destroy_process_group()


if __name__ == "__main__":
    run()

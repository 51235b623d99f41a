"""``mpiexec -n 2 python -m benchmarks.weight_sync``: WeightSync beside gloo's broadcast.

Steps imitate Adam on bfloat16 weights: each weight moves by up to the learning rate in float32, and is then
rounded.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import click
import numpy as np
import torch
import torch.distributed as dist

import compcoll.torch

from .osu.output import as_json, environment


def seconds(call) -> float:
    """Time until the last rank has finished."""
    dist.barrier()
    start = perf_counter()
    call()
    dist.barrier()
    return perf_counter() - start


@click.command()
@click.option("--million", default=100, show_default=True, help="Parameters.")
@click.option("--syncs", default=4, type=click.IntRange(2), show_default=True)
@click.option("--rate", default=1e-6, show_default=True, help="Learning rate.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to a file.")
def main(million: int, syncs: int, rate: float, json_path: Path | None) -> None:
    """Print the times of a first sync, of later ones, and of gloo's broadcast of the same tensors."""
    dist.init_process_group("compcoll")
    torch.set_num_threads(1)
    gloo = dist.new_group(backend="gloo")
    source = dist.get_rank() == 0
    torch.manual_seed(0)
    tensors = [torch.empty(1 << 20) for _ in range(million * 1_000_000 // (1 << 20))]
    masters = [tensor.normal_(0, 0.02) for tensor in tensors] if source else []
    weights = [tensor.bfloat16() if source else torch.zeros_like(tensor).bfloat16() for tensor in tensors]
    sync = compcoll.torch.WeightSync(weights, 0, gloo)
    times, ratios = [], []
    for step in range(syncs):
        plain = seconds(lambda: [dist.broadcast(tensor, 0, group=gloo) for tensor in weights])
        reports: list[compcoll.torch.SyncReport] = []
        ours = seconds(lambda found=reports: found.append(sync.sync()))
        times.append((plain, ours))
        if source:
            ratios.append(reports[0].raw_nbytes / reports[0].wire_nbytes)
            print(f"{step}: gloo {plain:.3f} s, WeightSync {ours:.3f} s; {reports[0]}", flush=True)
        for master, weight in zip(masters, weights, strict=False):
            master += rate * torch.randn_like(master).clamp(-1, 1)
            weight.copy_(master)
    if source and json_path:
        (_, first), *later = times
        rows = [
            {"name": "gloo's broadcast", "seconds": float(np.median(times, axis=0)[0]), "ratio": 1.0},
            {"name": "the first `sync`", "seconds": first, "ratio": ratios[0]},
            {"name": "later ones", "seconds": float(np.median(later, axis=0)[1]), "ratio": ratios[-1]},
        ]
        json_path.write_text(as_json({"operation": "weight sync", **environment(), "rows": rows}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

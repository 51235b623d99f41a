"""``mpiexec -n 2 python -m benchmarks.torch_messages``: small messages of torch.distributed, next to gloo's.

Both groups take turns, so that noise meets both alike.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import click
import torch
import torch.distributed as dist

import compcoll.torch


def pingpong(group: Any, x: torch.Tensor) -> None:
    """There and back between two ranks."""
    if dist.get_rank() == 0:
        dist.send(x, 1, group=group)
        dist.recv(x, 1, group=group)
    else:
        dist.recv(x, 0, group=group)
        dist.send(x, 0, group=group)


def exchange(group: Any, x: torch.Tensor) -> None:
    """One message each way, at once."""
    peer = 1 - dist.get_rank()
    ops = [dist.P2POp(dist.isend, x, peer, group), dist.P2POp(dist.irecv, torch.empty_like(x), peer, group)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def microseconds(call: Callable, group: Any, x: torch.Tensor, repeats: int) -> float:
    """Mean time of a call."""
    start = perf_counter()
    for _ in range(repeats):
        call(group, x)
    return (perf_counter() - start) / repeats * 1e6


@click.command()
@click.option("--samples", default=9, show_default=True)
@click.option("--repeats", default=200, show_default=True)
def main(samples: int, repeats: int) -> None:
    """Print the medians and the smallest of the samples, in microseconds for a message or an exchange."""
    torch.set_num_threads(1)
    dist.init_process_group("compcoll")
    gloo = dist.new_group(backend="gloo")
    for nbytes in (16, 2048, 65536):
        x = torch.ones(nbytes // 4)
        for name, call, messages in (("send, recv", pingpong, 2), ("batch_isend_irecv", exchange, 1)):
            times: dict[str, list[float]] = {"compcoll": [], "gloo": []}
            for _ in range(samples):
                for backend, group in (("compcoll", dist.group.WORLD), ("gloo", gloo)):
                    dist.barrier(gloo)
                    times[backend].append(microseconds(call, group, x, repeats) / messages)
            if dist.get_rank() == 0:
                found = "  ".join(f"{b} {median(t):7.1f} ({min(t):.1f})" for b, t in times.items())
                print(f"{nbytes:6d} B  {name:18s} {found}")
    dist.destroy_process_group()


if __name__ == "__main__":
    compcoll.torch.load()
    main()

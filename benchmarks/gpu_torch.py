"""The torch backend on CUDA tensors; `gpu_check` starts it on several ranks.

Results are compared with those of the same tensors on the host, by gloo where nothing is lossy; times stand
beside gloo's with copies to the host and back. Each row is printed as it is found, a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from benchmarks.gpu_machine import FAKE, Machine, open_machine

WORLD = MPI.COMM_WORLD
SPECS = ("lossless", "bfp:bits=6", "bfp:bits=14", "zfp:rate=8")
#: Whose order gloo chooses itself, and with it the rounding.
SUMS = ("all_reduce", "reduce_scatter")
#: Cycles of a kernel that only waits: some 50 ms, in which nothing of the host would be slow enough.
CYCLES = 100_000_000


def main() -> None:
    """Try everything, until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(FAKE, action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    machine = open_machine(options.fake, WORLD.rank)
    try:
        import torch.distributed as dist

        import compcoll.torch  # noqa: F401  # which registers the backend, and tells torch of the ranks
    except ImportError as error:
        report({"what": "torch", "status": "missing", "why": str(error)})
        return
    bench = Bench(machine, options.fake)
    if why := bench.without_gpu():
        report({"what": "torch", "status": "missing", "why": why})
        return
    dist.init_process_group("compcoll")
    bench.gloo = dist.new_group(backend="gloo")
    parts = [bench.order, bench.churn, bench.overlap, *(bench.part(op) for op in OPERATIONS)]
    for part in parts:
        if WORLD.bcast(time.monotonic() > end, 0):
            report({"what": part.__name__, "status": "timeout", "why": "no time left"})
            continue
        for row in attempted(part):
            report(row)
    dist.destroy_process_group()


def report(row: dict[str, Any]) -> None:
    """Print a row."""
    if WORLD.rank == 0:
        print(json.dumps(row), flush=True)


def attempted(part: Callable[[], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The rows of a part; where a rank fails the group is of no more use, and all end after a row."""
    try:
        yield from part()
    except Exception as error:
        print(
            json.dumps({"what": part.__name__, "status": "failed", "why": f"rank {WORLD.rank}: {error!r}"}),
            flush=True,
        )
        sys.stdout.flush()
        WORLD.Abort(1)


#: Each operation: elements given and received by one of ``p`` ranks, ``n`` in its largest buffer; the call by
#: its name since torch 2.13, and before.
OPERATIONS: dict[str, tuple[Callable[[int, int], tuple[int, int]], tuple[str, ...]]] = {
    "all_reduce": (lambda n, p: (0, n), ("all_reduce",)),
    "broadcast": (lambda n, p: (0, n), ("broadcast",)),
    "all_gather": (lambda n, p: (n // p, n), ("all_gather_single", "all_gather_into_tensor")),
    "reduce_scatter": (lambda n, p: (n, n // p), ("reduce_scatter_single", "reduce_scatter_tensor")),
    "all_to_all": (lambda n, p: (n, n), ("all_to_all_single",)),
    "send and receive": (lambda n, p: (n, n), ()),
}


class Bench:
    """The backend on a rank's GPU."""

    def __init__(self, machine: Machine, fake: bool):
        import torch

        self.torch, self.machine, self.fake = torch, machine, fake
        self.gloo: Any = None
        self.n = machine.messages[0] // 4 // WORLD.size * WORLD.size
        if fake:
            import fake_torch

            fake_torch.install()
            self.tensor = fake_torch.tensor
        else:
            self.tensor = lambda values: values.cuda()
            if torch.cuda.is_available():
                torch.cuda.set_device(machine.device.index)

    def without_gpu(self) -> str:
        """Why there is nothing to measure; the same on all ranks."""
        mine = "" if self.fake or self.torch.cuda.is_available() else "this torch finds no GPU"
        return next(filter(None, WORLD.allgather(mine)), "")

    def group(self, spec: str) -> Any:
        """A group that compresses everything."""
        import torch.distributed as dist

        import compcoll.torch

        return dist.new_group(pg_options=compcoll.torch.Options(spec, min_nbytes=0))

    def values(self, n: int) -> Any:
        """A rank's own, on the host."""
        return self.torch.sin(self.torch.arange(n) / 50 + WORLD.rank)

    def finish(self) -> None:
        """Wait for all streams."""
        self.torch.cuda.synchronize()

    # -- each operation

    def part(self, op: str) -> Callable[[], Iterator[dict[str, Any]]]:
        """Make the function that measures one operation."""

        def rows() -> Iterator[dict[str, Any]]:
            yield from self.measure(op)

        rows.__name__ = op
        return rows

    def measure(self, op: str) -> Iterator[dict[str, Any]]:
        """Rows of one operation."""
        import torch.distributed as dist

        sizes, names = OPERATIONS[op]
        name = next((name for name in names if hasattr(dist, name)), "")
        given, received = sizes(self.n, WORLD.size)
        host = self.values(given), self.values(received)
        send, recv = map(self.tensor, host)
        staged = tuple(x.clone() for x in host)

        def plain() -> None:
            for x, y in zip(staged, (send, recv), strict=True):
                x.copy_(y)
            self.call(name, *staged, self.gloo)
            recv.copy_(staged[1])
            self.finish()

        base = self.slowest(plain)
        for spec in SPECS:
            group = self.group(spec)
            recv.copy_(host[1])
            self.call(name, send, recv, group)
            self.finish()
            want = host[1].clone()
            self.call(name, host[0], want, self.gloo if spec == "lossless" and op not in SUMS else group)
            same = self.torch.equal(recv.cpu().view(self.torch.int32), want.view(self.torch.int32))
            row: dict[str, Any] = {"what": f"{op} {spec}, {4 * self.n >> 10} KiB", "status": "ok"}
            if not all(WORLD.allgather(same)):
                yield {**row, "status": "failed", "why": "the bits are not those of tensors on the host"}
                continue

            def ours(group: Any = group) -> None:
                self.call(name, send, recv, group)
                self.finish()

            took = self.slowest(ours)
            yield {**row, "ms": took * 1e3, "plain ms": base * 1e3, "speedup": base / took}

    def call(self, name: str, send: Any, recv: Any, group: Any) -> None:
        """One operation of torch's."""
        import torch.distributed as dist

        if name in ("all_reduce", "broadcast"):
            getattr(dist, name)(recv, *([0] if name == "broadcast" else []), group=group)
        elif name:
            getattr(dist, name)(recv, send, group=group)
        else:
            request = dist.irecv(recv, (WORLD.rank - 1) % WORLD.size, group=group)
            dist.isend(send, (WORLD.rank + 1) % WORLD.size, group=group).wait()
            request.wait()

    def slowest(self, call: Callable[[], Any]) -> float:
        """The shortest of several times, each that of the slowest rank."""
        call()
        times = []
        for _ in range(self.machine.repeats):
            WORLD.Barrier()
            begin = time.perf_counter()
            call()
            times.append(WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))
        return min(times)

    # -- streams

    def sleep(self) -> None:
        """Keep the current stream busy."""
        if not self.fake:
            self.torch.cuda._sleep(CYCLES)

    def order(self) -> Iterator[dict[str, Any]]:
        """Values that come late in one stream, and are read in another that has waited."""
        import torch.distributed as dist

        torch, group = self.torch, self.group("lossless")
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        total = self.values(self.n)
        dist.all_reduce(total, group=group)
        source, x = self.tensor(self.values(self.n)), self.tensor(self.values(self.n) * 0)
        self.finish()
        with torch.cuda.stream(one):
            self.sleep()
            x.copy_(source)
            work = dist.all_reduce(x, group=group, async_op=True)
        with torch.cuda.stream(two):
            begin = time.perf_counter()
            work.wait()
            waited = time.perf_counter() - begin
            y = x.clone()
            x.zero_()
        two.synchronize()
        right = torch.equal(y.cpu(), total)
        row = {"what": "order of streams", "status": "ok", "ms of wait": waited * 1e3}
        yield row if all(WORLD.allgather(right)) else {**row, "status": "failed", "why": "other values"}

    def churn(self) -> Iterator[dict[str, Any]]:
        """Tensors that nobody keeps while they travel, whose memory others would get too early."""
        import torch.distributed as dist

        torch, group = self.torch, self.group("lossless")
        n, right = max(self.n // 16, 1), True
        for i in range(20):
            x = self.tensor(torch.full((n,), float(i)))
            outs = [self.tensor(torch.zeros(n)) for _ in range(WORLD.size)]
            work = dist.all_gather(outs, x, group=group, async_op=True)
            del x
            for _ in range(3):
                self.tensor(torch.full((n,), -1.0))
            work.wait()
            right = right and all(bool((out == i).all()) for out in outs)
        row = {"what": "memory under way", "status": "ok"}
        yield row if all(WORLD.allgather(right)) else {**row, "status": "failed", "why": "other values"}

    def overlap(self) -> Iterator[dict[str, Any]]:
        """An operation beside kernels, as gradients travel during a backward pass."""
        import torch.distributed as dist

        torch, group = self.torch, self.group("bfp:bits=6")
        x = self.tensor(self.values(self.n))
        m = self.tensor(torch.ones(64 if self.fake else 4096, 64 if self.fake else 4096))

        def compute() -> None:
            for _ in range(self.machine.repeats * 4):
                m @ m
            self.finish()

        def travel() -> None:
            dist.all_reduce(x, group=group)
            self.finish()

        def both() -> None:
            work = dist.all_reduce(x, group=group, async_op=True)
            compute()
            work.wait()
            self.finish()

        alone = self.slowest(compute), self.slowest(travel)
        together = self.slowest(both)
        hidden = (sum(alone) - together) / max(min(alone), 1e-9)
        yield {
            "what": "all_reduce beside kernels",
            "status": "ok",
            "kernels ms": alone[0] * 1e3,
            "all_reduce ms": alone[1] * 1e3,
            "both ms": together * 1e3,
            "hidden": hidden,
        }


if __name__ == "__main__":
    main()

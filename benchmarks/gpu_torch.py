"""The torch backend on CUDA tensors; `gpu_check` starts it on several ranks.

Results are compared with those of the same tensors on the host, by gloo where nothing is lossy; times stand
beside gloo's with copies to the host and back. Each row is printed as it is found, a line of JSON.
``--part`` chooses among the operations, steps of DDP and FSDP2, weights that WeightSync and checkpoints
bring, and NCCL over sockets, for which ranks on one GPU claim to be on hosts of their own.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from benchmarks.gpu_machine import Machine, arguments, is_late, open_machine, report, slowest

WORLD = MPI.COMM_WORLD
SPECS = ("lossless", "bfp:bits=6")
#: Whose order gloo chooses itself, and with it the rounding.
SUMS = ("all_reduce", "reduce_scatter")
#: Cycles of a kernel that only waits: some 50 ms, in which nothing of the host would be slow enough.
CYCLES = 100_000_000
LAYERS, WIDTH, BATCH, STEPS = 6, 2048, 64, 6
#: For NCCL, which takes two ranks on one GPU where they say that it is two, or are allowed to share it.
NCCL = {
    "NCCL_HOSTID": f"rank{WORLD.rank}",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
}


def main() -> None:
    """Try everything, until the time is over."""
    parser = arguments(60)
    parser.add_argument("--part", default="operations", help="or training, weights, nccl")
    options = parser.parse_args()
    if options.part == "nccl":
        os.environ.update(NCCL)
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
    operations = (partial(bench.measure, op) for op in OPERATIONS)
    chosen = {
        "operations": (bench.order, bench.churn, bench.overlap, *operations),
        "training": (bench.ddp, bench.fsdp),
        "weights": (bench.weights,),
        "nccl": (bench.nccl,),
    }[options.part]
    for number, part in enumerate(chosen):
        what = f"{options.part} {number}"
        for row in () if is_late(end, what) else attempted(what, part):
            report(row)
    dist.destroy_process_group()


def attempted(what: str, part: Callable[[], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The rows of a part; where a rank fails the group is of no more use, and all end after a row."""
    try:
        yield from part()
    except Exception as error:
        row = {"what": what, "status": "failed", "why": f"rank {WORLD.rank}: {error!r}"}
        print(json.dumps(row), flush=True)
        WORLD.Abort(1)


def judged(row: dict[str, Any], right: bool, why: str = "other values") -> dict[str, Any]:
    """The row, failed where a rank found something wrong."""
    return row if all(WORLD.allgather(right)) else {**row, "status": "failed", "why": why}


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
        # Models are on the host in tests: what stands for CUDA there has no kernels but ours.
        self.on = "cpu" if fake else "cuda"
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

        base = slowest(plain, self.machine.repeats)
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

            took = slowest(ours, self.machine.repeats)
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
        yield judged({"what": "order of streams", "status": "ok", "ms of wait": waited * 1e3}, right)

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
        yield judged({"what": "memory under way", "status": "ok"}, right)

    def overlap(self) -> Iterator[dict[str, Any]]:
        """An operation beside kernels, as gradients travel during a backward pass."""
        import torch.distributed as dist

        torch, group, n = self.torch, self.group("bfp:bits=6"), self.machine.repeats
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

        alone = slowest(compute, n), slowest(travel, n)
        together = slowest(both, n)
        hidden = (sum(alone) - together) / max(min(alone), 1e-9)
        yield {
            "what": "all_reduce beside kernels",
            "status": "ok",
            "kernels ms": alone[0] * 1e3,
            "all_reduce ms": alone[1] * 1e3,
            "both ms": together * 1e3,
            "hidden": hidden,
        }

    # -- what programs do

    def timed(self, step: Callable[[], Any]) -> float:
        """The median time of a step, each that of the slowest rank."""
        times = []
        for _ in range(STEPS):
            WORLD.Barrier()
            begin = time.perf_counter()
            step()
            self.finish()
            times.append(WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))
        return sorted(times[1:])[len(times) // 2 - 1]

    def steps(self, name: str, spec: str, wrap: Callable[[Any], Any]) -> dict[str, Any]:
        """A row of some training steps of a model that ``wrap`` makes parallel."""
        torch, width = self.torch, 32 if self.fake else WIDTH
        torch.manual_seed(0)
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        model = wrap(torch.nn.Sequential(*layers[:-1]).to(self.on))
        torch.manual_seed(WORLD.rank)
        x = torch.randn(BATCH, width).to(self.on)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        losses: list[Any] = []

        def step() -> None:
            optimizer.zero_grad()
            losses.append(((model(x) - x) ** 2).mean())
            losses[-1].backward()
            optimizer.step()

        took = self.timed(step)
        what = f"{name} step, {spec}, {LAYERS * width * (width + 1) / 1e6:.1f} M parameters"
        return {"what": what, "status": "ok", "ms": took * 1e3, "loss": float(losses[-1].detach())}

    def ddp(self) -> Iterator[dict[str, Any]]:
        """Steps of DDP; those without losses have gloo's loss."""
        from torch.nn.parallel import DistributedDataParallel as DDP

        import compcoll.torch

        def hooked(model: Any) -> Any:
            made = DDP(model, process_group=self.gloo)
            compcoll.torch.compress_ddp(made, "bfp:bits=8")
            return made

        plain = self.steps("DDP", "gloo", lambda m: DDP(m, process_group=self.gloo))
        yield plain
        for spec in ("lossless", "bfp:bits=8"):
            row = self.steps("DDP", spec, lambda m, s=spec: DDP(m, process_group=self.group(s)))
            yield self.beside(plain, row, spec == "lossless" and WORLD.size == 2)
        yield self.beside(plain, self.steps("DDP", "bfp:bits=8 by compress_ddp over gloo", hooked))

    def fsdp(self) -> Iterator[dict[str, Any]]:
        """Steps of FSDP2; lossless ones have the loss of those that are not compressed."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        def sharded(model: Any, spec: str) -> Any:
            mesh = DeviceMesh.from_group(self.group(spec), self.on, mesh_dim_names=("fsdp",))
            for layer in model:
                if list(layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        plain = self.steps("FSDP2", "none", lambda m: sharded(m, "none"))
        yield plain
        for spec in ("lossless", "bfp:bits=8"):
            row = self.steps("FSDP2", spec, lambda m, s=spec: sharded(m, s))
            yield self.beside(plain, row, spec == "lossless" and WORLD.size == 2)

    def beside(self, plain: dict[str, Any], row: dict[str, Any], exact: bool = False) -> dict[str, Any]:
        """The row, with the speed-up over another."""
        row |= {"plain ms": plain["ms"], "speedup": plain["ms"] / row["ms"]}
        return judged(row, not exact or row["loss"] == plain["loss"], "another loss")

    def weights(self) -> Iterator[dict[str, Any]]:
        """Weights in bfloat16 as WeightSync brings them, and as checkpoints bring them back."""
        import torch.distributed.checkpoint as dcp

        from compcoll.checkpoint import Checkpointer
        from compcoll.torch import WeightSync
        from compcoll.torch.dcp import Reader, Writer

        torch = self.torch

        def parameters(seed: int) -> list[Any]:
            torch.manual_seed(seed)
            return [(torch.randn(self.n // 8) * 0.02).bfloat16().to(self.on) for _ in range(16)]

        def compared(name: str, found: list[Any]) -> dict[str, Any]:
            same = all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
            return judged({"what": f"{name}, {wanted[0].nbytes >> 6} KiB", "status": "ok"}, same)

        mine, wanted = parameters(WORLD.rank), parameters(0)
        WeightSync(mine, 0, self.gloo).sync()
        self.finish()
        yield compared("WeightSync", mine)
        wanted = parameters(WORLD.rank)
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as own:
            folder = Path(WORLD.bcast(own))
            checkpointer = Checkpointer(folder)
            checkpointer.save({str(i): one for i, one in enumerate(wanted)}, 0)
            checkpointer.wait()
            arrays = checkpointer.load().arrays
            read = [torch.from_numpy(arrays[str(i)].view("i2")).view(torch.bfloat16) for i in range(16)]
            yield compared("Checkpointer", [one.to(self.on) for one in read])
            checkpointer.close()
            state = {f"{WORLD.rank}-{i}": one for i, one in enumerate(wanted)}
            dcp.save(state, storage_writer=Writer(folder / "dcp"), process_group=self.gloo)
            state = {name: torch.zeros_like(one) for name, one in state.items()}
            dcp.load(state, storage_reader=Reader(folder / "dcp"), process_group=self.gloo)
            yield compared("DCP", list(state.values()))
            WORLD.Barrier()

    def nccl(self) -> Iterator[dict[str, Any]]:
        """NCCL over sockets, which users would take without this library; it need not work."""
        import torch.distributed as dist

        try:
            group = dist.new_group(backend="nccl")
            for op in ("all_to_all", "all_reduce", "broadcast"):
                sizes, names = OPERATIONS[op]
                name = next(name for name in names if hasattr(dist, name))
                send, recv = (self.tensor(self.values(n)) for n in sizes(self.n, WORLD.size))

                def call(name: str = name, send: Any = send, recv: Any = recv) -> None:
                    self.call(name, send, recv, group)
                    self.finish()

                took = slowest(call, self.machine.repeats)
                row = {"what": f"NCCL {op}, {4 * self.n >> 10} KiB", "status": "ok", "ms": took * 1e3}
                yield {**row, "nccl": ".".join(map(str, self.torch.cuda.nccl.version()))}
        except Exception as error:
            yield {"what": "NCCL", "status": "missing", "why": f"{error}".strip()[-300:]}


if __name__ == "__main__":
    main()

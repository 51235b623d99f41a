"""Times of the torch backend on CUDA tensors; `gpu_check` starts it on 2 ranks.

tests/torch checks its results. Times are compared with gloo's, with copies to the host and back, or with
those of NCCL over sockets; for NCCL, ranks on one GPU pretend to be on different hosts. Each row is a line of
JSON, printed at once. ``--part`` chooses operations, steps of DDP and FSDP2, weights by WeightSync and
checkpoints, or the first two beside NCCL. Hooks, which have threads and groups of their own, come last,
because a kernel of NCCL may wait forever for another rank's.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from mpi4py import MPI

from benchmarks.gpu_machine import Machine, arguments, is_late, open_machine, report, size_of, slowest

WORLD = MPI.COMM_WORLD
SPECS = ("none", "lossless", "bfp:bits=7")
CODECS = ("lossless", "bfp:bits=8")  # for training
#: Layers of the two models, with 25 M and 126 M parameters, and the width and batch of both.
SMALL, LARGE, WIDTH, BATCH = 6, 30, 2048, 64
STEPS = 6
#: Settings that let NCCL run two ranks on one GPU: each claims its own host, or may share the GPU.
NCCL = {
    "NCCL_HOSTID": f"rank{WORLD.rank}",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
}


def main() -> None:
    """Measure a part until the time has run out."""
    parser = arguments(60)
    parser.add_argument("--part", default="operations", help="or training, weights, nccl")
    options = parser.parse_args()
    if options.part == "nccl":
        os.environ.update(NCCL)
    end = time.monotonic() + options.seconds
    machine = open_machine(options.fake, WORLD.rank)
    try:
        import torch.distributed as dist

        import compcoll.torch  # noqa: F401  # registers the backend, and passes MPI's ranks to torch
    except ImportError as error:
        report({"what": "torch", "status": "missing", "why": str(error)})
        return
    bench = Bench(machine, options.fake)
    if why := bench.without_gpu():
        report({"what": "torch", "status": "missing", "why": why})
        return
    dist.init_process_group("compcoll")
    bench.gloo = dist.new_group(backend="gloo")
    chosen = {
        "operations": bench.operations,
        "training": bench.training,
        "weights": bench.weights,
        "nccl": bench.beside_nccl,
    }[options.part]
    for row in attempted(options.part, chosen):
        report(row)
        if is_late(end, options.part):
            break
    dist.destroy_process_group()


def attempted(what: str, part: Callable[[], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Rows of a part. A rank that fails prints a row and aborts, because the group is then unusable."""
    try:
        yield from part()
    except Exception as error:
        row = {"what": what, "status": "failed", "why": f"rank {WORLD.rank}: {error!r}", "ranks": WORLD.size}
        print(json.dumps(row), flush=True)
        WORLD.Abort(1)


def judged(row: dict[str, Any], right: bool, why: str = "other values") -> dict[str, Any]:
    """The row, with status ``failed`` if any rank found a wrong result."""
    return row if all(WORLD.allgather(right)) else {**row, "status": "failed", "why": why}


#: By operation: elements that one of ``p`` ranks sends and receives, ``n`` in its larger buffer; and names of
#: the call, since torch 2.13 and before.
OPERATIONS: dict[str, tuple[Callable[[int, int], tuple[int, int]], tuple[str, ...]]] = {
    "all_to_all": (lambda n, p: (n, n), ("all_to_all_single",)),
    "all_reduce": (lambda n, p: (0, n), ("all_reduce",)),
    "broadcast": (lambda n, p: (0, n), ("broadcast",)),
    "all_gather": (lambda n, p: (n // p, n), ("all_gather_single", "all_gather_into_tensor")),
    "reduce_scatter": (lambda n, p: (n, n // p), ("reduce_scatter_single", "reduce_scatter_tensor")),
    "send and receive": (lambda n, p: (n, n), ()),
}


class Bench:
    """The backend on a rank's GPU, and the group to compare with: NCCL's if there is one, else gloo's."""

    def __init__(self, machine: Machine, fake: bool):
        import torch

        self.torch, self.machine, self.fake = torch, machine, fake
        self.gloo: Any = None
        self.nccl: Any = None
        self.n = machine.messages[0] // 4 // WORLD.size * WORLD.size
        # In tests models are on the host: the stand-in for CUDA has no kernels but this library's.
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
        """The reason why no GPU can be measured, equal on all ranks; empty if one can."""
        mine = "" if self.fake or self.torch.cuda.is_available() else "this torch finds no GPU"
        return next(filter(None, WORLD.allgather(mine)), "")

    def group(self, spec: str) -> Any:
        """Make a group that compresses all sizes with a codec."""
        import torch.distributed as dist

        import compcoll.torch

        return dist.new_group(pg_options=compcoll.torch.Options(spec, min_nbytes=0))

    def finish(self) -> None:
        """Synchronize with all streams."""
        self.torch.cuda.synchronize()

    # -- each operation

    def operations(self, chosen: tuple[str, ...] = tuple(OPERATIONS)) -> Iterator[dict[str, Any]]:
        """Rows of operations, NCCL's included; gloo's times include copies to the host and back."""
        import torch.distributed as dist

        groups = {spec: self.group(spec) for spec in SPECS}
        for op in chosen:
            sizes, names = OPERATIONS[op]
            name = next((name for name in names if hasattr(dist, name)), "")
            host = [self.torch.sin(self.torch.arange(n) / 50 + WORLD.rank) for n in sizes(self.n, WORLD.size)]
            send, recv = map(self.tensor, host)

            def staged(name: str = name, host: Any = host, device: Any = (send, recv)) -> None:
                for x, y in zip(host, device, strict=True):
                    x.copy_(y)
                self.call(name, *host, self.gloo)
                device[1].copy_(host[1])
                self.finish()

            def called(group: Any, name: str = name, device: Any = (send, recv)) -> None:
                self.call(name, *device, group)
                self.finish()

            plain = (lambda called=called: called(self.nccl)) if self.nccl else staged
            base, end = slowest(plain, self.machine.repeats), size_of(4 * self.n)
            if self.nccl:
                yield {"what": f"NCCL {op}, {end}", "status": "ok", "ms": base * 1e3}
            for spec, group in groups.items():
                took = slowest(lambda group=group, called=called: called(group), self.machine.repeats)
                row = {"what": f"{op} {spec}, {end}", "status": "ok", "ms": took * 1e3}
                yield {**row, "plain ms": base * 1e3, "speedup": base / took}

    def call(self, name: str, send: Any, recv: Any, group: Any) -> None:
        """Call an operation of torch.distributed by name; an empty name means send and receive."""
        import torch.distributed as dist

        if name in ("all_reduce", "broadcast"):
            getattr(dist, name)(recv, *([0] if name == "broadcast" else []), group=group)
        elif name:
            getattr(dist, name)(recv, send, group=group)
        else:
            request = dist.irecv(recv, (WORLD.rank - 1) % WORLD.size, group=group)
            dist.isend(send, (WORLD.rank + 1) % WORLD.size, group=group).wait()
            request.wait()

    # -- training

    def training(self, models: tuple[int, ...] = (SMALL,)) -> Iterator[dict[str, Any]]:
        """Rows of steps without compression, with the backend, and with hooks on the uncompressed group.

        Lossless steps have to give the same loss as uncompressed ones.
        """
        cases = [(kind, layers) for layers in models for kind in ("DDP", "FSDP2")]
        plain: dict[tuple[str, int], Any] = {}
        for case in cases:
            plain[case] = self.steps(*case)
            yield plain[case]
            for spec in CODECS:
                yield self.beside(plain[case], self.steps(*case, codec=spec), spec)
        for case in cases:
            for spec in CODECS:
                yield self.beside(plain[case], self.steps(*case, hook=spec), spec)

    def beside(self, plain: dict[str, Any], row: dict[str, Any], spec: str) -> dict[str, Any]:
        """The row with its speed-up over the plain one; failed if a lossless codec changed the loss."""
        row |= {"plain ms": plain["ms"], "speedup": plain["ms"] / row["ms"]}
        exact = spec == "lossless" and WORLD.size == 2
        return judged(row, not exact or row["loss"] == plain["loss"], "another loss")

    def steps(self, kind: str, layers: int, codec: str = "", hook: str = "") -> dict[str, Any]:
        """Row of some training steps, in the backend's group for a codec or in the group to compare with."""
        torch, width = self.torch, 32 if self.fake else WIDTH
        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        name, group = "NCCL" if self.nccl else "gloo", self.nccl or self.gloo
        if codec or (kind == "FSDP2" and not self.nccl):  # gloo has no reduce_scatter on GPUs
            name = codec or "none"
            group = self.group(name)
        model = self.parallel(kind, torch.nn.Sequential(*parts[:-1]).to(self.on), group, hook)
        torch.manual_seed(WORLD.rank)
        x = torch.randn(BATCH, width).to(self.on)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        losses: list[Any] = []

        def step() -> None:
            optimizer.zero_grad()
            losses.append(((model(x) - x) ** 2).mean())
            losses[-1].backward()
            optimizer.step()
            self.finish()

        step()
        times = []
        for _ in range(STEPS - 1):
            WORLD.Barrier()
            begin = time.perf_counter()
            step()
            times.append(WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))
        ways = f"{hook} by compress_{kind.lower().rstrip('2')} over {name}" if hook else name
        what = f"{kind} step, {ways}, {layers * width * (width + 1) / 1e6:.3g} M parameters"
        ms = 1e3 * sorted(times)[len(times) // 2]
        return {"what": what, "status": "ok", "ms": ms, "loss": float(losses[-1].detach())}

    def parallel(self, kind: str, model: Any, group: Any, hook: str) -> Any:
        """Wrap a model in DDP or FSDP2; ``hook``, if not empty, is the codec of a hook for its messages."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel as DDP

        import compcoll.torch

        if kind == "DDP":
            model = DDP(model, process_group=group)
            if hook:
                compcoll.torch.compress_ddp(model, hook)
            return model
        mesh = DeviceMesh.from_group(group, self.on, mesh_dim_names=("fsdp",))
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if hook:
            compcoll.torch.compress_fsdp(model, hook, hook)
        return model

    def beside_nccl(self) -> Iterator[dict[str, Any]]:
        """Rows beside NCCL over sockets, or one row if NCCL does not work; gloo replaces it in tests."""
        import torch.distributed as dist

        try:
            self.nccl = dist.new_group(backend="gloo" if self.fake else "nccl")
            dist.all_reduce(self.torch.ones(1).to(self.on), group=self.nccl)
            self.finish()
        except Exception as error:
            return iter([{"what": "NCCL", "status": "missing", "why": f"{error}".strip()[-300:]}])
        version = "none" if self.fake else ".".join(map(str, self.torch.cuda.nccl.version()))
        about = {"what": "NCCL over sockets", "status": "ok", "nccl": version}
        operations = self.operations(("all_to_all", "all_reduce", "broadcast"))
        return chain([about], operations, self.training((SMALL, LARGE)))

    # -- weights

    def weights(self) -> Iterator[dict[str, Any]]:
        """Rows that check bfloat16 weights after WeightSync, and after loading from checkpoints."""
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


if __name__ == "__main__":
    main()

"""The model against the clock: predicted and measured times of collectives, side by side.

The model knows links, processors and codecs, each measured alone, and of collectives one: plain MPI's
Alltoall of 1 MiB, which is marked and not counted. Run it in the lab, where the links are known::

    python -m benchmarks.netlab --hosts 2 --gbit 1 -- python -m benchmarks.validate
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click
import numpy as np
from mpi4py import MPI

from compcoll import Comm, codec
from compcoll.engine.measure import PLAIN_NBYTES, leaders_of, measure_machine, slowest
from compcoll.model.advisor import measure_speed
from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call, predict
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.operations import ALGORITHMS

from .osu import operations as osu
from .osu.data import size_list, source
from .osu.output import as_json, describe
from .osu.timing import run_size

__all__ = ["main"]

OPERATIONS = {
    "alltoall": "Alltoall",
    "allgather": "Allgather",
    "bcast": "Bcast",
    "reduce_scatter": "Reduce_scatter_block",
    "allreduce": "Allreduce",
}
#: Relative error up to which a prediction counts as close.
CLOSE = 0.25


@click.command(context_settings={"show_default": True})
@click.option(
    "--codec", "specs", default="bfp:bits=7,zfp:rate=8,lossless", help="Codecs, separated by commas."
)
@click.option(
    "--sizes",
    default="1M:32M:2",
    help="Bytes of the buffer that a rank passes: FIRST:LAST[:FACTOR] or a list.",
)
@click.option("--iters", default=5, type=click.IntRange(1), help="Calls of each kind; two seconds' at least.")
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
def main(specs: str, sizes: str, iters: int, json_path: str | None) -> None:
    """Compare the model's predictions with measured times."""
    world = MPI.COMM_WORLD
    values = source(None, np.dtype(np.float32), world.rank)
    machine = measure_machine(world)
    per_node = -(-world.size // len(set(leaders_of(world))))
    comms = {"mpi": world, **{spec: Comm(world, codec=spec, min_nbytes=1) for spec in specs.split(",")}}
    sample = values(1 << 18)
    speeds = {spec: slowest(world, measure_speed(codec(spec), sample)) for spec in specs.split(",")}
    rows: list[dict] = []
    if world.rank == 0:
        link = machine.network
        print(f"# {world.size} ranks, {1e6 * link.latency:.0f} us, {link.bandwidth * 8e-9:.2f} Gb/s")
        print(
            f"{'operation':22s}{'bytes':>10s} {'codec':12s}"
            f"{'measured ms':>12s}{'predicted ms':>13s}{'error':>8s}"
        )
    for name, op in OPERATIONS.items():
        for nbytes in size_list(sizes):
            for measured in run_size(osu.OPERATIONS[name], comms, values, nbytes, iters=iters, min_seconds=2):
                call = Call.of_buffer(op, nbytes, world.size, per_node, comms[specs.split(",")[0]].workers)
                predicted = _predict(call, machine, measured.name, comms[measured.name], speeds)
                rows.append(
                    {
                        "op": op,
                        "nbytes": nbytes,
                        "codec": measured.name,
                        "measured": measured.seconds["midmean"],
                        "predicted": predicted,
                        "known": (op, nbytes, measured.name)
                        == ("Alltoall", PLAIN_NBYTES * world.size, "mpi"),
                    }
                )
                if world.rank == 0:
                    print(_line(rows[-1]), flush=True)
    about = describe(world, "validate", None, "f4")
    if world.rank == 0:
        new = [row for row in rows if not row["known"]]
        close = sum(abs(row["predicted"] / row["measured"] - 1) <= CLOSE for row in new)
        print(f"# {close} of {len(new)} predictions of what was not measured before are within 25 %")
        if json_path:
            about |= {
                "command": " ".join(["python -m benchmarks.validate", *sys.argv[1:]]),
                "machine_profile": asdict(machine),
                "speeds": {spec: asdict(speed) for spec, speed in speeds.items()},
            }
            with open(json_path, "w") as file:
                file.write(as_json({**about, "rows": rows}))


def _predict(call: Call, machine: MachineProfile, spec: str, comm, speeds: dict[str, CodecSpeed]) -> float:
    if spec == "mpi":
        names = [name for name in ALGORITHMS[call.op] if name not in ("compressed", "recursive_doubling")]
        return plain_seconds(call, machine, names)
    decision = comm.policy.decide(
        call.op, np.dtype("f4"), call.nbytes, call.size, "", "network", call.ranks_per_node
    )
    return predict(call, machine, speeds[spec], decision.algorithm, decision.chunk_nbytes)


def _line(row: dict) -> str:
    measured, predicted = row["measured"], row["predicted"]
    return (
        f"{row['op']:22s}{row['nbytes']:10d} {row['codec']:12s}{1e3 * measured:12.2f}{1e3 * predicted:13.2f}"
        f"{100 * (predicted / measured - 1):7.0f}%{'  measured before' * row['known']}"
    )


if __name__ == "__main__":
    main()

"""Predicted speed-up of each collective from 2 to thousands of ranks, over common fabrics.

The real algorithms run in virtual time, over a machine's profile, with as many ranks as are stated: see
compcoll/model/predict.py. The best of algorithms and chunk sizes is that of the advisor's quick look.
"""

from __future__ import annotations

import sys
from itertools import product

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from compcoll.model.advisor import advise
from compcoll.model.predict import Call, plain_seconds, predict
from compcoll.model.profile import FABRICS, CodecSpeed, MachineProfile, load
from compcoll.policy import ALGORITHMS

from .output import as_json, environment

__all__ = ["main"]

OPERATIONS = ("Alltoall", "Allgather", "Bcast", "Reduce_scatter_block", "Allreduce")
#: What a profile without measurements says of zfp at rate 8: half of what one AVX-512 core reaches.
CAREFUL = CodecSpeed(1.5e9, 1.0e9, 4.0)


@click.command(context_settings={"show_default": True})
@click.option("--nbytes", default=1 << 20, help="Bytes of a message; of the whole buffer for Bcast.")
@click.option(
    "--codec", "spec", default="zfp:rate=8", help="Codec, whose speed the profile of this machine gives."
)
@click.option("--dtype", default="float32", help="NumPy type of the values.")
@click.option("--max-ranks", default=4096, type=click.IntRange(2), help="Largest number of ranks.")
@click.option("--ranks-per-node", default=8, type=click.IntRange(1), help="Ranks that share a node's port.")
@click.option("--networks", default="1gbe,10gbe,25gbe,100gbe", help="Fabrics, separated by commas.")
@click.option("--json", "json_path", type=click.Path(), help="Write the predictions to a file.")
@click.option("--plot", "plot_path", type=click.Path(), help="Draw them into a file, PNG, PDF or SVG.")
def main(nbytes, spec, dtype, max_ranks, ranks_per_node, networks, json_path, plot_path) -> None:
    """Predict the speed-up of compressed collectives over plain MPI at scale."""
    unknown = [name for name in networks.split(",") if name not in FABRICS]
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(FABRICS)}", param_hint="--networks"
        )
    machine = load(lambda problem: click.echo(problem, err=True))
    speed = (machine.codec(spec, dtype) if machine else None) or CAREFUL
    machine = machine or MachineProfile("unknown", FABRICS["10gbe"], FABRICS["pcie4"])
    ranks = [2**k for k in range(1, 13) if 2**k <= max_ranks]
    rows = []
    cases = list(product(networks.split(","), OPERATIONS, ranks))
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for network, op, size in progress.track(cases, description="simulating"):
            part = nbytes if op != "Allreduce" else max(nbytes // size, 1)
            call = Call(op, part, size, ranks_per_node if size > ranks_per_node else 1)
            rows.append(
                {"network": network, **_row(call, machine.with_network(FABRICS[network], network), speed)}
            )
    about = {
        "command": " ".join(["python -m benchmarks.scaling", *sys.argv[1:]]), "nbytes": nbytes, "codec": spec,
        "dtype": dtype, "ranks_per_node": ranks_per_node, "encode": speed.encode, "decode": speed.decode,
        "ratio": speed.ratio, "profile": machine.name, **environment(),
    }  # fmt: skip
    _show(about, rows, ranks)
    if json_path:
        with open(json_path, "w") as file:
            file.write(as_json({**about, "rows": rows}))
    if plot_path:
        _plot(about, rows, plot_path)


def _row(call: Call, machine: MachineProfile, speed: CodecSpeed) -> dict:
    best = advise(call, machine, speed).best
    seconds = predict(call, machine, speed, best.algorithm, best.chunk_nbytes)
    names = [name for name in ALGORITHMS[call.op] if name not in ("compressed", "recursive_doubling")]
    plain = plain_seconds(call, machine, names)
    return {
        "op": call.op, "ranks": call.size, "speedup": plain / seconds, "seconds": seconds,
        "plain_seconds": plain, "algorithm": best.algorithm, "chunk_nbytes": best.chunk_nbytes,
    }  # fmt: skip


def _show(about: dict, rows: list[dict], ranks: list[int]) -> None:
    table = Table(
        title=f"Predicted speed-up of {about['codec']} over plain MPI, {about['nbytes']} bytes, "
        f"{about['ranks_per_node']} ranks per node"
    )
    for heading in ("network", "operation", *map(str, ranks)):
        table.add_column(heading, justify="left" if heading.isalpha() else "right")
    for network, op in dict.fromkeys((row["network"], row["op"]) for row in rows):
        values = [f"{r['speedup']:.2f}" for r in rows if (r["network"], r["op"]) == (network, op)]
        table.add_row(network, op, *values)
    Console(width=140).print(table)


def _plot(about: dict, rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, panels = plt.subplots(
        1,
        len(networks),
        figsize=(3.4 * len(networks) + 1.5, 3.6),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, network in zip(panels[0], networks, strict=True):
        for op in OPERATIONS:
            points = [(r["ranks"], r["speedup"]) for r in rows if (r["network"], r["op"]) == (network, op)]
            panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=op)
        panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
        panel.set(xscale="log", title=network, xlabel="ranks")
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("predicted speed-up over plain MPI")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle(
        f"{about['codec']}, messages of {about['nbytes'] >> 10} KiB, {about['ranks_per_node']} ranks per node"
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()

"""The figures of the report."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

from ..osu.timing import CONTROL
from .tables import size

__all__ = ["auto", "scaling", "speedups"]


def speedups(runs: list[dict], path: Path) -> None:
    """Speed-up over plain MPI, a panel for each link, a group of bars for each operation."""
    plt = _pyplot()
    links = list(dict.fromkeys(_gbit(run) for run in runs))
    ops = list(dict.fromkeys(run["operation"] for run in runs))
    names = [row["name"] for row in runs[0]["rows"] if row["name"] != "mpi"]
    figure, panels = plt.subplots(
        1, len(links), figsize=(4.2 * len(links), 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    width = 0.8 / len(names)
    for panel, gbit in zip(panels[0], links, strict=True):
        for i, name in enumerate(names):
            rows = [_row(runs, gbit, op, name) for op in ops]
            places = [x + (i - (len(names) - 1) / 2) * width for x in range(len(ops))]
            panel.bar(places, [row["speedup"] for row in rows], width, label=name)
        panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
        panel.set_xticks(range(len(ops)), ops, rotation=30, ha="right")
        panel.set(title=f"{gbit} Gb/s", xlabel="operation")
        panel.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel("speed-up over plain MPI")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(names))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def auto(runs: list[dict], path: Path) -> None:
    """Speed-up of codec=auto over the size of the message."""
    plt = _pyplot()
    links = list(dict.fromkeys(_gbit(run) for run in runs))
    figure, panels = plt.subplots(
        1, len(links), figsize=(4.2 * len(links), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, gbit in zip(panels[0], links, strict=True):
        for run in runs:
            if _gbit(run) == gbit:
                rows = [row for row in run["rows"] if row["name"] == "auto"]
                sizes, gains = [r["nbytes"] for r in rows], [r["speedup"] for r in rows]
                errors = [r.get("spread") or 0.0 for r in rows]
                panel.errorbar(
                    sizes, gains, errors, fmt="o-", markersize=3, capsize=2, label=run["operation"]
                )
        again = [row for run in runs if _gbit(run) == gbit for row in run["rows"] if row["name"] == CONTROL]
        panel.plot(
            [r["nbytes"] for r in again],
            [r["speedup"] for r in again],
            "_",
            color="grey",
            label="plain MPI again",
        )
        panel.axhline(1 / 1.05, color="black", linewidth=0.8, linestyle="--")
        panel.set_xscale("log", base=2)
        panel.set_xticks([1 << k for k in (16, 19, 23)], ["64 KiB", "512 KiB", "8 MiB"])
        panel.set(title="shared memory" if gbit == "0" else f"{gbit} Gb/s", xlabel="size of a message")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("speed-up over plain MPI")
    panels[0][0].set_ylim(0, None)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def scaling(runs: list[dict], path: Path) -> None:
    """Predicted speed-up over the number of ranks, a panel for each network, on one kind of node."""
    plt = _pyplot()
    run = runs[-1]
    place = min((row["ranks_per_node"], row["cores"]) for row in run["rows"])
    rows_of: dict[str, dict[tuple, list[dict]]] = {}
    for row in run["rows"]:
        if (row["ranks_per_node"], row["cores"]) == place:
            of_network = rows_of.setdefault(row["network"], {})
            of_network.setdefault((row["op"], row["nbytes"]), []).append(row)
    networks, calls = list(rows_of), list(next(iter(rows_of.values())))
    figure, panels = plt.subplots(
        1, len(networks), figsize=(3.3 * len(networks), 4.6), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, network in zip(panels[0], networks, strict=True):
        for (op, nbytes), mark in zip(calls, "osv^DP", strict=False):
            rows = rows_of[network][op, nbytes]
            ranks, gains = [row["ranks"] for row in rows], [row["speedup"] for row in rows]
            panel.plot(ranks, gains, marker=mark, markersize=4, label=f"{op}, {size(nbytes)}")
        panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
        panel.set(title=f"{network} Gb/s" if network[-1].isdigit() else network, xlabel="number of ranks")
        panel.set_xscale("log", base=2)
        panel.set_xticks(ranks, [str(n) for n in ranks], rotation=45)
        panel.set_yscale("log", base=2)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("predicted speed-up over plain MPI")
    # Speed-ups below 1/8 are cut off: nobody would accept such a loss.
    most = max(row["speedup"] for of in rows_of.values() for rows in of.values() for row in rows)
    ticks = [2**k for k in range(-3, max(ceil(log2(most)), 1) + 1)]
    panels[0][0].set_yticks(ticks, [f"{n:g}" if n >= 1 else f"1/{1 / n:g}" for n in ticks])
    panels[0][0].set_ylim(ticks[0], 1.1 * ticks[-1])
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=min(len(calls), 3)
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _row(runs: list[dict], gbit: str, op: str, name: str) -> dict:
    run = next(run for run in runs if _gbit(run) == gbit and run["operation"] == op)
    return next(row for row in run["rows"] if row["name"] == name)


def _gbit(run: dict) -> str:
    words = run["command"].split()
    return words[words.index("--gbit") + 1]


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot

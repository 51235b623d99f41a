"""Effect of codecs on a loss: all strategies, several policies and seeds; a table, and curves.

``python -m benchmarks.training.study --seeds 5``. Each run is a job of its own under mpiexec; runs that the
results already have are not repeated. Losses are compared with those of ``lossless``, seed by seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from itertools import product
from pathlib import Path

import click
import numpy as np

from ..osu.output import as_json

__all__ = ["main", "table"]

RESULTS = Path(__file__).parent.parent / "results"
EVERYWHERE = (
    "bfp:bits=8",
    "bfp:bits=6",
    "bfp:bits=5",
    "bfp:bits=4",
    "zfp:rate=16",
    "zfp:rate=10",
    "zfp:rate=8",
    "int8",
    "int4",
)
#: Way, ranks, dimensions of the mesh, policies.
STUDIES = {
    "fsdp": ("fsdp", 2, "", ("gloo", "lossless", *EVERYWHERE, "mzhybrid")),
    "ddp": ("ddp", 2, "", ("gloo", "lossless", *EVERYWHERE)),
    "dp x tp": ("hybrid", 4, "2,2,1", ("gloo", "lossless", "zfp:rate=8", "mzhybrid", "zhybrid")),
    "dp x pp": ("hybrid", 4, "2,1,2", ("gloo", "lossless", "zfp:rate=8", "mzhybrid", "zhybrid")),
    "moe": ("moe", 2, "", ("gloo", "lossless", "zfp:rate=16", "zfp:rate=8", "int8")),
}


@click.command(context_settings={"show_default": True})
@click.option("--only", multiple=True, type=click.Choice(list(STUDIES)), help="This study alone; repeatable.")
@click.option("--seeds", default=5, type=click.IntRange(1))
@click.option("--steps", default=250, type=click.IntRange(1))
@click.option("--render", is_flag=True, help="Write table and figure from the results that are there.")
def main(only: tuple[str, ...], seeds: int, steps: int, render: bool) -> None:
    """Train with several codecs and seeds, and compare the validation losses."""
    path = RESULTS / "training.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    for seed, name in product(range(seeds), only or (() if render else STUDIES)):
        way, ranks, dims, policies = STUDIES[name]
        for policy in policies:
            if any(_is(run, name, policy, seed, steps) for run in runs):
                continue
            runs.append({"study": name, **_train(way, ranks, dims, policy, seed, steps)})
            path.write_text(as_json({"date": date.today().isoformat(), "runs": runs}))
    click.echo("\n".join(table(runs)))
    draw(runs, RESULTS / "training.png")


def _is(run: dict, study: str, policy: str, seed: int, steps: int) -> bool:
    return (run["study"], run["policy"], run["seed"], run["steps"]) == (study, policy, seed, steps)


def _train(way: str, ranks: int, dims: str, policy: str, seed: int, steps: int) -> dict:
    out = RESULTS / "run.json"
    command = ["mpiexec", "-n", str(ranks), sys.executable, "-W", "ignore", "-m", "benchmarks.training.train"]
    command += ["--way", way, "--policy", policy, "--seed", str(seed), "--steps", str(steps)]
    command += ["--dims", dims] if dims else []
    click.echo(" ".join(command[5:]), err=True)
    subprocess.run([*command, "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
    result = json.loads(out.read_text())
    out.unlink()
    return result


def finals(runs: list[dict], study: str, policy: str) -> dict[int, float]:
    """The last validation loss, by seed."""
    found = [run for run in runs if run["study"] == study and run["policy"] == policy]
    return {run["seed"]: run["curve"][-1][1] for run in found}


def table(runs: list[dict]) -> list[str]:
    """Lines of a Markdown table: losses, differences from lossless, and bytes sent."""
    lines = [
        "| way | policy | seeds | validation loss | above lossless | MB sent | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for study, policy in dict.fromkeys((run["study"], run["policy"]) for run in runs):
        own, base = finals(runs, study, policy), finals(runs, study, "lossless")
        gaps = [own[seed] - base[seed] for seed in own if seed in base]
        spread = f" +- {np.std(gaps, ddof=1):.4f}" if len(gaps) > 1 else ""
        gap = f"{np.mean(gaps):+.4f}{spread}" if gaps and policy != "lossless" else "-"
        first = next(run for run in runs if run["study"] == study and run["policy"] == policy)
        sent = ("-", "-")
        if first["wire_nbytes"]:
            sent = f"{first['wire_nbytes'] / 1e6:.0f}", f"{first['raw_nbytes'] / first['wire_nbytes']:.2f}"
        loss = float(np.mean(list(own.values())))
        lines.append(f"| {study} | {policy} | {len(own)} | {loss:.4f} | {gap} | {sent[0]} | {sent[1]} |")
    return lines


def draw(runs: list[dict], path: Path) -> None:
    """Draw validation losses over steps, with a panel for each way: mean and range over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    studies = list(dict.fromkeys(run["study"] for run in runs))
    figure, panels = pyplot.subplots(
        1, len(studies), figsize=(4.2 * len(studies), 4), layout="constrained", squeeze=False, sharey=True
    )
    names = list(dict.fromkeys(run["policy"] for run in runs))
    for panel, study in zip(panels[0], studies, strict=True):
        for policy in names:
            own = [run["curve"] for run in runs if run["study"] == study and run["policy"] == policy]
            if not own:
                continue
            steps, losses = np.array(own[0])[:, 0], np.array(own)[:, :, 1]
            i = names.index(policy)
            style = {"gloo": "k--", "lossless": "k-"}.get(policy, f"C{i}{'-' if i < 10 else '-.'}")
            panel.plot(steps, losses.mean(0), style, label=policy, linewidth=1.2)
            panel.fill_between(steps, losses.min(0), losses.max(0), color=style[:-1].rstrip("-"), alpha=0.15)
        panel.set(title=study, xlabel="step")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    panels[0][0].set_ylabel("validation loss, nats a byte")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()

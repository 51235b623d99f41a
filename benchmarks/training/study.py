"""Effect of codecs on a loss: several strategies, codecs and seeds, and their losses beside ``lossless``.

``python -m benchmarks.training.study --seeds 5``. Each run is a job of its own under mpiexec.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from ..osu.output import as_json, environment
from ..report.applications import losses

__all__ = ["main"]

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
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the losses to a file.")
def main(only: tuple[str, ...], seeds: int, steps: int, json_path: Path | None) -> None:
    """Train with several codecs and seeds, and compare the validation losses."""
    jobs = [
        (name, policy, seed)
        for name in only or STUDIES
        for policy in STUDIES[name][-1]
        for seed in range(seeds)
    ]
    rows: list[dict] = []
    for i, (name, policy, seed) in enumerate(jobs, 1):
        way, ranks, dims, _ = STUDIES[name]
        click.echo(f"[{i}/{len(jobs)}] {name} with {policy}, seed {seed}", err=True)
        rows.append({"study": name, **_train(way, ranks, dims, policy, seed, steps)})
        if json_path:
            json_path.write_text(as_json({"operation": "losses", **environment(), "rows": rows}))
    click.echo("\n".join(losses([{"rows": rows}])))


def _train(way: str, ranks: int, dims: str, policy: str, seed: int, steps: int) -> dict:
    """Train in a job of its own, and return what `benchmarks.training.train` has written."""
    command = ["mpiexec", "-n", str(ranks), sys.executable, "-W", "ignore", "-m", "benchmarks.training.train"]
    command += ["--way", way, "--policy", policy, "--seed", str(seed), "--steps", str(steps)]
    command += ["--dims", dims] if dims else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        subprocess.run([*command, "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


if __name__ == "__main__":
    main()

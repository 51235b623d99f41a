"""``make report``: run the benchmarks, and write their results into pages and into one document.

Every experiment is a list of commands. Their measurements are written to benchmarks/results/, and from there
to the tables of pages and to benchmarks/REPORT.md and its figures; ``--render`` writes these again without
measuring.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from time import monotonic

import click

from ..osu.output import as_json
from . import pages
from .experiments import RESULTS, ROOT, SHARED, Experiment, experiments

__all__ = ["main"]

#: Exit status of a command that finds no lab on this machine.
UNAVAILABLE = 69


@click.command()
@click.option("--only", multiple=True, help="Measure this experiment alone; may be repeated.")
@click.option("--quick", is_flag=True, help="Measure what README and docs/benchmarks.md show.")
@click.option("--render", is_flag=True, help="Write the pages from the results that are there.")
@click.option("--list", "listing", is_flag=True, help="Show the experiments and their minutes on two cores.")
def main(only: tuple[str, ...], quick: bool, render: bool, listing: bool) -> None:
    """Measure, and write the tables of README, docs and benchmarks/REPORT.md."""
    known = list(experiments())
    unknown = set(only) - {experiment.name for experiment in known}
    if unknown:
        names = ", ".join(experiment.name for experiment in known)
        raise click.BadParameter(f"{unknown.pop()!r} is not one of {names}", param_hint="--only")
    chosen = [one for one in known if (not only or one.name in only) and (one.quick or not quick)]
    if listing:
        for one in chosen:
            click.echo(f"{one.minutes:5.1f} minutes  {one.name:16} {one.title}")
        click.echo(f"{sum(one.minutes for one in chosen):5.1f} minutes")
        return
    for i, experiment in enumerate([] if render else chosen):
        if measure(experiment, sum(one.minutes for one in chosen[i + 1 :])):
            pages.write(known, {experiment.name})
    write(known)


def measure(experiment: Experiment, later: float = 0.0) -> bool:
    """Run the commands of an experiment and keep their results; False if this machine cannot run it.

    Parameters
    ----------
    experiment : Experiment
    later : float
        Minutes of the experiments after this one, for the progress.
    """
    if missing := experiment.missing():
        click.echo(f"[{experiment.name}] skipped: no {', '.join(missing)}", err=True)
        return False
    runs, total, begin = [], len(experiment.commands), monotonic()
    (ROOT / "out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        for i, arguments in enumerate(experiment.commands):
            text = " ".join(["python", "-m", *arguments]).replace(str(SHARED), "$COMPCOLL_SHARED")
            left = later + experiment.minutes * (total - i) / total
            click.echo(f"[{experiment.name} {i + 1}/{total}, about {left:.0f} minutes left] {text}", err=True)
            done = subprocess.run([sys.executable, "-m", *arguments, "--json", str(path)], cwd=ROOT)
            if done.returncode == UNAVAILABLE:
                click.echo(f"[{experiment.name}] skipped: no lab on this machine", err=True)
                return False
            if not path.exists():
                raise click.ClickException(f"{text} ended with status {done.returncode}")
            runs.append({**json.loads(path.read_text()), "command": text})
            path.unlink()
    result = {"experiment": experiment.name, "date": date.today().isoformat(), "runs": runs}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{experiment.stem}.json").write_text(as_json(result))
    click.echo(f"[{experiment.name}] took {(monotonic() - begin) / 60:.1f} minutes", err=True)
    return True


def write(known: list[Experiment]) -> None:
    """Write all pages, the report and its figures from the available results."""
    changed = pages.write(known, {experiment.name for experiment in known})
    for experiment in known:
        found = pages.result(experiment)
        if experiment.figure and found:
            experiment.figure(found["runs"], RESULTS / f"{experiment.stem}.png")
    path = ROOT / "benchmarks" / "REPORT.md"
    path.write_text(pages.report(known))
    click.echo(f"wrote {', '.join(str(one.relative_to(ROOT)) for one in [*changed, path])}", err=True)


if __name__ == "__main__":
    main()

"""Tables in pages, between markers, and benchmarks/REPORT.md: both are written from benchmarks/results/."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import applications, calls, codecs_page, gains, predictions, programs, psnr, scale, tables, workloads
from .experiments import RESULTS, ROOT, Experiment

__all__ = ["MARKED", "TABLES", "Table", "filled", "report", "result", "source", "write"]

#: A table's name, and all that stands between its markers.
MARKED = re.compile(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", re.DOTALL)
#: Columns of a page and of a terminal.
WIDTH = 130
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Table:
    """A table in a page, between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.

    Attributes
    ----------
    name, page, experiment : str
        Its markers' name, a path from the root, and the experiment that has its results.
    rows : callable
        Returns the table of some runs, as lines of Markdown.
    """

    name: str
    page: str
    experiment: str
    rows: Callable[[list[dict]], list[str]]


_BENCHMARKS = "docs/benchmarks.md"
TABLES = [
    Table("gains", "README.md", "two-hosts", partial(tables.gains, links=("1", "10"), names=tables.FEW)),
    Table("checks", "README.md", "checks", gains.checks),
    Table("two-hosts", _BENCHMARKS, "two-hosts", tables.gains),
    Table("small", _BENCHMARKS, "small", calls.small),
    Table("open-mpi", _BENCHMARKS, "open-mpi", tables.gains),
    Table("both-directions", _BENCHMARKS, "both-directions", calls.both_directions),
    Table("solver", _BENCHMARKS, "solver", workloads.solver),
    Table("training", _BENCHMARKS, "training", tables.steps),
    Table("machinery", _BENCHMARKS, "machinery", calls.machinery),
    Table("latency", _BENCHMARKS, "latency", calls.latency),
    Table("overlap", _BENCHMARKS, "overlap", calls.overlap),
    Table("datatypes", _BENCHMARKS, "datatypes", calls.datatypes),
    Table("shapes", _BENCHMARKS, "shapes", calls.shapes),
    Table("codecs", _BENCHMARKS, "codecs", workloads.codecs),
    Table("psnr", "docs/codecs.md", "psnr", psnr.table),
    Table("codecs-example", "docs/codecs.md", "codecs-page", codecs_page.example),
    Table("codecs-ratios", "docs/codecs.md", "codecs-page", codecs_page.ratios),
    Table("codecs-errors", "docs/codecs.md", "codecs-page", codecs_page.errors),
    Table("checkpoints", "docs/checkpoint.md", "checkpoints", applications.checkpoints),
    Table("delta", "docs/delta.md", "delta", applications.differences),
    Table("transforms", "docs/rivals.md", "transforms", applications.transforms),
    Table("hooks", "docs/torch.md", "hooks", applications.hooks),
    Table("weight-sync", "docs/torch.md", "weight-sync", applications.weight_sync),
    Table("losses", "docs/torch.md", "losses", applications.losses),
    Table("halo", "docs/halo-exchange.md", "halo", programs.examples),
    Table("transpose", "docs/transpose.md", "transpose", programs.examples),
    Table("programs", "docs/programs.md", "programs", programs.packages),
    Table("predictions", "docs/reports.md", "predictions", predictions.table),
    Table("nodes", "docs/nodes.md", "nodes", scale.inside),
    Table("scaling-limits", "docs/nodes.md", "scaling", scale.limits),
    Table("scaling-speedups", "docs/nodes.md", "scaling", scale.speedups),
    Table("scaling-ranks", "docs/nodes.md", "scaling", scale.by_ranks),
]


def result(experiment: Experiment) -> dict | None:
    """The results of an experiment; None if it has not been measured."""
    path = RESULTS / f"{experiment.stem}.json"
    return json.loads(path.read_text()) if path.exists() else None


def source(name: str, found: dict) -> str:
    """Date, commit, machine, versions and command of results; ValueError if there are several of one."""
    runs = found["runs"]
    for kind, text in (("machines", _machine), ("commits", _commit)):
        several = sorted({text(run) for run in runs})
        if len(several) > 1:
            raise ValueError(f"{name} has runs of several {kind}: {'; '.join(several)}")
    versions = {run["versions"]["mpi"]: None for run in runs if "mpi" in run["versions"]}
    versions |= {f"torch {run['versions']['torch']}": None for run in runs if "torch" in run["versions"]}
    parts = [found["date"], f"commit {_commit(runs[0])}", _machine(runs[0]), *versions]
    command = f"`python -m benchmarks.report --only {name}`."
    line = f"{', '.join(parts)}: {command.replace(' ', NO_BREAK)}"
    return textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False).replace(NO_BREAK, " ")


def _machine(run: dict) -> str:
    """Processor, its instructions if they are known, and cores."""
    machine = run["machine"]
    name = re.sub(r"\((R|TM)\)", "", machine["processor"])
    level = {"avx512": " with AVX-512", "avx2": " with AVX2"}.get(machine.get("level", ""), "")
    return f"{name}{level}, {machine['cores']} cores"


def _commit(run: dict) -> str:
    commit = run.get("commit") or "unknown"
    return f"{commit[:10]}{'-dirty' * commit.endswith('-dirty')}"


def filled(text: str, chosen: Iterable[Table], results: dict[str, dict | None]) -> str:
    """A page's text with its tables written anew; ValueError if one has no markers."""
    for table in chosen:
        begin, end = (f"<!-- {table.name}:{side} -->" for side in ("begin", "end"))
        head, found, rest = text.partition(begin + "\n")
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{table.page} has no lines {begin} and {end}")
        measured = results[table.experiment]
        if measured is None:
            lines = [f"Not measured yet: `python -m benchmarks.report --only {table.experiment}`."]
        else:
            lines = [*table.rows(measured["runs"]), "", source(table.experiment, measured)]
        text = "\n".join([f"{head}{begin}", *lines, f"{end}{tail}"])
    return text


def write(chosen: list[Experiment], names: set[str]) -> list[Path]:
    """Write the tables of the experiments with these names; return the pages that have changed."""
    results = {experiment.name: result(experiment) for experiment in chosen}
    changed = []
    for page in dict.fromkeys(table.page for table in TABLES):
        own = [table for table in TABLES if table.page == page and table.experiment in names]
        before = (ROOT / page).read_text()
        after = filled(before, own, results)
        if after != before:
            (ROOT / page).write_text(after)
            changed.append(ROOT / page)
    return changed


def report(chosen: list[Experiment]) -> str:
    """The text of benchmarks/REPORT.md: all available results."""
    text = [
        "# Measurements",
        "",
        "Written by `make report` from `benchmarks/results/`. The lab is a cluster of network namespaces on "
        "one machine (`benchmarks/netlab`): every host's link is shaped in both directions. Each host has "
        "cores of its own as far as they go, one on a machine with two, unless a section says that hosts "
        "share them. Times are medians over calls of the maximum over ranks.",
        "",
    ]
    for experiment in chosen:
        found = result(experiment)
        if found is None:
            continue
        text += [f"## {experiment.title}", "", experiment.text, "", *experiment.rows(found["runs"])]
        if experiment.figure:
            text += ["", f"![{experiment.title}](results/{experiment.stem}.png)"]
        text += ["", *_about(experiment.name, found), ""]
    return "\n".join(text)


def _about(name: str, found: dict) -> list[str]:
    """Machine, versions and commands."""
    commands = [run["command"] for run in found["runs"]]
    details = ["<details><summary>Commands</summary>", "", "```", *commands, "```", "", "</details>"]
    return [source(name, found), "", *details]

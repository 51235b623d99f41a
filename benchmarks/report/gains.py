"""Three gains that a reader can check: a collective, a training step, and a program that nobody edited."""

from __future__ import annotations

from statistics import median

from ..programs.examples import EXAMPLES
from .tables import size

__all__ = ["checks"]


def checks(runs: list[dict]) -> list[str]:
    """Lines of a table of what is timed, plain and compressed, and the commands that time it."""
    cells = [part(run) for part, run in zip((_collective, _training, _program), runs, strict=True)]
    lines = ["| | plain | compressed | speed-up |", "| --- | ---: | ---: | ---: |"]
    for what, plain, compressed in cells:
        lines.append(
            f"| {what} | {1e3 * plain:.0f} ms | {1e3 * compressed:.0f} ms | {plain / compressed:.2f} |"
        )
    return [*lines, "", "```console", *(f"$ {run['command']}" for run in runs), "```"]


def _collective(run: dict) -> tuple[str, float, float]:
    plain, compressed = (row["seconds"]["median"] for row in run["rows"])
    name = run["operation"].capitalize()
    return f"{name} of {size(run['rows'][1]['nbytes'])}, `{run['rows'][1]['name']}`", plain, compressed


def _training(run: dict) -> tuple[str, float, float]:
    plain, compressed = (row["seconds"] for row in run["rows"])
    millions, codec = run["parameters"] / 1e6, run["rows"][1]["name"]
    return f"step of DDP, {millions:.0f} M parameters: gloo, backend with `{codec}`", plain, compressed


def _program(run: dict) -> tuple[str, float, float]:
    plain, compressed = (median(one["seconds"] for one in row["runs"]) for row in run["rows"])
    what = f"`examples/{EXAMPLES[run['operation']].file}` under `compcoll run`, `{run['rows'][1]['way']}`"
    return what, plain, compressed

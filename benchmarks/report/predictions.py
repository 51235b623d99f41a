"""The table of what traces predicted, beside what was then measured."""

from __future__ import annotations

__all__ = ["table"]


def table(runs: list[dict]) -> list[str]:
    """Seconds of each program as lines of Markdown: plain, traced, predicted and measured."""
    lines = [
        "| program | Gb/s | plain, s | `auto`, s | codec | predicted, s | measured, s | difference |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in (row for run in runs for row in run["rows"]):
        measured = row["measured"]
        for i, (codec, expected) in enumerate(row["predicted"].items()):
            about = [row["name"], f"{row['gbit']:g}", *(f"{measured[way]:.2f}" for way in ("none", "auto"))]
            seconds = measured[codec]
            cells = [f"`{codec}`", f"{expected:.2f}", f"{seconds:.2f}", f"{expected / seconds - 1:+.0%}"]
            lines.append(f"| {' | '.join([*([''] * 4 if i else about), *cells])} |")
    return lines

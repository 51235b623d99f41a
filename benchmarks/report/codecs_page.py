"""Tables of docs/codecs.md, from ``python -m benchmarks.codecs.page``."""

from __future__ import annotations

__all__ = ["all_tables", "errors", "example", "ratios"]


def all_tables(runs: list[dict]) -> list[str]:
    """Lines of all tables."""
    return [*example(runs), "", *ratios(runs), "", *errors(runs)]


def example(runs: list[dict]) -> list[str]:
    """Lines of a command and its output."""
    return ["```console", "$ compcoll codec field.npy --error 1e-3", *runs[0]["example"], "```"]


def ratios(runs: list[dict]) -> list[str]:
    """Lines of a table with a row for each codec, and a column for each kind of data."""
    rows = runs[0]["ratios"]
    kinds = list(rows[0]["ratios"])
    lines = [f"| ratio | {' | '.join(kinds)} |", "| --- |" + " ---: |" * len(kinds)]
    for row in rows:
        cells = ["lossless" if x is None else f"{x:.2f}" for x in row["ratios"].values()]
        lines.append(f"| `{row['codec']}` | {' | '.join(cells)} |")
    return lines


def errors(runs: list[dict]) -> list[str]:
    """Lines of a table of SNRs, with columns for numbers of codings and of ranks of a sum."""
    rows = runs[0]["errors"]
    codings, sums = (list(rows[0][key]) for key in ("codings", "sums"))
    heads = ["coded once", *(f"{n} times" for n in codings[1:]), *(f"sum of {n} ranks" for n in sums)]
    lines = [f"| data | codec | {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * len(heads)]
    for row in rows:
        cells = (f"{x:.1f}" for x in [*row["codings"].values(), *row["sums"].values()])
        lines.append(f"| {row['data']} | `{row['codec']}` | {' | '.join(cells)} |")
    return lines

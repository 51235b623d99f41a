"""Tables of programs under ``compcoll run``, from ``python -m benchmarks.programs``."""

from __future__ import annotations

from statistics import median

__all__ = ["examples", "packages"]


def examples(runs: list[dict]) -> list[str]:
    """Lines of a table with a row for each way, and seconds and speed-up for each speed of the link."""
    (run,) = runs
    links = list(dict.fromkeys(row["gbit"] for row in run["rows"]))
    seconds = {
        (row["gbit"], row["way"]): median(one["seconds"] for one in row["runs"]) for row in run["rows"]
    }
    heads = [f"{gbit:g} Gb/s, s | speed-up" for gbit in links]
    lines = [f"| | {' | '.join(heads)} | bytes | error |", f"| --- |{' ---: |' * (2 * len(links) + 2)}"]
    plain = run["rows"][0]["runs"][0]
    for row in run["rows"][: len(run["rows"]) // len(links)]:
        way, last = row["way"], row["runs"][-1]
        cells = []
        for gbit in links:
            own = seconds[gbit, way]
            cells += [f"{own:.2f}", f"{seconds[gbit, 'plain'] / own:.2f}" if way != "plain" else ""]
        cells.append(f"1 / {last['bytes'] / last['wire']:.2f}" if "wire" in last else "")
        cells.append("that of plain" if way != "plain" and same(row, plain) else f"{last['error']:.1e}")
        lines.append(f"| {way if way == 'plain' else f'`{way}`'} | {' | '.join(cells)} |")
    return lines


def same(row: dict, plain: dict) -> bool:
    """True if all runs of a way have printed the energy and the error of plain MPI."""
    return all((one["energy"], one["error"]) == (plain["energy"], plain["error"]) for one in row["runs"])


def packages(runs: list[dict]) -> list[str]:
    """Lines of a table with a row for each program of a package."""
    programs = runs[0]["programs"]
    codecs = [way for way in next(iter(programs.values()))["runs"] if way != "plain"]
    heads = ["program", "version", "result, plain", "plain, s"]
    heads += [cell for codec in codecs for cell in (f"`{codec}`: calls", "bytes", "result", "s")]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * 3} ---: |{' --- | --- | --- | ---: |' * len(codecs)}"]
    for name, row in programs.items():
        plain = row["runs"]["plain"]
        cells = [name, row["version"], plain[0]["results"][-1], _least(plain)]
        for codec in codecs:
            cells += _of_codec(row["runs"].get(codec, []), plain)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _of_codec(found: list[dict], plain: list[dict]) -> list[str]:
    """Accelerated calls, ratio of bytes, result and seconds of a program with a codec."""
    if not found:
        return [""] * 4
    last = found[-1]
    results = [run["results"] for run in found]
    equal = all(one == plain[0]["results"] for one in results)
    ratio = f"1 / {last['bytes'] / last['wire']:.2f}" if last["wire"] else ""
    calls = f"{last['accelerated']} of {last['calls']}"
    return [calls, ratio, "equal" if equal else str(results[0][-1]), _least(found)]


def _least(found: list[dict]) -> str:
    return f"{min(run['seconds'] for run in found):.2f}"

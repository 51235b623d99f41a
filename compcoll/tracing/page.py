"""The report as one HTML file, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from compcoll.tracing import figures, tables
from compcoll.tracing.cells import Table, nbytes, seconds
from compcoll.tracing.predicted import Predictor, blocking
from compcoll.tracing.reader import Call, Program

__all__ = ["write"]

#: Ranks that the time line shows, its bins, and points of a series that are drawn.
_RANKS, _BINS, _POINTS = 32, 400, 2000
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1.5em;
  color: #222; }
h1 { font-size: 1.5em; margin-bottom: .2em; } h2 { font-size: 1.15em; margin-top: 2.2em; }
p.sub { color: #666; margin-top: 0; overflow-wrap: anywhere; }
.notes { background: #fff4e0; border-left: 4px solid #e69f00; padding: .5em 1em; }
.figures { display: flex; flex-wrap: wrap; gap: 1em 2.5em; } .figures b { display: block; font-size: 1.5em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87em; font-variant-numeric: tabular-nums; }
td, th { padding: .22em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e4e4; }
th { border-bottom: 2px solid #999; } td.l, th.l { text-align: left; }
tbody tr:hover { background: #f5f8fb; }
svg { width: 100%; height: auto; }
"""


def write(
    program: Program, tables_of: Iterable[Table], predictor: Predictor, machine: str, path: Path
) -> None:
    """Write the page of a program that has calls.

    Parameters
    ----------
    machine : str
        Source of the predictions.
    """
    parts = [
        f"<h1>What the calls did</h1><p class=sub>{escape(program.title)}, {program.size} ranks</p>",
        _notes(program),
        _totals(program),
    ]
    if figures.available():
        parts += [_timeline(program), _stages(program), _bytes(program), _points(program, predictor, machine)]
    else:
        parts += ["<p>The figures of this page need matplotlib: pip install 'compcoll[bench]'.</p>"]
    parts += [_table(table) for table in tables_of]
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>compcoll report: {escape(program.title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )
    path.write_text(text, encoding="utf-8")


def _notes(program: Program) -> str:
    if not program.notes:
        return ""
    return f"<div class=notes>{'<br>'.join(map(escape, program.notes))}</div>"


def _totals(program: Program) -> str:
    all_calls, inside = tables.total(program), sum(call.inside for _, call in program.calls())
    shown = [
        ("calls", str(all_calls.calls)),
        ("accelerated", str(all_calls.accelerated)),
        ("bytes without compression", nbytes(all_calls.raw)),
        ("bytes sent", nbytes(all_calls.wire)),
        ("ratio", f"{all_calls.ratio:.2f}"),
        ("from first to last", seconds(_length(program))),
        ("of it in calls, mean of ranks", seconds(inside / len(program.ranks))),
    ]
    return "<div class=figures>" + "".join(f"<div><b>{v}</b>{k}</div>" for k, v in shown) + "</div>"


def _length(program: Program) -> float:
    return max((call.start + call.total for _, call in program.calls()), default=0.0)


def _parts(call: Call) -> list[tuple[str, float]]:
    """Seconds of a call by what they went to; no more than it took."""
    if not call.accelerated:
        return [("MPI", call.total)]
    left, parts = call.total, []
    for stage in ("encode", "decode", "wait"):
        part = min(getattr(call, stage), left)
        parts.append((stage, part))
        left -= part
    return [*parts, ("other", left)]


def _timeline(program: Program) -> str:
    length, shown = _length(program), program.ranks[:_RANKS]
    width = length / _BINS
    if not length:
        return ""
    rows = []
    for rank in shown:
        bins: list[dict[str, float]] = [{} for _ in range(_BINS)]
        for call in rank.calls:
            if call.is_nonblocking:
                continue
            for i in range(
                int(call.start / width), min(int((call.start + call.total) / width), _BINS - 1) + 1
            ):
                over = min(call.start + call.total, (i + 1) * width) - max(call.start, i * width)
                for name, part in _parts(call) if call.total else ():
                    bins[i][name] = bins[i].get(name, 0.0) + over / width * part / call.total
        rows.append((f"rank {rank.rank}", bins))
    more = f" The first {_RANKS} of {program.size} ranks." if program.size > _RANKS else ""
    return (
        "<h2>When ranks were in calls</h2><p>The height is the fraction of time spent in calls, by what "
        f"they did; nonblocking calls are left out, since the program goes on meanwhile.{more}</p>"
        + figures.timeline(rows, length)
    )


def _stages(program: Program) -> str:
    sums: dict[str, dict[str, float]] = {}
    for _, call in program.calls():
        into = sums.setdefault(call.op, {})
        for name, part in _parts(call):
            into[name] = into.get(name, 0.0) + part
    order = sorted(sums.items(), key=lambda pair: -sum(pair[1].values()))[:20]
    rows = [(op, parts, seconds(sum(parts.values()))) for op, parts in order]
    return (
        "<h2>Time by operation</h2><p>Summed over ranks, of nonblocking calls until they were complete. "
        "Encoding and decoding on several threads are cut to what the call took.</p>" + figures.bars(rows)
    )


def _bytes(program: Program) -> str:
    sums: dict[str, list[int]] = {}
    for _, call in program.calls():
        into = sums.setdefault(call.op, [0, 0])
        into[0] += call.raw
        into[1] += call.wire
    order = sorted(((op, raw, wire) for op, (raw, wire) in sums.items() if raw), key=lambda row: -row[1])[:20]
    rows: list[tuple[str, dict[str, float], str]] = []
    for op, raw, wire in order:
        rows.append((op, {"uncompressed": float(raw)}, nbytes(raw)))
        rows.append(("", {"wire": float(wire)}, f"{nbytes(wire)}, {raw / wire if wire else 1:.2f}x"))
    return "<h2>Bytes by operation</h2>" + figures.bars(rows) if rows else ""


def _points(program: Program, predictor: Predictor, machine: str) -> str:
    ours = [(call.nbytes, call.total) for _, call in program.calls() if call.accelerated and call.nbytes]
    mpi = [(call.nbytes, call.total) for _, call in program.calls() if not call.accelerated and call.nbytes]
    predicted: dict[tuple[str, int, int], float | None] = {}
    for _, call in program.calls():
        key = blocking(call.op), call.nbytes, call.size
        if call.accelerated and call.nbytes and key not in predicted and len(predicted) < _POINTS // 10:
            row = tables.Row()
            row.add(call)
            predicted[key] = predictor.seconds(call.op, row)
    plain = [(key[1], value) for key, value in predicted.items() if value]
    series = {"MPI": _thinned(mpi), "accelerated": _thinned(ours), "plain": plain}
    drawing = figures.scatter(series, "bytes of the buffer", "seconds")
    if not drawing:
        return ""
    note = (
        " What plain MPI would have taken for the accelerated ones is predicted by the model, from "
        f"{escape(machine)}, and was not measured."
    ) * (predictor.machine is not None)
    return f"<h2>Time by size</h2><p>Each point is a call.{note}</p>{drawing}"


def _thinned(points: list) -> list:
    return points[:: max(len(points) // _POINTS, 1)]


def _table(table: Table) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{' class=l' * (i < table.left)}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    head = cells("th", table.headings)
    return (
        f"<h2>{escape(table.title)}</h2><div class=scroll><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )

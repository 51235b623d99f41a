"""The report as one self-contained HTML file: ``compcoll report`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template

from compcoll.tracing import tables
from compcoll.tracing.reader import Program
from compcoll.tracing.tables import Row, Table, nbytes_text, seconds_text
from compcoll.tracing.words import plural

__all__ = ["write"]

#: Bars of a figure.
_MOST = 32
#: Parts of bars: a colour that red-green colour-blind readers can distinguish, and the words of the legend.
_PARTS = {
    "encode": ("#0072b2", "encode"),
    "decode": ("#009e73", "decode"),
    "wait": ("#e69f00", "wait"),
    "other": ("#b8b8b8", "the rest of accelerated calls"),
    "MPI": ("#cc79a7", "calls that MPI served"),
    "before": ("#b8b8b8", "without compression"),
    "sent": ("#0072b2", "sent"),
}
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>compcoll report: $title</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1.5em;
  color: #222; }
h1 { font-size: 1.5em; margin-bottom: .2em; } h2 { font-size: 1.15em; margin-top: 2.2em; }
p.sub { color: #666; margin-top: 0; overflow-wrap: anywhere; }
.notes { background: #fff4e0; border-left: 4px solid #e69f00; padding: .5em 1em; }
.totals { display: flex; flex-wrap: wrap; gap: 1em 2.5em; } .totals b { display: block; font-size: 1.5em; }
ul { padding-left: 1.2em; overflow-wrap: anywhere; }
.bar { display: flex; align-items: center; gap: .6em; height: 1.45em; }
.bar b { flex: 0 0 13em; text-align: right; font-weight: normal; } .bar div { flex: 1; display: flex; }
.bar i { height: 1em; } .bar span { white-space: nowrap; margin-left: .5em; line-height: 1; }
.legend i { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87em; font-variant-numeric: tabular-nums; }
td, th { padding: .22em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e4e4; }
th { border-bottom: 2px solid #999; } td.l, th.l { text-align: left; }
tbody tr:hover { background: #f5f8fb; }
</style>
</head>
<body>
<h1>What the calls did</h1>
<p class="sub">$title, $size</p>
$notes
<div class="totals">$totals</div>
$reasons
<h2>Time by operation</h2>
<p>Summed over ranks, of nonblocking calls until they were complete. Encoding and decoding on several threads
are cut to what the call took.</p>
$times
<h2>Bytes by operation</h2>
$bytes
<h2>Time by rank</h2>
<p>In collective calls a rank that comes late waits least, and the others wait for it. perfetto.json has the
calls along the time.</p>
$ranks
$tables
</body>
</html>
""")


def write(program: Program, shown: Iterable[Table], path: Path) -> None:
    """Write the page of a program with calls.

    Parameters
    ----------
    program : Program
    shown : iterable of Table
        Of `compcoll.tracing.tables.tables_of`.
    path : Path
    """
    operations = tables.grouped(program, lambda _, call: call.op)
    longest = dict(sorted(operations.items(), key=lambda pair: -pair[1].seconds))
    sent = {op: row for op, row in longest.items() if row.raw}
    ranks = tables.grouped(program, lambda rank, _: f"rank {rank}")
    before = [(op, {"before": row.raw}, nbytes_text(row.raw)) for op, row in sent.items()]
    after = [("", {"sent": row.wire}, f"{nbytes_text(row.wire)}, {row.ratio:.2f}x") for row in sent.values()]
    text = _PAGE.substitute(
        title=escape(program.title),
        size=plural(program.size, "rank"),
        notes=f'<div class="notes">{"<br>".join(map(escape, program.notes))}</div>' if program.notes else "",
        totals="".join(f"<div><b>{value}</b>{name}</div>" for name, value in _totals(program).items()),
        reasons=_list(tables.REASONS, tables.reasons_of(program)),
        times=_bars(_times(longest)),
        bytes=_bars([bar for pair in zip(before, after, strict=True) for bar in pair]),
        ranks=_bars(_times(ranks)),
        tables="".join(map(_table, shown)),
    )
    path.write_text(text, encoding="utf-8")


def _totals(program: Program) -> dict[str, str]:
    (row,) = tables.grouped(program, lambda *_: "all").values()
    length = max(call.start + call.total for _, call in program.calls())
    return {
        "calls": str(row.calls),
        "accelerated": str(row.accelerated),
        "bytes without compression": nbytes_text(row.raw),
        "bytes sent": nbytes_text(row.wire),
        "ratio": f"{row.ratio:.2f}",
        "from first to last": seconds_text(length),
        "of it in calls, mean of ranks": seconds_text(row.inside / len(program.ranks)),
    }


def _times(rows: Mapping[str, Row]) -> list[tuple[str, Mapping[str, float], str]]:
    """Bars of seconds."""
    return [(name, row.parts, seconds_text(row.seconds)) for name, row in rows.items()]


def _bars(rows: list[tuple[str, Mapping[str, float], str]]) -> str:
    """Horizontal bars, one in each row: its name, the parts side by side, and the words after them."""
    largest = max((sum(parts.values()) for _, parts, _ in rows), default=0.0) or 1.0
    used = [name for name in _PARTS if any(name in parts for _, parts, _ in rows)]
    legend = "".join(f'<i style="background:{_PARTS[name][0]}"></i>{_PARTS[name][1]}' for name in used)
    bars = "".join(
        f'<div class="bar"><b>{escape(name)}</b><div>{_parts(parts, largest)}<span>{words}</span></div></div>'
        for name, parts, words in rows[:_MOST]
    )
    more = f"<p>The first {_MOST} of {len(rows)}.</p>" if len(rows) > _MOST else ""
    return f'<p class="legend">{legend}</p>{bars}{more}'


def _parts(parts: Mapping[str, float], largest: float) -> str:
    # The longest bar leaves room for the words after it.
    return "".join(
        f'<i style="width:{80 * parts[name] / largest:.2f}%;background:{colour}"></i>'
        for name, (colour, _) in _PARTS.items()
        if parts.get(name)
    )


def _list(title: str, lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""


def _table(table: Table) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{' class=l' * (i < table.left)}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{cells("th", table.headings)}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )
